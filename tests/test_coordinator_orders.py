"""What every order of the coordinator's says of whose it is, and of which time."""

from dataclasses import replace

from ps_proto.orders import FenceRank, InstallTable, ResolveRank, StartJob
from ps_proto.requests import Finished
from ps_proto.values import Sync, TableSpec
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.job import Job
from ps_server.coordinator.journal import Journal
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.orders import Orders
from ps_server.coordinator.stored import StoredCluster

SPEC = TableSpec("user", 1)


def test_orders_are_of_a_term_and_a_cluster_and_those_that_move_clocks_of_a_timeline() -> None:
    stored = replace(StoredCluster(77, 4, 2), timeline=3)
    orders = Orders(Numbering(CoreSettings(2), stored, Journal()))
    assert orders.install_table(SPEC, 6) == InstallTable(5, SPEC, 6, 77)
    assert orders.fence_rank(1, 9) == FenceRank(5, 1, 9, 77)
    assert orders.start_job(Job(8, 2, Sync())) == StartJob(5, 8, 2, Sync(), 0, 77, 3)
    assert orders.resolve_rank(1, 9, Finished(3), 4) == ResolveRank(5, 1, 9, Finished(3), 4, False, 77, 3)

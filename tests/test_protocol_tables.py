"""Tables that others created, and the hyperparameters that a worker wants."""

import pytest

from peers import Peers, kinds
from ps_proto.errors import TableMismatch, UnknownTable
from ps_proto.requests import Hyperparameters
from ps_proto.values import SGD, Adam, Async, Sync, TableSpec
from ps_worker.protocol import COORDINATOR


@pytest.fixture
def peers() -> Peers:
    return Peers(Sync()).joined()


def test_pushes_carry_hyperparameters_only_where_they_differ(peers: Peers) -> None:
    peers.run(peers.worker.create_table(TableSpec("sparse", 1, SGD(0.5), mode=Async())))
    peers.heard()
    peers.push(0, table="sparse")
    assert [body.hyperparameters for _, body in peers.heard()] == [()]
    peers.worker.set_optimizer("sparse", SGD(0.25))
    peers.push(0, 1, table="sparse")
    assert [body.hyperparameters for _, body in peers.heard()] == [(Hyperparameters("sparse", SGD(0.25).parameters()),)] * 2
    peers.push(0)
    assert [body.hyperparameters for _, body in peers.heard()] == [()]  # another table's


def test_a_creator_with_other_numbers_keeps_its_own(peers: Peers) -> None:
    spec = peers.run(peers.worker.create_table(TableSpec("sparse", 1, SGD(0.125), mode=Async())))
    assert spec.optimizer == SGD(0.125)
    peers.heard()
    peers.push(0, table="sparse")
    assert [body.hyperparameters for _, body in peers.heard()] == [(Hyperparameters("sparse", SGD(0.125).parameters()),)]


def test_finished_carries_those_of_synchronous_tables_only(peers: Peers) -> None:
    peers.worker.set_optimizer("sparse", SGD(0.25))
    peers.worker.set_optimizer("dense", SGD(0.75))
    peers.run(peers.worker.end_step())
    peers.worker.set_optimizer("dense", SGD(1.0))  # counts for the next step
    peers.pull(0)
    assert [body.finished.hyperparameters for _, body in peers.heard()] == [(Hyperparameters("dense", SGD(0.75).parameters()),)] * 3
    peers.run(peers.worker.end_step())
    peers.run(peers.worker.flush())
    assert [body.finished.hyperparameters for _, body in peers.heard()][-1] == (Hyperparameters("dense", SGD(1.0).parameters()),)


def test_another_kind_of_optimizer_is_another_table(peers: Peers) -> None:
    with pytest.raises(TableMismatch):
        peers.worker.set_optimizer("dense", Adam())


def test_a_table_that_others_created_is_found_when_it_is_used(peers: Peers) -> None:
    peers.tables = (*peers.tables, TableSpec("new", 1))
    assert peers.pull(0, table="new") == [[0]]
    assert kinds(peers.heard())[0] == (COORDINATOR, "GetCluster")
    peers.pull(0, table="new")
    assert COORDINATOR not in [peer for peer, _ in peers.heard()]
    with pytest.raises(UnknownTable, match="nobody"):
        peers.pull(0, table="nobody")

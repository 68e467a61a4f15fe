"""Joining, maps and barriers: what the coordinator is asked."""

import pytest

from peers import Peers, shard_map
from ps_proto.errors import BarrierTimeout, Recovering, Unreachable
from ps_proto.requests import Barrier, Fence, GetCluster, JoinJob
from ps_proto.values import BoundedStaleness, Sync
from ps_worker.protocol import COORDINATOR
from scripted import After


@pytest.fixture
def peers() -> Peers:
    return Peers(Sync()).joined()


def test_joining_waits_for_the_map_and_takes_over_what_the_coordinator_says() -> None:
    peers = Peers(BoundedStaleness(2), clock=17)
    peers.run(peers.worker.join(1, 2, BoundedStaleness(2), 99))
    assert peers.heard() == [(COORDINATOR, GetCluster(wait_s=10.0)), (COORDINATOR, JoinJob(1, 2, BoundedStaleness(2), 99, wait_s=10.0))]
    worker = peers.worker
    assert (worker.rank, worker.incarnation, worker.clock, worker.world_size, worker.mode) == (1, 4, 17, 2, BoundedStaleness(2))
    assert worker.fence() == Fence(1, 1, 4, 17, 0)


def test_a_join_is_repeated_under_its_nonce() -> None:
    peers = Peers(Sync())
    peers.on(JoinJob, Unreachable("server-1", "host:1", 10.0, "connection refused"), Recovering("The coordinator", "no map"))
    peers.run(peers.worker.join(0, 2, Sync(), 99))
    assert [body.nonce for _, body in peers.heard() if isinstance(body, JoinJob)] == [99, 99, 99]


def test_a_map_never_goes_back(peers: Peers) -> None:
    peers.worker._view.take_map(shard_map(5))
    peers.worker._view.take_map(shard_map(4))
    peers.worker._view.take_map(None)
    assert peers.worker.fence().map_version == 5


def test_barriers_count_on_from_where_the_job_is(peers: Peers) -> None:
    peers.run(peers.worker.barrier())
    assert peers.run(peers.worker.barrier(-3)) == -3
    assert peers.heard() == [(COORDINATOR, Barrier(0, 4, 6, 10.0)), (COORDINATOR, Barrier(0, 4, 7, 10.0, -3))]


def test_a_long_barrier_says_whom_it_waits_for_and_a_failed_one_keeps_its_number(peers: Peers) -> None:
    peers.on(Barrier, *[After(10.0, BarrierTimeout(6, "1", 10.0))] * 3)
    with pytest.raises(BarrierTimeout, match=r"Barrier 6 waited 30\.0 s for rank 1"):
        peers.run(peers.worker.barrier())
    assert len(peers.script.told) == 2
    peers.heard()
    peers.run(peers.worker.barrier())
    assert peers.heard() == [(COORDINATOR, Barrier(0, 4, 6, 10.0))]

"""Who a client is, and what connecting says when it cannot."""

from typing import Any

import pytest

from clients import BRIEF, ITEM, alone, ones
from inprocess import COORDINATOR, PATIENT, Fault, InProcess
from peers import PATIENCE, Peers, PeersTransport
from ps_proto.errors import InvalidRequest, JobMismatch, Recovering, Unreachable
from ps_proto.requests import OBSERVER, JobJoined, JoinJob
from ps_proto.values import Async, BoundedStaleness, Sync
from ps_worker.client import Client
from ps_worker.connecting import connect


def test_a_client_knows_who_it_is() -> None:
    cluster = InProcess()
    with cluster.connect(1, 2, BoundedStaleness(3)) as client:
        assert (client.rank, client.world_size, client.mode, client.clock, client.incarnation) == (1, 2, BoundedStaleness(3), 0, 1)


def test_a_differing_job_is_refused_and_the_client_leaves_no_thread() -> None:
    cluster = InProcess()
    with cluster.connect(0, 1, Sync()):
        with pytest.raises(JobMismatch, match="world_size 1, but this worker asks for 2"):
            cluster.connect(1, 2, Sync())
        with pytest.raises(JobMismatch, match=r"mode Sync\(backup_workers=0\), but this worker asks for Async\(\)"):
            cluster.connect(0, 1, Async())


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 0},
        {"world_size": 1},
        {"rank": "0", "world_size": 1},
        {"rank": 0.0, "world_size": 1},
        {"rank": -1, "world_size": 1},
        {"rank": 0, "world_size": 2**40},
        {"rank": 0, "world_size": 1, "mode": "sync"},
        {"resume": True},
        {"rank": 0, "world_size": 1, "join": "spare"},
        {"join": True},
        {"join": ""},
        {"rank": 0, "world_size": 1, "on_lost_worker": "hope"},
        {"on_lost_worker": "continue"},
        {"rpc_timeout_s": 0},
        {"retry_timeout_s": -1.0},
        {"wait_timeout_s": float("nan")},
        {"transport": "pigeon"},
    ],
)
def test_wrong_arguments_of_connect_are_refused_before_anything_is_called(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        connect("nowhere:1", **arguments)


def test_what_a_worker_joins_with_goes_to_the_coordinator_and_what_it_gets_is_the_clients() -> None:
    peers = Peers(Sync())
    peers.on(JoinJob, JobJoined(9, 17, 6, 2, Sync(), 0, peers.map, (), rank=1, resume=b"state", is_resumed=True))
    asked = []
    peers.hooks.insert(0, lambda call: asked.append(call.body) if isinstance(call.body, JoinJob) else None)
    client = Client("coordinator:1", PeersTransport(peers), PATIENCE, 1, 2, Sync(), resume=True, on_lost_worker="continue")
    client.disconnect()
    assert asked == [JoinJob(1, 2, Sync(), asked[0].nonce, 10.0, resume=True, on_lost_worker="continue")]
    assert (client.rank, client.incarnation, client.clock, client.is_resumed, client.resume) == (1, 9, 17, True, b"state")


def test_who_joins_a_running_job_gets_a_rank() -> None:
    peers = Peers(Sync())
    peers.on(JoinJob, JobJoined(1, 30, 6, 3, Sync(), 0, peers.map, (), rank=2))
    asked = []
    peers.hooks.insert(0, lambda call: asked.append(call.body) if isinstance(call.body, JoinJob) else None)
    client = Client("coordinator:1", PeersTransport(peers), PATIENCE, None, None, None, join="spare")
    client.disconnect()
    assert asked == [JoinJob(OBSERVER, 0, None, asked[0].nonce, 10.0, name="spare")]
    assert (client.rank, client.world_size, client.clock, client.is_resumed) == (2, 3, 30, False)


def test_a_cluster_without_its_servers_says_how_many_are_missing() -> None:
    cluster = InProcess(2)
    cluster.coordinator.members.shard_map = None
    cluster.coordinator.members.servers_expected = 3
    with pytest.raises(Recovering, match="2 of 3 servers have registered"):
        cluster.connect(0, 1, Sync(), BRIEF)


def test_a_cluster_that_is_away_is_named() -> None:
    cluster = InProcess()
    cluster.down.add(COORDINATOR)
    with pytest.raises(Unreachable, match=r"the coordinator at the-coordinator:0 did not answer for 0\.\d s \(connection refused\)"):
        cluster.connect()


def test_a_dead_server_is_named_by_who_joins_and_who_creates_a_table() -> None:
    cluster = InProcess()
    with cluster.connect(0, 2, Async(), BRIEF) as client:
        cluster.down.add("server-1:0")
        with pytest.raises(Unreachable, match=r"server-1 at server-1:0 did not answer for 1\.\d s \(connection refused\)"):
            client.create_table(ITEM)
        with pytest.raises(Unreachable, match=r"server-1 at server-1:0 did not answer for 1\.\d s \(connection refused\)"):
            cluster.connect(1, 2, Async(), BRIEF)
        cluster.down.clear()


def test_a_join_whose_answer_is_lost_is_one_incarnation() -> None:
    cluster = InProcess(patience=PATIENT)
    lost = Fault(JoinJob)
    cluster.faults.append(lost)
    with cluster.connect(0, 1, Sync()) as client:
        assert lost.fired
        assert client.incarnation == 1


def test_two_clients_of_one_process_do_not_meet() -> None:
    one, other = alone(Sync(), 1, ITEM), alone(Async(), 3, ITEM)
    with one[1] as first, other[1] as second:
        first.push("item", [1], ones(1, 2))
        second.push("item", [1], ones(1, 2, 5.0))
        first.end_step()
        assert first.pull("item", [1]).tolist() == [[-1, -1]]
        assert second.pull("item", [1]).tolist() == [[-5, -5]]

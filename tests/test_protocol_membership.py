"""Joining, maps and barriers: what the coordinator is asked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from peers import ASYNC, NAMES, SYNC, Peers, ids_of, kinds, observer, rows_of, shard_map
from ps_proto.errors import (
    BarrierTimeout,
    CheckpointFailed,
    Recovering,
    RolledBack,
    StalenessTimeout,
    StaleTimeline,
    UnfinishedPush,
    Unreachable,
)
from ps_proto.requests import (
    OBSERVER,
    Barrier,
    BarrierPassed,
    CheckpointTaken,
    Cluster,
    Fence,
    Finish,
    GetCluster,
    JobJoined,
    JoinJob,
    Pull,
    Push,
    SkippedTurn,
    TakeCheckpoint,
)
from ps_proto.values import BoundedStaleness, Mode, Sync
from ps_worker.asking import Call, Operation
from ps_worker.protocol import COORDINATOR, BarriersAsked, Worker
from scripted import After, silence
from sharding.shard_map import Server


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


def test_a_join_waits_for_a_cluster_that_loads_a_checkpoint_as_long_as_for_other_ranks() -> None:
    peers = Peers(Sync())
    loads = Recovering("The coordinator", "the cluster goes back to checkpoint 12")
    peers.on(JoinJob, *[loads] * 30)  # half a second each: longer than a peer may be silent
    peers.run(peers.worker.join(0, 2, Sync(), 99))
    assert (peers.script.now_s, peers.script.told) == (14.0, [loads] * 2)
    peers.on(JoinJob, *[loads] * 1_000)
    with pytest.raises(Recovering, match="goes back to checkpoint 12"):
        peers.run(peers.worker.join(0, 2, Sync(), 99))
    assert peers.script.now_s == 14.0 + 25.0


def test_a_map_never_goes_back(peers: Peers) -> None:
    peers.worker._view.take_map(shard_map(5))
    peers.worker._view.take_map(shard_map(4))
    peers.worker._view.take_map(None)
    assert peers.worker.fence().map_version == 5


def test_barriers_count_on_from_where_the_job_is(peers: Peers) -> None:
    peers.run(peers.worker.barrier())
    assert peers.run(peers.worker.barrier(-3)) == -3
    assert peers.heard() == [(COORDINATOR, Barrier(0, 4, 6, 10.0)), (COORDINATOR, Barrier(0, 4, 7, 10.0, -3))]


def test_one_that_goes_on_says_which_barriers_it_is_beyond(peers: Peers) -> None:
    assert peers.worker.barriers_behind(0) == BarriersAsked(6, 6)  # those of before it joined
    peers.run(peers.worker.barrier())
    peers.worker.barrier()  # it has yet to be there
    assert peers.worker.barriers_behind(0) == BarriersAsked(8, 7)
    peers.heard()
    peers.run(peers.worker.resume_barriers(BarriersAsked(5, 4)))
    assert peers.worker.barriers_behind(0) == BarriersAsked(5, 4)
    peers.run(peers.worker.resume_barriers(BarriersAsked(1, 0)))
    assert peers.heard() == [(COORDINATOR, Barrier(0, 4, 4, 0.0, is_between=True))]


def test_one_that_goes_on_behind_a_turn_hears_how_many_barriers_it_skipped(peers: Peers) -> None:
    peers.run(peers.worker.resume_barriers(BarriersAsked(5, 4, 2, ((3, 20), (5, 21)))))
    skipped = (SkippedTurn(5, 20), SkippedTurn(7, 21))
    peers.on(Barrier, BarrierPassed(1, 6), BarrierPassed(0, 12), BarrierPassed(0, 13))
    assert peers.run(peers.worker.barrier(1, number=4)) == 1  # one that was asked for before; of turn 20 it had skipped none
    assert peers.worker.barriers_behind(0) == BarriersAsked(5, 5, 2, ((5, 21),))
    assert peers.worker.barriers_behind(22) == BarriersAsked(5, 5, 2, ((5, 21), (5, 22)))
    peers.run(peers.worker.barrier(turn=22))
    assert peers.worker.barriers_behind(0) == BarriersAsked(6, 6, 7)
    peers.run(peers.worker.barrier())
    assert peers.heard() == [
        (COORDINATOR, Barrier(0, 4, 6, 0.0, is_between=True, skipped=skipped)),
        (COORDINATOR, Barrier(0, 4, 6, 10.0, 1, skipped=skipped)),
        (COORDINATOR, Barrier(0, 4, 7, 10.0, turn=22, skipped=skipped[1:])),
        (COORDINATOR, Barrier(0, 4, 13, 10.0)),
    ]


def test_a_long_barrier_says_whom_it_waits_for_and_a_failed_one_keeps_its_number(peers: Peers) -> None:
    peers.on(Barrier, *[After(10.0, BarrierTimeout(6, "1", 10.0))] * 3)
    with pytest.raises(BarrierTimeout, match=r"Barrier 6 waited 30\.0 s for rank 1"):
        peers.run(peers.worker.barrier())
    assert len(peers.script.told) == 2
    peers.heard()
    peers.run(peers.worker.barrier())
    assert peers.heard() == [(COORDINATOR, Barrier(0, 4, 6, 10.0))]


# --- going on where another worker was (R15) ---------------------------------------------------------------------------------


def test_a_worker_that_resumes_begins_where_the_coordinator_says() -> None:
    peers = Peers(Sync())
    found = JobJoined(9, 17, 6, 2, Sync(), 3, shard_map(), (), rank=1, resume=b"state", is_resumed=True)
    peers.on(JoinJob, found)
    peers.run(peers.worker.join(1, 2, Sync(), 99, resume=True))
    assert [body.resume for _, body in peers.heard() if isinstance(body, JoinJob)] == [True]
    worker = peers.worker
    assert (worker.resume, worker.is_resumed, worker.clock, worker.turn) == (b"state", True, 17, 17)
    assert worker.fence() == Fence(1, 1, 9, 17, 3)


def test_a_worker_that_does_not_resume_has_nothing_to_go_on_with() -> None:
    peers = Peers(Sync(), clock=17).joined()
    assert (peers.worker.resume, peers.worker.is_resumed, peers.worker.clock) == (b"", False, 17)


def test_a_rank_that_the_coordinator_chose_is_this_workers() -> None:
    peers = Peers(Sync())
    peers.on(JoinJob, JobJoined(1, 30, 6, 3, Sync(), 0, shard_map(), (), rank=2))
    peers.run(peers.worker.join(OBSERVER, 0, None, 99))
    assert (peers.worker.rank, peers.worker.world_size, peers.worker.fence()) == (2, 3, Fence(1, 2, 1, 30, 0))


# --- a rollback (R12, R15) ---------------------------------------------------------------------------------------------------

BACK = RolledBack(rank=0, clock=5, timeline=1)
GONE = Unreachable("server-0", "server-0:1", 0.0, "connection refused")
AWAY = Unreachable(COORDINATOR, "coordinator:1", 0.0, "connection refused")
EVERYTHING: dict[str, Callable[[Worker], Operation[Any]]] = {
    "pull": lambda worker: worker.pull([("dense", ids_of(0))]),
    "push": lambda worker: worker.push([("dense", ids_of(0), rows_of(1.0))]),
    "assign": lambda worker: worker.assign([("dense", ids_of(0), rows_of(1.0))], only_absent=True),
    "clear": lambda worker: worker.clear("dense"),
    "retry_push": lambda worker: worker.retry_push(),
    "end_step": lambda worker: worker.end_step(),
    "flush": lambda worker: worker.flush(),
    "leave": lambda worker: worker.leave(),
    "barrier": lambda worker: worker.barrier(),
    "create_table": lambda worker: worker.create_table(SYNC),
    "open_exports": lambda worker: worker.open_exports("dense"),
    "stats": lambda worker: worker.stats(),
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_whatever_a_worker_does_after_a_rollback_says_so_and_asks_nobody(name: str, peers: Peers) -> None:
    peers.on(Push, BACK, peer="server-1")
    with pytest.raises(RolledBack):
        peers.push(0, 1)
    peers.heard()
    for _ in range(2):
        with pytest.raises(RolledBack, match="rank 0 goes on with step 5") as raised:
            peers.run(EVERYTHING[name](peers.worker))
        assert raised.value.values() == BACK.values()
    assert peers.heard() == []


def test_a_rollback_is_said_at_once_though_a_server_is_away(peers: Peers) -> None:
    peers.on(Pull, *[silence] * 5, peer="server-0")
    peers.on(Pull, BACK, peer="server-1")
    with pytest.raises(RolledBack):
        peers.pull(0, 1, 2)
    assert peers.script.pauses == []


def test_a_wait_ends_once_another_operation_has_learned_of_a_rollback(peers: Peers) -> None:
    def learn_meanwhile(call: Call) -> After:
        with pytest.raises(RolledBack):
            peers.pull(1)
        return After(10.0, BarrierTimeout(6, "1", 10.0))

    peers.on(Barrier, learn_meanwhile)
    peers.on(Pull, BACK)
    with pytest.raises(RolledBack):
        peers.run(peers.worker.barrier())


def test_a_worker_whose_server_is_gone_looks_where_it_is_now(peers: Peers) -> None:
    moved = replace(shard_map(2), servers=(Server("server-0", "server-0:2", incarnation=2), *shard_map().servers[1:]))
    peers.on(Pull, *[GONE] * 20, peer="server-0")
    peers.on(GetCluster, AWAY, Cluster(3, shard_map(), (), 0, 2, Sync()), *[Cluster(3, moved, (), 1, 2, Sync())] * 2)
    told = iter([Recovering("server-0", "it is loading"), BACK])  # first it has not heard of it, and neither have the others
    peers.hooks.append(lambda call: next(told) if isinstance(call.body, Finish) and call.address == "server-0:2" else None)
    with pytest.raises(RolledBack):
        peers.pull(0)
    heard = peers.heard()
    assert kinds(heard).count(("server-0", "Pull")) == 5  # the first silence is too short to look
    assert kinds(heard).count((COORDINATOR, "GetCluster")) == 4
    with pytest.raises(RolledBack):
        peers.pull(1)
    assert peers.heard() == []


def test_nobody_looks_while_servers_answer_that_they_wait(peers: Peers) -> None:
    peers.on(Pull, *[After(10.0, StalenessTimeout(0, 0, 0, 1, 10.0))] * 2, peer="server-0")
    peers.pull(0)
    assert kinds(peers.heard()) == [("server-0", "Pull")] * 3


def test_an_observer_whose_server_is_gone_follows_the_cluster_back() -> None:
    peers = observer()
    peers.pull(0)
    peers.on(Pull, *[GONE] * 2, peer="server-0")
    peers.map = shard_map(2)
    behind, ahead = [Cluster(3, peers.map, (SYNC, ASYNC), timeline, 2, Sync()) for timeline in (0, 1)]
    peers.on(GetCluster, behind, ahead, ahead)  # the first: for the table's spec
    assert peers.pull(0) == [[0]]
    assert peers.heard()[-1][1].fence == Fence(2, OBSERVER, 0, 0, 1)


def test_an_observer_follows_the_cluster_back() -> None:
    peers = observer()
    peers.map = shard_map(2)
    peers.on(Pull, StaleTimeline(1, 0), peer="server-1")
    ahead = Cluster(3, peers.map, (SYNC, ASYNC), 1, 2, Sync())
    behind = Cluster(3, shard_map(), (SYNC, ASYNC), 0, 2, Sync())
    peers.on(GetCluster, behind, behind, ahead)  # the first: for the table's spec
    assert peers.pull(0, 1) == [[0], [10]]
    assert [body.fence for _, body in peers.heard() if isinstance(body, Pull)][-2:] == [Fence(2, OBSERVER, 0, 0, 1)] * 2
    assert peers.script.pauses == [0.5]


def test_an_observer_gives_up_on_a_cluster_that_stays_behind_its_servers() -> None:
    peers = observer()
    peers.on(Pull, *[StaleTimeline(1, 0)] * 3)
    with pytest.raises(StaleTimeline):
        peers.pull(0)
    assert sum(peers.script.pauses) == 5.0


# --- checkpoints -------------------------------------------------------------------------------------------------------------

TAKEN = CheckpointTaken("/data/checkpoint-0000000001", 1, 1, 0, 0, 0.1, 0.001)


@pytest.mark.parametrize("mode", [Sync(), BoundedStaleness(1)], ids=str)
def test_a_checkpoint_has_all_that_its_rank_has_finished(mode: Mode) -> None:
    peers = Peers(mode).joined()
    peers.push(0)
    peers.run(peers.worker.end_step())
    peers.heard()
    peers.on(TakeCheckpoint, Unreachable(COORDINATOR, "coordinator:1", 1.0, "reset"), TAKEN)
    assert peers.run(peers.worker.checkpoint("/data", full=True)) == TAKEN
    heard = peers.heard()
    assert [(peer, body.finished.clock, body.wait_s) for peer, body in heard[:3]] == [(name, 0, 0.0) for name in NAMES]
    assert heard[3:] == [(COORDINATOR, TakeCheckpoint("/data", True, 1, 25.0))] * 2


def test_a_checkpoint_that_waits_for_a_rank_in_vain_names_it(peers: Peers) -> None:
    peers.on(TakeCheckpoint, After(25.0, StalenessTimeout(1, 0, 0, 1, 25.0)))
    with pytest.raises(StalenessTimeout, match=r"waited 25\.0 s for rank 1"):
        peers.run(peers.worker.checkpoint("", full=False))


def test_a_checkpoint_that_failed_is_not_tried_again(peers: Peers) -> None:
    peers.on(TakeCheckpoint, CheckpointFailed("/data", "server-1", "no room"))
    with pytest.raises(CheckpointFailed):
        peers.run(peers.worker.checkpoint("", full=False))
    assert kinds(peers.heard()) == [(COORDINATOR, "TakeCheckpoint")]


def test_no_checkpoint_is_taken_behind_a_push_that_was_not_acknowledged(peers: Peers) -> None:
    peers.on(Push, *[silence] * 20)
    with pytest.raises(Unreachable):
        peers.push(0)
    peers.heard()
    with pytest.raises(UnfinishedPush):
        peers.run(peers.worker.checkpoint("", full=False))
    assert peers.heard() == []


def test_an_observer_has_a_checkpoint_taken_of_any_step() -> None:
    peers = observer()
    peers.on(TakeCheckpoint, TAKEN)
    peers.run(peers.worker.checkpoint("", full=False))
    assert peers.heard() == [(COORDINATOR, TakeCheckpoint("", False, -1, 25.0))]

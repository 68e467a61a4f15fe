"""A worker's operations by hand: which server hears what, and when. The replies come from a script; no core takes part."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ps_proto.errors import (
    BarrierTimeout,
    InvalidRequest,
    NotOwner,
    ObserverCannot,
    PushPartlyTaken,
    Recovering,
    StalenessTimeout,
    StepPassed,
    TableFull,
    TableMismatch,
    UnfinishedPush,
    UnknownTable,
    Unreachable,
)
from ps_proto.requests import (
    OBSERVER,
    Assign,
    Barrier,
    BarrierPassed,
    Cluster,
    CreateTable,
    Done,
    ExportOpened,
    Fence,
    Finish,
    Finished,
    GetCluster,
    GetStats,
    Hyperparameters,
    JobJoined,
    JoinJob,
    LeaveJob,
    OpenExport,
    Pull,
    Pulled,
    Push,
    Stats,
    TableCreated,
)
from ps_proto.values import SGD, Adam, Async, BoundedStaleness, Mode, Sync, TableSpec
from ps_worker.asking import Call, Patience
from ps_worker.protocol import COORDINATOR, Worker
from ps_worker.retry import Backoff
from scripted import After, Scripted, silence
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sharding.shard_map import Server, ShardMap

SYNC = TableSpec("dense", 1, SGD(0.5), mode=Sync())
ASYNC = TableSpec("sparse", 1, SGD(0.5), mode=Async())
NAMES = ("server-0", "server-1", "server-2")
PATIENCE = Patience(rpc_timeout_s=1.0, retry_timeout_s=5.0, wait_timeout_s=25.0, backoff=Backoff(0.5, 0.5))


def ids_of(*given: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array(given, np.uint64)


def rows_of(*given: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(given, np.float32).reshape(-1, 1)


def shard_map(version: int = 1, servers: int = 3, **owner_of: int) -> ShardMap:
    """A map in which id k of either table belongs to server k, but for `id_7=0` and the like."""
    owners = np.zeros(NUM_BUCKETS, np.int32)
    for table in (SYNC.name, ASYNC.name):
        for id in range(10):
            owners[buckets_of(table_salt(table), ids_of(id))] = owner_of.get(f"id_{id}", id if id < servers else 0)
    return ShardMap(version, tuple(Server(name, f"{name}:1") for name in NAMES[:servers]), owners)


class Peers:
    """A coordinator and servers that say yes to everything, unless `hooks` say otherwise: a hook returns an outcome or None."""

    def __init__(self, mode: Mode | None, tables: tuple[TableSpec, ...] = (SYNC, ASYNC), clock: int = 0) -> None:
        self.map = shard_map()
        self.mode = mode
        self.tables = tables
        self.clock = clock
        self.hooks: list[Callable[[Call], Any]] = []
        self.script = Scripted(self.answer)
        self.worker = Worker("coordinator:1", self.script.world, PATIENCE)

    def answer(self, call: Call) -> Any:
        for hook in self.hooks:
            if (outcome := hook(call)) is not None:
                return outcome
        match call.body:
            case GetCluster():
                return Cluster(3, self.map, self.tables, 0, 2 if self.mode else 0, self.mode)
            case JoinJob():
                assert self.mode is not None
                return JobJoined(4, self.clock, 6, 2, self.mode, 0, self.map, self.tables)
            case CreateTable(spec):
                return TableCreated(next((have for have in self.tables if have.name == spec.name), spec))
            case Pull(_, tables):
                rows = tuple([np.array([[10 * int(id)] for id in part.ids], np.float32).reshape(-1, 1) for part in tables])
                return Pulled(rows, call.body.fence.clock)
            case OpenExport():
                return ExportOpened(1, 0, 0)
            case GetStats():
                return Stats({"pulls": 1.0}, {})
            case Barrier():
                return BarrierPassed(call.body.value)
        return Done()

    def joined(self) -> "Peers":
        self.script.run(self.worker.join(0, 2, self.mode, 99))
        self.script.calls.clear()
        return self

    def run(self, operation: Any) -> Any:
        return self.script.run(operation)

    def heard(self) -> list[tuple[str, Any]]:
        """What was said since the last time, to whom."""
        calls = [(call.peer, call.body) for call in self.script.calls]
        self.script.calls.clear()
        return calls

    def on(self, kind: type, *outcomes: Any, peer: str | None = None) -> None:
        """Give these outcomes to the next requests of a kind."""
        left: Iterator[Any] = iter(outcomes)

        def hook(call: Call) -> Any:
            if isinstance(call.body, kind) and peer in (None, call.peer):
                outcome = next(left, None)
                return outcome(call) if callable(outcome) else outcome
            return None

        self.hooks.append(hook)

    def push(self, *ids: int, table: str = "dense") -> None:
        self.run(self.worker.push([(table, ids_of(*ids), rows_of(*[1.0] * len(ids)))]))

    def pull(self, *ids: int, table: str = "dense") -> list[list[float]]:
        (rows,) = self.run(self.worker.pull([(table, ids_of(*ids))]))
        return [[float(value) for value in row] for row in rows]


def kinds(heard: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(peer, type(body).__name__) for peer, body in heard]


@pytest.fixture
def peers() -> Peers:
    return Peers(Sync()).joined()


# --- connecting --------------------------------------------------------------------------------------------------------------------


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
    peers.worker._take_map(shard_map(5))
    peers.worker._take_map(shard_map(4))
    peers.worker._take_map(None)
    assert peers.worker.fence().map_version == 5


# --- pulls -------------------------------------------------------------------------------------------------------------------------


def test_only_owners_hear_of_a_pull_and_rows_come_in_the_callers_order(peers: Peers) -> None:
    assert peers.pull(2, 0, 2) == [[20], [0], [20]]
    heard = peers.heard()
    assert kinds(heard) == [("server-0", "Pull"), ("server-2", "Pull")]
    for _, body in heard:
        assert body.fence == Fence(1, 0, 4, 0, 0)
        assert (body.finished, body.wait_s, body.at_step) == (None, 10.0, -1)
    assert [body.tables[0].ids.tolist() for _, body in heard] == [[0], [2]]


def test_a_pull_of_nothing_asks_nobody(peers: Peers) -> None:
    assert peers.pull() == []
    assert peers.heard() == []


def test_a_pull_after_not_owner_is_split_under_the_newer_map(peers: Peers) -> None:
    peers.map = shard_map(2, id_1=2)
    peers.on(Pull, NotOwner("server-1", 2), peer="server-1")
    assert peers.pull(0, 1) == [[0], [10]]
    heard = peers.heard()
    assert kinds(heard) == [
        ("server-0", "Pull"),
        ("server-1", "Pull"),
        (COORDINATOR, "GetCluster"),
        ("server-0", "Pull"),
        ("server-2", "Pull"),
    ]
    assert [body.fence.map_version for peer, body in heard if peer != COORDINATOR] == [1, 1, 2, 2]


def test_a_newer_map_that_the_coordinator_does_not_have_yet_is_waited_for(peers: Peers) -> None:
    peers.on(Pull, NotOwner("server-0", 2))
    peers.on(GetCluster, Cluster(3, None), Cluster(3, shard_map(1)), Cluster(3, shard_map(2)))
    assert peers.pull(0) == [[0]]
    assert len(peers.script.pauses) == 2


def test_a_newer_map_that_never_comes_is_an_error(peers: Peers) -> None:
    peers.on(Pull, NotOwner("server-0", 2))
    with pytest.raises(NotOwner):
        peers.pull(0)
    assert 5.0 <= peers.script.now_s < 7.0


def test_a_long_wait_says_whom_it_waits_for_and_ends(peers: Peers) -> None:
    peers.on(Pull, *[After(10.0, StalenessTimeout(3, 1, 0, 1, 10.0))] * 9)
    with pytest.raises(StalenessTimeout, match=r"waited 30\.0 s for rank 1"):
        peers.pull(0)
    assert [error.after_s for error in peers.script.told] == [10.0, 20.0]  # type: ignore[attr-defined]


# --- pushes and their names -----------------------------------------------------------------------------------------------------------


def test_pushes_of_a_step_are_numbered_and_each_step_counts_anew(peers: Peers) -> None:
    names = []
    for _ in range(2):
        peers.push(0)
        peers.push(0, 1)
        peers.run(peers.worker.end_step())
        names += [(body.fence.clock, body.seq) for _, body in peers.heard() if isinstance(body, Push)]
    assert names == [(0, 1), (0, 2), (0, 2), (1, 1), (1, 2), (1, 2)]


def test_assignments_are_named_like_pushes(peers: Peers) -> None:
    peers.run(peers.worker.assign([("dense", ids_of(0), rows_of(3.0))], only_absent=True))
    peers.push(0)
    first, second = (body for _, body in peers.heard())
    assert isinstance(first, Assign)
    assert (first.seq, first.only_absent, second.seq) == (1, True, 2)


def test_a_push_is_split_by_owner_and_its_repeats_are_summed_in_the_callers_order(peers: Peers) -> None:
    big, small = 2.0**24, 1.0  # in float32, big + small + small is not big + (small + small)
    peers.run(peers.worker.push([("dense", ids_of(2, 1, 2, 2), rows_of(big, 5.0, small, small))]))
    heard = {peer: body.tables[0] for peer, body in peers.heard()}
    assert {peer: (part.ids.tolist(), part.rows.tolist()) for peer, part in heard.items()} == {
        "server-1": ([1], [[5.0]]),
        "server-2": ([2], [[big]]),
    }


def test_a_push_that_was_refused_has_used_no_name(peers: Peers) -> None:
    with pytest.raises(InvalidRequest, match="not finite"):
        peers.run(peers.worker.push([("dense", ids_of(0), rows_of(np.inf))]))
    peers.push(0)
    assert [body.seq for _, body in peers.heard()] == [1]


def test_a_name_is_given_when_the_operation_is_made(peers: Peers) -> None:
    first = peers.worker.push([("sparse", ids_of(0), rows_of(1.0))])
    second = peers.worker.push([("sparse", ids_of(0), rows_of(1.0))])
    peers.run(first)
    peers.run(second)
    assert [body.seq for _, body in peers.heard()] == [1, 2]


def test_a_push_is_sent_again_under_its_name_until_all_have_acknowledged(peers: Peers) -> None:
    peers.on(Push, silence, silence, peer="server-1")
    peers.push(0, 1)
    heard = peers.heard()
    assert [peer for peer, _ in heard] == ["server-0", "server-1", "server-1", "server-1"]
    assert {(body.fence.clock, body.seq) for _, body in heard} == {(0, 1)}


def test_after_not_owner_the_whole_push_is_split_again_under_the_same_name(peers: Peers) -> None:
    peers.map = shard_map(2, id_1=2)
    peers.on(Push, NotOwner("server-1", 2), peer="server-1")
    peers.push(0, 1)
    heard = [(peer, body) for peer, body in peers.heard() if isinstance(body, Push)]
    assert [(peer, body.fence.map_version, body.tables[0].ids.tolist()) for peer, body in heard] == [
        ("server-0", 1, [0]),
        ("server-1", 1, [1]),
        ("server-0", 2, [0]),  # acknowledged once already: its window knows the name
        ("server-2", 2, [1]),
    ]
    assert {(body.fence.clock, body.seq) for _, body in heard} == {(0, 1)}


def test_nothing_follows_a_push_that_was_not_acknowledged_but_itself(peers: Peers) -> None:
    peers.on(Push, *[silence] * 4, peer="server-1")
    with pytest.raises(Unreachable, match="server-1"):
        peers.push(0, 1)
    peers.heard()
    for attempt in (
        lambda: peers.push(0),
        lambda: peers.run(peers.worker.assign([("dense", ids_of(0), rows_of(1.0))], False)),
        lambda: peers.run(peers.worker.end_step()),
        lambda: peers.run(peers.worker.flush()),
        lambda: peers.run(peers.worker.leave()),
    ):
        with pytest.raises(UnfinishedPush, match="Push 1 of step 0"):
            attempt()
    assert peers.heard() == []
    peers.pull(0)  # reading is fine
    peers.heard()
    peers.run(peers.worker.retry_push())
    assert [(peer, body.seq) for peer, body in peers.heard()] == [("server-0", 1), ("server-1", 1)]
    peers.run(peers.worker.retry_push())
    assert peers.heard() == []
    peers.push(0)


def test_a_push_that_is_kept_has_arrays_of_its_own(peers: Peers) -> None:
    ids, rows = ids_of(0, 1), rows_of(1.0, 2.0)
    peers.on(Push, *[silence] * 4, peer="server-1")
    with pytest.raises(Unreachable):
        peers.run(peers.worker.push([("dense", ids, rows)]))
    rows[:] = 99.0
    ids[:] = 5
    peers.heard()
    peers.run(peers.worker.retry_push())
    assert [(peer, body.tables[0].ids.tolist(), body.tables[0].rows.tolist()) for peer, body in peers.heard()] == [
        ("server-0", [0], [[1.0]]),
        ("server-1", [1], [[2.0]]),
    ]


def test_a_push_that_every_owner_refused_is_no_unfinished_business(peers: Peers) -> None:
    peers.on(Push, TableFull("dense", 5), TableFull("dense", 5))
    with pytest.raises(TableFull):
        peers.push(0, 1)
    peers.push(0)
    assert [body.seq for _, body in peers.heard()] == [1, 1, 2]


def test_a_push_that_some_owner_took_stays_unfinished_when_another_refuses(peers: Peers) -> None:
    peers.on(Push, TableFull("dense", 5), peer="server-1")
    with pytest.raises(PushPartlyTaken):
        peers.push(0, 1)
    with pytest.raises(UnfinishedPush):
        peers.push(0)


def test_a_push_that_some_owner_may_have_taken_under_an_older_map_stays_unfinished(peers: Peers) -> None:
    peers.map = shard_map(2, id_0=1)
    peers.on(Push, NotOwner("server-1", 2), TableFull("dense", 5), peer="server-1")
    with pytest.raises(PushPartlyTaken):
        peers.push(0, 1)  # server-0 acknowledged id 0, then server-1 owns both and refuses
    with pytest.raises(UnfinishedPush):
        peers.push(0)


# --- finished steps -----------------------------------------------------------------------------------------------------------------


def test_with_synchronous_tables_finished_goes_to_every_server_with_the_next_pull(peers: Peers) -> None:
    peers.push(0)
    peers.heard()
    peers.run(peers.worker.end_step())
    assert peers.worker.clock == 1
    assert peers.heard() == []  # nothing before the next step asks
    peers.pull(1)
    heard = peers.heard()
    assert [(peer, body.finished, len(body.tables)) for peer, body in heard] == [
        ("server-1", Finished(0), 1),
        ("server-0", Finished(0), 0),
        ("server-2", Finished(0), 0),  # also who owns nothing of either
    ]
    assert {body.fence.clock for _, body in heard} == {1}
    peers.pull(1)
    assert [(peer, body.finished) for peer, body in peers.heard()] == [("server-1", None)]


def test_finished_goes_with_the_first_request_even_if_it_reads_nothing(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.pull()
    assert [(peer, body.finished) for peer, body in peers.heard()] == [(name, Finished(0)) for name in NAMES]


def test_finished_is_said_until_every_server_has_heard_it(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.on(Pull, silence, peer="server-2")
    with pytest.raises(Unreachable, match="server-2"):
        peers.pull(0)
    peers.heard()
    peers.pull(0)
    assert {body.finished for _, body in peers.heard()} == {Finished(0)}
    peers.pull(0)
    assert {body.finished for _, body in peers.heard()} == {None}


def test_the_first_push_of_a_step_is_preceded_by_finished(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.push(1)
    assert [(peer, type(body)) for peer, body in peers.heard()] == [*[(name, Finish) for name in NAMES], ("server-1", Push)]


def test_a_second_end_step_says_the_first(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.run(peers.worker.end_step())
    assert [(peer, body.finished) for peer, body in peers.heard()] == [(name, Finished(0)) for name in NAMES]
    peers.run(peers.worker.flush())
    assert [(peer, body.finished, body.wait_s) for peer, body in peers.heard()] == [(name, Finished(1), 10.0) for name in NAMES]


def test_finished_is_not_said_before_all_of_the_steps_pushes_are_acknowledged(peers: Peers) -> None:
    peers.on(Push, *[silence] * 4, peer="server-1")
    with pytest.raises(Unreachable):
        peers.push(0, 1)
    with pytest.raises(UnfinishedPush):
        peers.run(peers.worker.end_step())
    assert peers.worker.clock == 0
    peers.run(peers.worker.pull([("dense", ids_of(0))]))
    assert not [body for _, body in peers.heard() if getattr(body, "finished", None) is not None]


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
def test_without_synchronous_tables_end_step_says_it_at_once(mode: Mode) -> None:
    peers = Peers(mode, tables=(TableSpec("sparse", 1, SGD(0.5)),)).joined()
    peers.run(peers.worker.end_step())
    assert [(peer, body.finished, body.wait_s) for peer, body in peers.heard()] == [(name, Finished(0), 0.0) for name in NAMES]
    peers.pull(0, table="sparse")
    assert [body.finished for _, body in peers.heard()] == [None]


def test_finished_survives_not_owner(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.map = shard_map(2)
    peers.on(Pull, NotOwner("server-1", 2), peer="server-1")
    peers.pull(0)
    again = [body for _, body in peers.heard() if isinstance(body, Pull) and body.fence.map_version == 2]
    assert [body.finished for body in again] == [Finished(0)] * 3


def test_leaving_finishes_a_step_with_pushes_and_waits_and_then_tells_the_coordinator(peers: Peers) -> None:
    peers.push(0)
    peers.heard()
    peers.run(peers.worker.leave())
    heard = peers.heard()
    assert [(peer, body) for peer, body in heard[:3]] == [
        (name, Finish(Fence(1, 0, 4, 1, 0), Finished(0), leave=True, wait_s=10.0)) for name in NAMES
    ]
    assert heard[3:] == [(COORDINATOR, LeaveJob(0, 4))]


def test_leaving_a_step_without_pushes_does_not_finish_it(peers: Peers) -> None:
    peers.run(peers.worker.leave())
    assert [(body.finished, body.leave) for peer, body in peers.heard() if peer != COORDINATOR] == [(None, True)] * 3
    assert peers.worker.clock == 0


def test_the_coordinator_is_not_told_of_a_leaving_that_some_server_did_not_hear(peers: Peers) -> None:
    peers.on(Finish, *[silence] * 5, peer="server-1")
    with pytest.raises(Unreachable):
        peers.run(peers.worker.leave())
    assert COORDINATOR not in [peer for peer, _ in peers.heard()]


# --- hyperparameters ------------------------------------------------------------------------------------------------------------------


def test_pushes_carry_hyperparameters_only_where_they_differ(peers: Peers) -> None:
    peers.run(peers.worker.create_table(TableSpec("sparse", 1, SGD(0.5), mode=Async())))
    peers.heard()
    peers.push(0, table="sparse")
    assert [body.hyperparameters for _, body in peers.heard()] == [()]
    peers.worker.set_optimizer("sparse", SGD(0.25))
    peers.push(0, 1, table="sparse")
    assert [body.hyperparameters for _, body in peers.heard()] == [(Hyperparameters("sparse", {"lr": 0.25}),)] * 2
    peers.push(0)
    assert [body.hyperparameters for _, body in peers.heard()] == [()]  # another table's


def test_a_creator_with_other_numbers_keeps_its_own(peers: Peers) -> None:
    spec = peers.run(peers.worker.create_table(TableSpec("sparse", 1, SGD(0.125), mode=Async())))
    assert spec.optimizer == SGD(0.125)
    peers.heard()
    peers.push(0, table="sparse")
    assert [body.hyperparameters for _, body in peers.heard()] == [(Hyperparameters("sparse", {"lr": 0.125}),)]


def test_finished_carries_those_of_synchronous_tables_only(peers: Peers) -> None:
    peers.worker.set_optimizer("sparse", SGD(0.25))
    peers.worker.set_optimizer("dense", SGD(0.75))
    peers.run(peers.worker.end_step())
    peers.worker.set_optimizer("dense", SGD(1.0))  # counts for the next step
    peers.pull(0)
    assert [body.finished.hyperparameters for _, body in peers.heard()] == [(Hyperparameters("dense", {"lr": 0.75}),)] * 3
    peers.run(peers.worker.end_step())
    peers.run(peers.worker.flush())
    assert [body.finished.hyperparameters for _, body in peers.heard()][-1] == (Hyperparameters("dense", {"lr": 1.0}),)


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


# --- barriers -------------------------------------------------------------------------------------------------------------------------


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


# --- observers ------------------------------------------------------------------------------------------------------------------------


def observer(mode: Mode | None = None) -> Peers:
    peers = Peers(mode or Sync())
    peers.run(peers.worker.observe())
    peers.heard()
    return peers


def at_steps(peers: Peers, steps: dict[str, list[Any]]) -> None:
    """Let a server answer pulls (and open exports) as of these steps, one after another."""

    def hook(call: Call) -> Any:
        if call.peer not in steps or not isinstance(call.body, Pull | OpenExport):
            return None
        step = steps[call.peer].pop(0)
        if isinstance(step, StepPassed):
            return step
        return ExportOpened(1, 0, step) if isinstance(call.body, OpenExport) else Pulled((rows_of(step),), step)

    peers.hooks.append(hook)


def test_an_observer_carries_no_rank_and_finishes_nothing() -> None:
    peers = observer()
    peers.pull(0, table="sparse")
    (_, asked), (_, body) = peers.heard()
    assert asked == GetCluster()  # the job may be another by now, and with it the mode
    assert body.fence == Fence(1, OBSERVER, 0, 0, 0)
    assert body.finished is None
    for attempt in (peers.worker.end_step, peers.worker.flush, peers.worker.barrier):
        with pytest.raises(ObserverCannot):
            peers.run(attempt())
    operations: list[Callable[[], Any]] = [lambda: peers.worker.push([]), lambda: peers.worker.assign([], False)]
    for operation in operations:
        with pytest.raises(ObserverCannot):
            operation()
    with pytest.raises(ObserverCannot):
        peers.worker.set_optimizer("dense", SGD())
    assert peers.heard() == []


def test_an_observer_reads_synchronous_rows_of_one_step() -> None:
    peers = observer()
    at_steps(peers, {"server-0": [4, 5], "server-1": [5], "server-2": [5]})
    assert peers.pull(0, 1, 2) == [[5], [5], [5]]
    heard = [(peer, body.at_step) for peer, body in peers.heard() if isinstance(body, Pull)]
    assert heard == [("server-0", -1), ("server-1", -1), ("server-2", -1), ("server-0", 5)]


def test_an_observer_starts_again_where_a_step_has_passed() -> None:
    peers = observer()
    at_steps(peers, {"server-0": [4, StepPassed("server-0", 5, 6), 6], "server-1": [5, 6]})
    assert peers.pull(0, 1) == [[6], [6]]


def test_an_observer_that_never_catches_a_step_gives_up() -> None:
    peers = observer()
    passed = StepPassed("server-0", 5, 6)
    at_steps(peers, {"server-0": [4, passed] * 1000, "server-1": [5] * 1000})
    slow = peers.hooks[-1]
    peers.hooks[-1] = lambda call: None if (outcome := slow(call)) is None else After(1.0, outcome)
    with pytest.raises(StepPassed):
        peers.pull(0, 1)
    assert 25.0 <= peers.script.now_s < 30.0
    with pytest.raises(StepPassed):
        peers.run(peers.worker.open_exports("dense"))


def test_an_observer_reads_other_tables_as_they_are() -> None:
    peers = observer()
    at_steps(peers, {"server-0": [4], "server-1": [5]})
    assert peers.pull(0, 1, table="sparse") == [[4], [5]]


def test_an_observer_from_before_the_job_learns_its_mode_before_it_reads() -> None:
    peers = Peers(None, tables=(TableSpec("dense", 1),))
    peers.run(peers.worker.observe())
    assert peers.worker.mode is None
    peers.mode = Sync()
    at_steps(peers, {"server-0": [4, 5], "server-1": [5]})
    assert peers.pull(0, 1) == [[5], [5]]
    learned: Mode | None = peers.worker.mode
    assert (learned, peers.worker.world_size) == (Sync(), 2)


# --- looking --------------------------------------------------------------------------------------------------------------------------


def test_exports_of_a_synchronous_table_are_of_one_step() -> None:
    peers = observer()
    at_steps(peers, {"server-0": [4, 5], "server-1": [5], "server-2": [5]})
    opened = peers.run(peers.worker.open_exports("dense"))
    assert {server: answer.step for server, answer in opened.items()} == dict.fromkeys(NAMES, 5)


def test_a_workers_export_comes_after_its_finished_step(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.run(peers.worker.open_exports("dense"))
    assert kinds(peers.heard()) == [*[(name, "Finish") for name in NAMES], *[(name, "OpenExport") for name in NAMES]]


@pytest.mark.parametrize("kind", [GetStats, OpenExport])
def test_looking_goes_on_under_a_newer_map(peers: Peers, kind: Any) -> None:
    peers.map = shard_map(2)
    peers.on(kind, NotOwner("server-0", 2), peer="server-0")
    answers = peers.run(peers.worker.stats() if kind is GetStats else peers.worker.open_exports("dense"))
    assert sorted(answers) == list(NAMES)
    assert [body.fence.map_version for _, body in peers.heard() if isinstance(body, kind)] == [1] * 3 + [2] * 3

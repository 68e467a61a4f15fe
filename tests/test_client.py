"""The public client against the real cores: everything that a user would do, without a socket."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inprocess import COORDINATOR, PATIENCE, Fault, InProcess
from naive.table import NaiveTable
from polling import poll_until
from ps_proto.errors import (
    BarrierTimeout,
    ClientClosed,
    InvalidRequest,
    JobMismatch,
    ObserverCannot,
    PushPartlyTaken,
    Recovering,
    RowsUnset,
    StaleIncarnation,
    StalenessTimeout,
    TableFull,
    TableMismatch,
    UnfinishedPush,
    UnknownTable,
    Unreachable,
)
from ps_proto.requests import Assign, ClearTable, CloseExport, Finish, JoinJob, LeaveJob, OpenExport, Pull, Push, ReadExport
from ps_proto.values import SGD, Adagrad, Adam, Assigned, Async, BoundedStaleness, Constant, Mode, Sync, TableSpec, Uniform
from ps_worker.asking import Patience
from ps_worker.client import Client, connect
from ps_worker.records import Records

BRIEF = Patience(rpc_timeout_s=10.0, retry_timeout_s=0.05, wait_timeout_s=0.05, backoff=PATIENCE.backoff)
USER = TableSpec("user", 3, SGD(1.0), Uniform(-0.5, 0.5), seed=7)
ITEM = TableSpec("item", 2, SGD(1.0))
EXTREMES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
MODES = [Sync(), Async(), BoundedStaleness(1)]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)
Rows = npt.NDArray[np.float32]


def ones(count: int, dim: int = 3, value: float = 1.0) -> Rows:
    return np.full((count, dim), value, np.float32)


def alone(mode: Mode | None = None, servers: int = 2, *specs: TableSpec, **options: Any) -> tuple[InProcess, Client]:
    """A cluster with one worker, and its tables."""
    cluster = InProcess(servers, **options)
    client = cluster.connect(0, 1, mode or Async())
    for spec in specs or (USER, ITEM):
        client.create_table(spec)
    return cluster, client


def in_thread(action: Callable[[], Any]) -> "tuple[threading.Thread, list[Any]]":
    """Run it beside the test; the list gets its result or the exception that it ended in."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(action())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


# --- pulls -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 5])
@each_mode
def test_a_pull_returns_rows_in_any_order_with_repeats(servers: int, mode: Mode) -> None:
    _, client = alone(mode, servers)
    with client:
        ids = [5, 2**64 - 1, 5, 0, 7, 0]
        rows = client.pull("user", np.array(ids, np.uint64))
        assert (rows.dtype.name, rows.shape) == ("float32", (6, 3))
        assert rows.tobytes() == np.array(NaiveTable(USER).pull(ids)).tobytes()
        assert client.export("user")[0].size == 0, "a pull creates nothing"


def test_int64_ids_are_taken_bit_for_bit() -> None:
    _, client = alone()
    with client:
        unsigned = client.pull("user", np.array(EXTREMES, np.uint64))
        signed = client.pull("user", np.array(EXTREMES, np.uint64).view(np.int64))
        assert signed.tobytes() == unsigned.tobytes()
        assert client.pull("user", [-1]).tobytes() == unsigned[-1:].tobytes()


def test_lists_tuples_and_narrow_integers_are_ids() -> None:
    _, client = alone()
    with client:
        wanted = client.pull("user", np.array([3, 4], np.uint64))
        for ids in ([3, 4], (3, 4), np.array([3, 4], np.uint8), np.array([3, 4], ">i8"), np.array([3, 9, 4])[::2]):
            assert client.pull("user", ids).tobytes() == wanted.tobytes(), repr(ids)


@each_mode
def test_a_pull_of_nothing_is_empty(mode: Mode) -> None:
    _, client = alone(mode)
    with client:
        assert client.pull("user", []).shape == (0, 3)
        assert client.pull("user", np.empty(0, np.int64)).shape == (0, 3)
        assert client.pull({"user": [], "item": [1]})["item"].shape == (1, 2)
        assert client.pull({}) == {}


def test_a_dict_asks_each_server_once() -> None:
    cluster, client = alone()
    with client:
        before = len(cluster.calls)
        rows = client.pull({"user": np.arange(50), "item": [1, 1, 2]})
        assert len(cluster.calls) - before == 2
        assert list(rows) == ["user", "item"]
        assert (rows["user"].shape, rows["item"].shape) == ((50, 3), (3, 2))
        assert rows["user"].tobytes() == client.pull("user", np.arange(50)).tobytes()


@pytest.mark.parametrize("part_size_bytes", [1, 100, 1 << 20])
def test_parts_of_any_size_carry_the_same(part_size_bytes: int) -> None:
    _, client = alone(Async(), 2, part_size_bytes=part_size_bytes)
    with client:
        ids = np.arange(40, dtype=np.uint64)
        client.push("user", ids, np.arange(120, dtype=np.float32).reshape(40, 3))
        naive = NaiveTable(USER)
        naive.update(ids.tolist(), list(np.arange(120, dtype=np.float32).reshape(40, 3)), USER.optimizer.parameters())
        assert client.pull("user", ids).tobytes() == np.array(naive.pull(ids.tolist())).tobytes()


# --- pushes ----------------------------------------------------------------------------------------------------------------------


@each_mode
def test_repeats_in_a_push_are_summed(mode: Mode) -> None:
    _, client = alone(mode, 2, ITEM)
    with client:
        client.push("item", [7, 3, 7], np.array([[1, 2], [3, 4], [10, 20]], np.float32))
        client.end_step()
        assert client.pull("item", [3, 7]).tolist() == [[-3, -4], [-11, -22]]


def test_in_synchronous_mode_a_step_reads_the_weights_of_its_start() -> None:
    _, client = alone(Sync(), 2, ITEM)
    with client:
        client.push("item", [1], ones(1, 2))
        client.push("item", [1], ones(1, 2, 4.0))
        assert client.pull("item", [1]).tolist() == [[0, 0]]
        client.end_step()
        assert client.clock == 1
        assert client.pull("item", [1]).tolist() == [[-5, -5]]  # the pushes of a step add up


def test_in_asynchronous_mode_a_push_is_seen_at_once() -> None:
    _, client = alone(Async(), 2, ITEM)
    with client:
        client.push({"item": ([1], ones(1, 2))})
        assert client.pull("item", [1]).tolist() == [[-1, -1]]


@each_mode
def test_a_push_of_nothing_is_fine(mode: Mode) -> None:
    _, client = alone(mode)
    with client:
        client.push("user", [], np.empty((0, 3), np.float32))
        client.push({})
        client.end_step()
        assert client.export("user")[0].size == 0


def test_a_push_reaches_each_server_at_once_or_not_at_all() -> None:
    cluster, client = alone()
    with client:
        with pytest.raises(InvalidRequest, match="rows of table 'item'"):
            client.push({"user": (np.arange(9), ones(9)), "item": ([1], ones(1, 3))})
        assert client.export("user")[0].size == 0
        assert not [body for _, body in cluster.calls if isinstance(body, Push)]


def test_gradients_may_be_changed_once_the_push_is_acknowledged() -> None:
    _, client = alone(Sync(), 2, ITEM)
    with client:
        gradients = ones(1, 2)
        client.push("item", [1], gradients)
        gradients[:] = 100
        client.end_step()
        assert client.pull("item", [1]).tolist() == [[-1, -1]]


def test_assigned_rows_are_there_at_once_in_every_mode() -> None:
    for mode in MODES:
        _, client = alone(mode, 2, ITEM)
        with client:
            client.assign("item", [1, 2], np.array([[1, 2], [3, 4]], np.float32))
            client.assign("item", [2, 3], ones(2, 2, 9.0), only_absent=True)
            assert client.pull("item", [1, 2, 3]).tolist() == [[1, 2], [3, 4], [9, 9]]
            with pytest.raises(InvalidRequest, match="2 with 1 repeats"):
                client.assign("item", [1, 1], ones(2, 2))


def test_rows_without_a_value_wait_for_rank_0() -> None:
    cluster, client = alone(Async(), 2, TableSpec("dense", 2, SGD(1.0), Assigned()))
    with client, cluster.connect(patience=BRIEF) as observer:
        with pytest.raises(RowsUnset, match="1 rows of table 'dense' have no value: rank 0 has not assigned them"):
            observer.pull("dense", [0])
        with pytest.raises(InvalidRequest, match="assigned by rank 0 before"):
            client.push("dense", [0], ones(1, 2))
        client.assign("dense", [0], ones(1, 2))  # a push that every server refused leaves nothing behind
        client.push("dense", [0], ones(1, 2))
        assert observer.pull("dense", [0]).tolist() == [[0, 0]]


# --- rows with their state -------------------------------------------------------------------------------------------------------

MOMENTS = TableSpec("user", 3, Adam(lr=0.5))


def records_of(client: Client, table: str) -> Records:
    return Records.joined(list(client.export_records(table)))


def arrays_of(records: Records) -> list[npt.NDArray[Any]]:
    return [records.ids, records.rows, *records.state.values()]


@pytest.mark.parametrize("servers", [1, 2, 5])
@each_mode
def test_records_go_into_any_number_of_servers(servers: int, mode: Mode) -> None:
    _, source = alone(mode, 2, MOMENTS)
    _, target = alone(mode, servers, MOMENTS)
    with source, target:
        for _ in range(2):
            source.push("user", np.arange(40), np.arange(120, dtype=np.float32).reshape(40, 3))
            source.end_step()
        saved = records_of(source, "user")
        target.restore("user", saved)
        back = records_of(target, "user")
        assert saved.state["t"].tolist() == [[2]] * 40
        assert list(saved.state) == ["m", "v", "t"]
        assert [(array.dtype, array.tobytes()) for array in arrays_of(back)] == [
            (array.dtype, array.tobytes()) for array in arrays_of(saved)
        ]
        for client in (source, target):
            client.push("user", [1], ones(1))
            client.end_step()
        assert target.pull("user", [1]).tobytes() == source.pull("user", [1]).tobytes()


def test_records_of_an_empty_table_have_no_part() -> None:
    _, client = alone(Async(), 2, MOMENTS)
    with client:
        assert list(client.export_records("user")) == []


def test_a_table_of_another_kind_does_not_take_the_records() -> None:
    _, source = alone(Async(), 2, MOMENTS)
    _, target = alone(Async(), 2, TableSpec("user", 3, Adagrad()))
    with source, target:
        source.push("user", np.arange(40), ones(40))
        with pytest.raises(InvalidRequest, match=r"m float32\[3\], v float32\[3\], t uint32\[1\], but must be sum_of_squares float32\[3\]"):
            target.restore("user", records_of(source, "user"))
        assert target.export("user")[0].size == 0
        target.push("user", [1], ones(1))  # nothing is unfinished


@each_mode
def test_a_cleared_table_is_as_new_on_every_server(mode: Mode) -> None:
    _, client = alone(mode, 3, USER, ITEM)
    with client:
        new = client.pull("user", np.arange(40))
        for _ in range(2):
            client.push({"user": (np.arange(40), ones(40)), "item": ([1], ones(1, 2))})
            client.end_step()
        client.clear("user")
        assert client.export("user")[0].size == 0
        assert client.pull("user", np.arange(40)).tobytes() == new.tobytes()
        assert client.export("item")[0].tolist() == [1]


def test_a_clearing_whose_answer_is_lost_happens_once() -> None:
    cluster, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", np.arange(40), ones(40, 2))
        cluster.faults.append(Fault(ClearTable, "server-1:0"))
        client.clear("item")
        assert [type(body) for _, body in cluster.calls].count(ClearTable) == 3
        client.push("item", np.arange(40), ones(40, 2))
        assert client.pull("item", np.arange(40)).tolist() == ones(40, 2, -1.0).tolist()


def test_an_observer_neither_restores_nor_clears() -> None:
    cluster, client = alone(Async(), 2, ITEM)
    with client, cluster.connect() as observer:
        client.push("item", [1], ones(1, 2))
        with pytest.raises(ObserverCannot, match="clear a table"):
            observer.clear("item")
        with pytest.raises(ObserverCannot, match="restore rows"):
            observer.restore("item", records_of(observer, "item"))
        assert client.spec("item") == ITEM
        with pytest.raises(UnknownTable):
            client.spec("nobody's")


# --- what a user gets wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "gradients", "sentence"),
    [
        ([1], ones(1, 4), "rows of table 'user' is float32[1, 4], but must be float32[1, 3]. Nothing was applied."),
        ([1, 2], ones(1), "rows of table 'user' is float32[1, 3], but must be float32[2, 3]. Nothing was applied."),
        ([1], np.ones((1, 3)), "rows of table 'user' is float64[1, 3], but must be float32[1, 3]. Nothing was applied."),
        ([1], np.ones(3, np.float32), "rows of table 'user' is float32[3], but must be float32[1, 3]. Nothing was applied."),
        ([1], None, "rows of table 'user' is object[], but must be float32[1, 3]. Nothing was applied."),
        ([1.5], ones(1), "ids of table 'user' is float64[1], but must be uint64[n] or int64[n]. Nothing was applied."),
        ([[1]], ones(1), "ids of table 'user' is int64[1, 1], but must be uint64[n] or int64[n]. Nothing was applied."),
        ([True], ones(1), "ids of table 'user' is bool[1], but must be uint64[n] or int64[n]. Nothing was applied."),
        ([1], ones(1, 3, np.nan), "rows of table 'user' is not finite (inf or nan), but must be finite everywhere. Nothing was applied."),
        ([1], ones(1, 3, -np.inf), "rows of table 'user' is not finite (inf or nan), but must be finite everywhere. Nothing was applied."),
    ],
)
def test_a_wrong_push_is_refused_in_a_sentence_and_changes_nothing(ids: Any, gradients: Any, sentence: str) -> None:
    _, client = alone(Sync())
    with client:
        for write in (client.push, client.assign):
            with pytest.raises(InvalidRequest) as raised:
                write("user", ids, gradients)
            assert str(raised.value) == sentence
        with pytest.raises(InvalidRequest):
            client.push_async("user", ids, gradients)
        client.end_step()
        assert client.export("user")[0].size == 0
        client.push("user", [1], ones(1))  # it goes on


def test_sums_of_repeats_that_overflow_are_refused() -> None:
    _, client = alone()
    with client:
        with pytest.raises(InvalidRequest, match="not finite"):
            client.push("user", [1, 1], ones(2, 3, 3e38))
        client.push("user", [1], ones(1))


@pytest.mark.parametrize("action", ["pull", "push", "assign", "export", "set_optimizer"])
def test_an_unknown_table_is_named(action: str) -> None:
    _, client = alone()
    arguments: dict[str, tuple[Any, ...]] = {"pull": ([1],), "push": ([1], ones(1)), "assign": ([1], ones(1)), "set_optimizer": (SGD(),)}
    with client, pytest.raises(UnknownTable, match=r"There is no table named 'nobody'\. Create it first"):
        getattr(client, action)("nobody", *arguments.get(action, ()))


@pytest.mark.parametrize("table", [5, None, ["user"], b"user"])
def test_a_table_that_is_no_name_is_refused(table: Any) -> None:
    _, client = alone()
    with client:
        for attempt in (
            lambda: client.pull(table, [1]),
            lambda: client.push(table, [1], ones(1)),
            lambda: client.export(table),
            lambda: client.pull({5: [1]}),  # type: ignore[dict-item]
        ):
            with pytest.raises(InvalidRequest, match="a table's name, or a dict by name"):
                attempt()


def test_a_dict_that_is_no_dict_of_pairs_is_refused() -> None:
    _, client = alone()
    with client, pytest.raises(InvalidRequest, match="a pair \\(ids, rows\\)"):
        client.push({"user": [1, 2, 3]})  # type: ignore[dict-item]


def test_a_differing_spec_is_refused_and_the_same_one_is_not() -> None:
    cluster, client = alone()
    with client, cluster.connect() as observer:
        assert client.create_table(USER) == USER
        assert client.create_table(TableSpec("user", 3, SGD(0.5), Uniform(-0.5, 0.5), seed=7)).optimizer == SGD(0.5)
        with pytest.raises(TableMismatch, match="Table 'user' exists with dim 3, but dim 4 was asked for"):
            client.create_table(TableSpec("user", 4))
        with pytest.raises(InvalidRequest):
            client.create_table("user")  # type: ignore[arg-type]
        assert observer.pull("user", [1]).shape == (1, 3)


def test_set_optimizer_counts_from_this_step_on() -> None:
    for mode in MODES:
        _, client = alone(mode, 2, ITEM)
        with client:
            client.push("item", [1], ones(1, 2))
            client.end_step()
            client.set_optimizer("item", SGD(10.0))
            client.push("item", [1], ones(1, 2))
            client.end_step()
            assert client.pull("item", [1]).tolist() == [[-11, -11]]
            with pytest.raises(TableMismatch, match="optimizer sgd, but optimizer adam"):
                client.set_optimizer("item", Adam())
            with pytest.raises(InvalidRequest, match="an optimizer such as"):
                client.set_optimizer("item", 0.1)  # type: ignore[arg-type]


def test_the_creators_hyperparameters_are_used_by_those_who_only_use_the_table() -> None:
    cluster = InProcess()
    with cluster.connect(0, 2, Async()) as first, cluster.connect(1, 2) as second:
        first.create_table(TableSpec("item", 2, SGD(2.0)))
        second.push("item", [1], ones(1, 2))
        assert second.pull("item", [1]).tolist() == [[-2, -2]]
        second.create_table(TableSpec("item", 2, SGD(5.0)))
        second.push("item", [1], ones(1, 2))
        assert second.pull("item", [1]).tolist() == [[-7, -7]]


def test_ranks_that_ask_for_other_hyperparameters_of_a_synchronous_table_are_told() -> None:
    cluster = InProcess()
    first, second = cluster.connect(0, 2, Sync(), BRIEF), cluster.connect(1, 2, Sync(), BRIEF)
    first.create_table(TableSpec("item", 2, SGD(2.0)))
    second.create_table(TableSpec("item", 2, SGD(5.0)))
    first.end_step()
    with pytest.raises(StalenessTimeout):
        first.flush()
    second.end_step()
    with pytest.raises(InvalidRequest, match="hyperparameters of table 'item' for step 0 from rank 1"):
        second.flush()
    first._disconnect()
    second._disconnect()


def test_a_full_table_refuses_and_the_worker_goes_on() -> None:
    _, client = alone(Async(), 1, ITEM, rows_max=3)
    with client:
        with pytest.raises(TableFull, match="Table 'item' has no room beyond 3 rows"):
            client.push("item", np.arange(4), ones(4, 2))
        client.push("item", np.arange(3), ones(3, 2))
        assert client.export("item")[0].tolist() == [0, 1, 2]


# --- observers -------------------------------------------------------------------------------------------------------------------


def test_an_observer_reads_and_takes_no_part() -> None:
    cluster, client = alone(Sync(), 2, ITEM)
    with client, cluster.connect() as observer:
        assert (observer.rank, observer.world_size, observer.mode, observer.incarnation, observer.clock) == (None, 1, Sync(), 0, 0)
        for attempt, action in (
            (lambda: observer.push("item", [1], ones(1, 2)), "push"),
            (lambda: observer.push_async("item", [1], ones(1, 2)), "push"),
            (lambda: observer.assign("item", [1], ones(1, 2)), "assign rows"),
            (lambda: observer.create_table(ITEM), "create a table"),
            (lambda: observer.set_optimizer("item", SGD()), "set an optimizer"),
            (lambda: observer.end_step(), "end a step"),
            (lambda: observer.flush(), "flush"),
            (lambda: observer.barrier(), "wait at a barrier"),
        ):
            with pytest.raises(ObserverCannot, match=f"A client without a rank cannot {action}. Connect with rank="):
                attempt()
        client.push("item", [1], ones(1, 2))
        client.end_step()
        client.flush()
        assert observer.pull("item", [1]).tolist() == [[-1, -1]]
        assert observer.export("item")[0].tolist() == [1]
        assert set(observer.stats()) == {"server-0", "server-1"}


def test_an_observer_that_came_before_the_job_reads_synchronous_tables_at_one_step() -> None:
    cluster = InProcess(2)
    with cluster.connect() as observer:
        assert (observer.mode, observer.world_size) == (None, 0)
        with cluster.connect(0, 1, Sync()) as client:
            client.create_table(ITEM)
            ids = np.arange(20)
            client.push("item", ids, ones(20, 2))
            client.end_step()
            # Server 1 hears of the end of the step late: server 0 has folded it already.
            cluster.faults.append(Fault(Finish, "server-1:0", is_lost=True, count=1_000_000))
            with pytest.raises(Unreachable):
                client.flush()
            steps = [cluster.shards[name].step for name in ("server-0", "server-1")]
            assert steps == [1, 0]
            thread, outcome = in_thread(lambda: observer.pull("item", ids))
            poll_until(lambda: any(isinstance(body, Pull) and body.at_step == 1 for _, body in list(cluster.calls)))
            assert not outcome
            cluster.faults.clear()
            client.flush()
            thread.join()
            assert outcome[0].tolist() == ones(20, 2, -1.0).tolist()
            assert (observer.mode, observer.world_size) == (Sync(), 1)


# --- connecting ------------------------------------------------------------------------------------------------------------------


def test_a_client_knows_who_it_is() -> None:
    cluster = InProcess()
    with cluster.connect(1, 2, BoundedStaleness(3)) as client:
        assert (client.rank, client.world_size, client.mode, client.clock, client.incarnation) == (1, 2, BoundedStaleness(3), 0, 1)


def test_a_differing_job_is_refused_and_the_client_leaves_no_thread() -> None:
    cluster = InProcess()
    with cluster.connect(0, 1, Sync()):
        with pytest.raises(JobMismatch, match="world_size 1, but this worker asks for 2"):
            cluster.connect(1, 2, Sync())
        with pytest.raises(JobMismatch, match=r"mode Sync\(\), but this worker asks for Async\(\)"):
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
        {"rpc_timeout_s": 0},
        {"retry_timeout_s": -1.0},
        {"wait_timeout_s": float("nan")},
    ],
)
def test_wrong_arguments_of_connect_are_refused_before_anything_is_called(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        connect("nowhere:1", **arguments)


def test_a_cluster_without_its_servers_says_how_many_are_missing() -> None:
    cluster = InProcess(2)
    cluster.coordinator.shard_map = None
    cluster.coordinator.servers_expected = 3
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


@each_mode
def test_connecting_again_as_the_same_rank_replaces_the_worker(mode: Mode) -> None:
    cluster, old = alone(mode, 2, ITEM)
    old.push("item", [1], ones(1, 2))
    old.end_step()
    old.flush()
    old.push("item", [1], ones(1, 2, 100.0))  # of a step that is never finished
    with cluster.connect(0, 1, mode) as new:
        assert (new.incarnation, new.clock) == (2, 1 if mode == Sync() else 2)
        for attempt in (lambda: old.pull("item", [1]), old.barrier, old.flush, lambda: old.push("item", [1], ones(1, 2))):
            with pytest.raises(StaleIncarnation, match="Rank 0 has been taken over by incarnation 2; this is incarnation 1"):
                attempt()
        new.push("item", [1], ones(1, 2))
        new.end_step()
        assert new.pull("item", [1]).tolist() == ([[-2, -2]] if mode == Sync() else [[-102, -102]])
    with pytest.raises((StaleIncarnation, UnfinishedPush)):
        old.close()
    cluster.shards["server-0"].check_invariants()


@each_mode
def test_a_worker_that_comes_back_goes_on_above_its_steps(mode: Mode) -> None:
    cluster, client = alone(mode, 2, ITEM)
    for _ in range(3):
        client.push("item", [1], ones(1, 2))
        client.end_step()
    client.close()
    with cluster.connect(0, 1, mode) as again:
        assert again.clock >= 3
        again.push("item", [1], ones(1, 2))
        again.end_step()
        assert again.pull("item", [1]).tolist() == [[-4, -4]]


def test_a_join_whose_answer_is_lost_is_one_incarnation() -> None:
    cluster = InProcess()
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


# --- two workers -----------------------------------------------------------------------------------------------------------------


def test_two_workers_in_threads_meet_at_a_barrier() -> None:
    cluster = InProcess()
    with cluster.connect(0, 2, Async()) as first, cluster.connect(1, 2, Async()) as second:
        for _ in range(3):
            thread, outcome = in_thread(first.barrier)
            poll_until(lambda: bool(cluster.coordinator.job and cluster.coordinator.job.at_barrier))
            assert not outcome
            second.barrier()
            thread.join()
            assert outcome == [None]


def test_who_is_at_a_barrier_lets_another_read_the_next_step_first() -> None:
    cluster = InProcess()
    with cluster.connect(0, 2, Sync()) as first, cluster.connect(1, 2, Sync()) as second:
        for client in (first, second):
            client.create_table(ITEM)
            client.push("item", [1], ones(1, 2))
            client.end_step()
        thread, outcome = in_thread(second.barrier)
        assert first.pull("item", [1]).tolist() == [[-1, -1]]  # the mean of both
        assert not outcome
        first.barrier()
        thread.join()
        assert outcome == [None]


def test_a_barrier_that_nobody_else_reaches_names_the_rank() -> None:
    cluster = InProcess()
    with cluster.connect(0, 3, Async(), BRIEF) as client, pytest.raises(BarrierTimeout, match="for rank 1, 2"):
        client.barrier()


def test_ranks_agree_on_the_least_value_beside_what_they_do_meanwhile() -> None:
    cluster = InProcess()
    with cluster.connect(0, 2, Async()) as first, cluster.connect(1, 2, Async()) as second:
        first.create_table(ITEM)
        handles = [first.agree_async(5), first.agree_async(-2)]
        first.push("item", [1], ones(1, 2))
        first.end_step()
        assert not handles[0].done()
        others = [second.agree_async(3), second.agree_async(7)]
        assert [handle.result() for handle in handles + others] == [3, -2, 3, -2]


def test_two_synchronous_workers_read_one_step() -> None:
    cluster = InProcess(3)

    def work(rank: int) -> list[Any]:
        with cluster.connect(rank, 2, Sync()) as client:
            client.create_table(ITEM)
            read = []
            for step in range(6):
                read.append(client.pull("item", [1, 2, 3])[:, 0].tolist())
                client.push("item", [1 + rank, 3], ones(2, 2, 2.0 * (step + 1)))
                client.end_step()
            return read

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, range(2))
    expected = [0.0]
    for step in range(5):
        expected.append(expected[-1] - (step + 1))  # the mean of 2·(step + 1) and nothing
    assert first == second == [[value, value, 2 * value] for value in expected]


def test_a_wait_for_another_rank_ends_and_names_it() -> None:
    cluster = InProcess()
    with cluster.connect(1, 2, BoundedStaleness(0), BRIEF) as client:
        client.create_table(ITEM)
        client.pull("item", [1])
        client.end_step()
        with pytest.raises(StalenessTimeout, match=r"Step 1 waited \d+\.\d s for rank 0, which has finished 0 steps"):
            client.pull("item", [1])


def test_who_leaves_is_waited_for_no_more() -> None:
    cluster = InProcess()
    first, second = cluster.connect(0, 2, Sync()), cluster.connect(1, 2, Sync())
    first.create_table(ITEM)
    second.push("item", [1], ones(1, 2, 4.0))
    thread, outcome = in_thread(second.close)
    poll_until(lambda: all(shard.clocks.left_after for shard in cluster.shards.values()))
    assert not outcome, "it waits for the fold of its last step"
    first.push("item", [1], ones(1, 2, 2.0))
    first.end_step()
    assert first.pull("item", [1]).tolist() == [[-3, -3]]
    thread.join()
    assert outcome == [None]
    first.push("item", [1], ones(1, 2, 2.0))
    first.end_step()
    assert first.pull("item", [1]).tolist() == [[-5, -5]]  # a roster of one
    first.close()


# --- queued --------------------------------------------------------------------------------------------------------------------


@each_mode
def test_queued_pushes_come_in_order_and_end_step_waits_for_them(mode: Mode) -> None:
    cluster, client = alone(mode, 2, TableSpec("item", 2, Adagrad(0.5)))
    with client:
        handles = [client.push_async("item", [1], ones(1, 2, float(k + 1))) for k in range(8)]
        client.end_step()
        assert all(handle.done() for handle in handles)
        assert {handle.result() for handle in handles} == {None}
        order = [body.seq for _, body in cluster.calls if isinstance(body, Push)]
        assert order == list(range(1, 9))
        naive = NaiveTable(TableSpec("item", 2, Adagrad(0.5)))
        gradients = [ones(1, 2, float(sum(range(1, 9))))] if mode == Sync() else [ones(1, 2, float(k + 1)) for k in range(8)]
        for gradient in gradients:
            naive.update([1], gradient, Adagrad(0.5).parameters())
        assert client.pull("item", [1]).tobytes() == naive.pull([1])[0].tobytes()


@pytest.mark.parametrize(("mode", "steps"), [(Async(), 0), (BoundedStaleness(2), 0), (BoundedStaleness(1), 1), (Sync(), 2)], ids=str)
def test_a_pull_for_a_later_step_is_sent_once_its_mode_lets_it(mode: Mode, steps: int) -> None:
    cluster, client = alone(mode, 1, ITEM)
    with client:
        handle = client.pull_async("item", [1], clock=2)
        cancelled = client.pull_async("item", [1], clock=3)
        cancelled.cancel()
        for _ in range(steps):
            assert not client.can_pull_ahead(["item"], 2)
            assert not any(isinstance(body, Pull) for _, body in cluster.calls)
            client.end_step()
        assert client.can_pull_ahead(["item"], 2)
        assert handle.result().tolist() == [[0, 0]]
        for _ in range(4):
            client.end_step()
        client.flush()
        assert [body.fence.clock for _, body in cluster.calls if isinstance(body, Pull)] == [2]


def test_a_queued_pull_is_of_the_step_at_work() -> None:
    cluster, client = alone(Sync(), 1, ITEM)
    with client:
        gate = threading.Event()

        def hold_pulls(address: str, body: Any) -> None:
            if isinstance(body, Pull):
                assert gate.wait(5.0)

        cluster.before = hold_pulls
        handle = client.pull_async("item", [1])
        client.push("item", [1], ones(1, 2))

        def finish() -> None:
            client.end_step()
            client.flush()

        thread, outcome = in_thread(finish)
        thread.join(0.1)  # were end_step not to wait, the step would be folded by then
        assert not outcome
        gate.set()
        thread.join()
        assert outcome == [None]
        assert handle.result().tolist() == [[0, 0]]  # not of the next step, and not StepPassed
        assert client.pull_async({"item": [1]}).result()["item"].tolist() == [[-1, -1]]


def test_a_queued_push_that_fails_says_so_and_is_unfinished_business() -> None:
    cluster, client = alone(Async(), 1, ITEM)
    with client:
        cluster.down.add("server-0:0")
        handle = client.push_async("item", [1], ones(1, 2))
        with pytest.raises(Unreachable, match="server-0 at server-0:0 did not answer"):
            handle.result(5.0)
        next_handle = client.push_async("item", [2], ones(1, 2))
        with pytest.raises(UnfinishedPush):
            next_handle.result(5.0)
        with pytest.raises(UnfinishedPush, match="Push 1 of step 0 was never acknowledged everywhere"):
            client.end_step()
        cluster.down.clear()
        client.retry_push()
        client.end_step()
        assert client.export("item")[0].tolist() == [1]


# --- faults ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [Push, Pull, Finish, Assign, OpenExport, ReadExport, LeaveJob], ids=lambda body: body.__name__)
@pytest.mark.parametrize("is_lost", [True, False], ids=["request", "answer"])
@each_mode
def test_a_lost_message_changes_nothing(body: type, is_lost: bool, mode: Mode) -> None:
    cluster, client = alone(mode, 2, TableSpec("item", 2, SGD(1.0)))
    fault = Fault(body, is_lost=is_lost, count=2)
    cluster.faults.append(fault)
    with client:
        client.assign("item", np.arange(20), ones(20, 2, 50.0))
        for _ in range(3):
            client.pull("item", np.arange(20))
            client.push("item", np.arange(20), ones(20, 2))
            client.end_step()
        ids, rows = client.export("item")
        assert ids.tolist() == list(range(20))
        assert rows.tolist() == ones(20, 2, 47.0).tolist()
    assert fault.fired == 2
    assert cluster.coordinator.job is not None
    assert cluster.coordinator.job.is_over


@each_mode
def test_a_push_that_one_server_did_not_answer_is_sent_again_under_its_name(mode: Mode) -> None:
    cluster, client = alone(mode, 2, ITEM)
    gradients = ones(20, 2)
    with client:
        cluster.down.add("server-1:0")
        with pytest.raises(Unreachable, match="server-1"):
            client.push("item", np.arange(20), gradients)
        attempts: list[Callable[[], Any]] = [
            lambda: client.push("item", [1], ones(1, 2)),
            lambda: client.assign("item", [1], ones(1, 2)),
            client.end_step,
            client.flush,
        ]
        for attempt in attempts:
            with pytest.raises(UnfinishedPush, match=r"Call client.retry_push\(\), or connect again with this rank"):
                attempt()
        gradients[:] = 1000.0  # the caller's buffer is free again: the push keeps what it was
        with pytest.raises(Unreachable):
            client.retry_push()
        cluster.down.clear()
        client.retry_push()
        client.retry_push()  # nothing to do
        client.end_step()
        assert client.pull("item", np.arange(20)).tolist() == ones(20, 2, -1.0).tolist()
        names = {(body.fence.clock, body.seq) for _, body in cluster.calls if isinstance(body, Push)}
        assert names == {(0, 1)}


def test_a_push_that_one_server_refused_and_another_took_stays_unfinished() -> None:
    cluster, client = alone(Async(), 2, TableSpec("item", 2, SGD(1.0)), rows_max=40)
    with client:
        client.push("item", np.arange(40), ones(40, 2))
        cluster.shards["server-0"].tables["item"]._slab.capacity = len(cluster.shards["server-0"].tables["item"])
        with pytest.raises(PushPartlyTaken, match="has no room beyond"):
            client.push("item", np.arange(60), ones(60, 2))
        with pytest.raises(UnfinishedPush):
            client.push("item", [1], ones(1, 2))
        cluster.shards["server-0"].tables["item"]._slab.capacity = 40
        client.retry_push()
        assert client.pull("item", np.arange(60))[:, 0].tolist() == [-2.0] * 40 + [-1.0] * 20


def test_repeats_whose_sum_overflows_on_one_of_two_servers_are_refused_whole() -> None:
    _, client = alone(Async(), 2, ITEM)
    with client:
        rows = ones(41, 2)
        rows[0] = rows[40] = 3e38
        with pytest.raises(InvalidRequest, match="once repeats are summed"):
            client.push("item", [*range(40), 0], rows)
        assert client.export("item")[0].size == 0
        client.push("item", [1], ones(1, 2))


def test_the_error_of_a_queued_push_that_nobody_asked_about_is_raised_at_the_end_of_the_step() -> None:
    _, client = alone(Async(), 1, ITEM, rows_max=3)
    with client:
        client.push_async("item", np.arange(4), ones(4, 2))
        with pytest.raises(TableFull):
            client.end_step()
        client.end_step()  # said once
        heard = client.push_async("item", np.arange(4), ones(4, 2))
        with pytest.raises(TableFull):
            heard.result()
        client.end_step()


def test_numbers_of_numpy_are_numbers() -> None:
    _, client = alone(Async(), 1, TableSpec("item", np.int64(2), seed=np.uint64(2**64 - 1)))  # type: ignore[arg-type]
    with client:
        assert client.pull_async("item", [1], clock=np.int64(0)).result().shape == (1, 2)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="clock"):
            client.pull_async("item", [1], clock="a")  # type: ignore[arg-type]


def test_an_observer_learns_the_mode_of_a_job_that_came_after_it() -> None:
    cluster, first = alone(Async(), 2, ITEM)
    watching = cluster.connect()
    watching.pull("item", [1])
    first.close()
    with cluster.connect(0, 1, Sync()), watching:
        watching.pull("item", [1])
        assert watching.mode == Sync()


def test_the_cores_agree_after_everything() -> None:
    cluster, client = alone(Sync(), 3)
    with client:
        client.push({"user": (np.arange(30), ones(30)), "item": ([1], ones(1, 2))})
    for shard in cluster.shards.values():
        shard.check_invariants()
        assert (shard.step, shard.staging.rows_count) == (1, 0)


# --- looking ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 5])
@each_mode
def test_export_gives_every_row_ascending(servers: int, mode: Mode) -> None:
    _, client = alone(mode, servers, ITEM)
    with client:
        assert [array.shape for array in client.export("item")] == [(0,), (0, 2)]
        given = np.array([9, 2**64 - 1, 0, 2**63, 5], np.uint64)
        client.assign("item", given, np.arange(10, dtype=np.float32).reshape(5, 2))
        ids, rows = client.export("item")
        assert (ids.dtype.name, rows.dtype.name) == ("uint64", "float32")
        assert ids.tolist() == sorted(given.tolist())
        assert rows.tolist() == [[4, 5], [8, 9], [0, 1], [6, 7], [2, 3]]


def test_export_iter_is_of_one_instant_while_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ps_worker.exporting.PART_BYTES", 7 * 16)  # 7 rows of a server at a time
    cluster, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", np.arange(60), ones(60, 2))
        seen: list[int] = []
        for ids, rows in client.export_iter("item"):
            assert rows.tolist() == ones(len(ids), 2, -1.0).tolist()
            seen += ids.tolist()
            client.push("item", np.arange(70), ones(70, 2))
        assert seen == list(range(60))
        assert len([body for _, body in cluster.calls if isinstance(body, ReadExport)]) > 8
        assert all(len(shard._exports) == 0 for shard in cluster.shards.values())


def test_an_export_that_is_given_up_is_closed_on_the_servers() -> None:
    cluster, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", np.arange(60), ones(60, 2))
        parts = client.export_iter("item")
        next(parts)
        assert all(len(shard._exports) == 1 for shard in cluster.shards.values())
        parts.close()  # type: ignore[attr-defined]
        assert all(len(shard._exports) == 0 for shard in cluster.shards.values())


def test_an_export_that_fails_ends_with_its_error_and_asks_no_more() -> None:
    cluster, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", np.arange(60), ones(60, 2))
        cluster.faults.append(Fault(ReadExport, "server-1:0", is_lost=True, count=1_000_000))
        with pytest.raises(Unreachable, match="server-1"):
            client.export("item")
        assert not [body for _, body in cluster.calls if isinstance(body, CloseExport)]


def test_an_export_of_a_worker_sees_its_finished_steps() -> None:
    _, client = alone(Sync(), 2, ITEM)
    with client:
        client.push("item", [1], ones(1, 2))
        assert client.export("item")[0].size == 0
        client.end_step()
        assert client.export("item")[1].tolist() == [[-1, -1]]


def test_stats_are_by_server_and_table() -> None:
    _, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", np.arange(60), ones(60, 2))
        stats = client.stats()
        assert sorted(stats) == ["server-0", "server-1"]
        assert sum(server.tables["item"]["rows"] for server in stats.values()) == 60


# --- the end ---------------------------------------------------------------------------------------------------------------------


@each_mode
def test_close_finishes_a_step_that_has_pushes_leaves_and_waits(mode: Mode) -> None:
    cluster, client = alone(mode, 2, ITEM)
    with client:
        client.push_async("item", np.arange(20), ones(20, 2))
    assert client.clock == 1
    assert cluster.coordinator.job is not None
    assert cluster.coordinator.job.is_over
    with cluster.connect() as observer:
        assert observer.pull("item", np.arange(20)).tolist() == ones(20, 2, -1.0).tolist()


def test_close_does_not_finish_a_step_without_pushes() -> None:
    _, client = alone(Sync())
    client.pull("user", [1])
    client.end_step()
    client.close()
    assert client.clock == 1


def fail_in_with(client: Client, action: Callable[[], Any]) -> None:
    """Leave `with` by an exception, after the action."""

    def body() -> None:
        with client:
            action()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()


def test_an_exception_in_with_neither_finishes_the_step_nor_leaves() -> None:
    cluster, client = alone(Sync(), 2, ITEM)
    fail_in_with(client, lambda: client.push("item", [1], ones(1, 2)))
    job = cluster.coordinator.job
    assert job is not None
    assert job.ranks == {0: 1}
    assert all(shard.step == 0 for shard in cluster.shards.values())
    with cluster.connect(0, 1, Sync()) as again:  # redoes the step
        assert again.clock == 0
        again.push("item", [1], ones(1, 2))
        again.end_step()
        assert again.pull("item", [1]).tolist() == [[-1, -1]]


def test_an_exception_in_with_does_not_wait_for_what_is_queued() -> None:
    cluster, client = alone(Async(), 2, ITEM, patience=Patience(10.0, 1_000.0, 1_000.0, PATIENCE.backoff))
    cluster.down.add("server-0:0")
    cluster.down.add("server-1:0")
    handles: list[Any] = []
    fail_in_with(client, lambda: handles.extend([client.push_async("item", np.arange(20), ones(20, 2)), client.pull_async("item", [1])]))
    assert all(handle.done() for handle in handles)
    for handle in handles:
        with pytest.raises(ClientClosed):
            handle.result()


def test_close_with_unfinished_business_says_so_and_still_closes() -> None:
    cluster, client = alone(Sync(), 2, ITEM)
    cluster.down.add("server-1:0")
    with pytest.raises(Unreachable):
        client.push("item", np.arange(20), ones(20, 2))
    with pytest.raises(UnfinishedPush):
        client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.retry_push()


def test_a_closed_client_refuses_everything_by_name() -> None:
    _, client = alone()
    parts = client.export_iter("user")
    client.push("user", np.arange(40), ones(40))
    next(parts)
    saved = records_of(client, "user")
    client.close()
    client.close()
    for attempt, action in (
        (lambda: client.pull("user", [1]), "pull"),
        (lambda: client.pull_async("user", [1]), "pull"),
        (lambda: client.push("user", [1], ones(1)), "push"),
        (lambda: client.push_async("user", [1], ones(1)), "push"),
        (lambda: client.assign("user", [1], ones(1)), "assign rows"),
        (client.retry_push, "push"),
        (client.end_step, "end a step"),
        (client.flush, "flush"),
        (client.barrier, "wait at a barrier"),
        (lambda: client.create_table(USER), "create a table"),
        (lambda: client.set_optimizer("user", SGD()), "set an optimizer"),
        (lambda: client.export("user"), "export"),
        (lambda: next(client.export_records("user")), "export"),
        (lambda: client.restore("user", saved), "restore rows"),
        (lambda: client.clear("user"), "clear a table"),
        (lambda: client.spec("user"), "ask for a table"),
        (lambda: next(parts), "export"),
        (client.stats, "ask for stats"),
    ):
        with pytest.raises(ClientClosed, match=f"This client is closed, so it cannot {action}. Connect again."):
            attempt()
    with pytest.raises(ClientClosed), client:
        client.pull("user", [1])


def test_constant_rows_read_as_their_constant_before_anybody_pushes() -> None:
    _, client = alone(Sync(), 2, TableSpec("c", 2, SGD(1.0), Constant(0.25)))
    with client:
        assert client.pull("c", EXTREMES).tolist() == ones(5, 2, 0.25).tolist()

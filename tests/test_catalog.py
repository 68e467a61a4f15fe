"""Tables by name on one server: opened, replaced where a creation failed elsewhere, and given up where their optimizer raises."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from conversation import Conversation, ids, map_of, rows
from inprocess import InProcess
from ps_proto.errors import InvalidRequest, OptimizerFailed, UnfinishedPush, UnknownTable
from ps_proto.orders import InstallTable
from ps_proto.requests import ClearTable, Decision, Finished, Hyperparameters, OpenExport, Pull, Push, StepDecided
from ps_proto.values import SGD, Adagrad, Async, BoundedStaleness, Constant, Optimizer, Sync, TableSpec, register_optimizer
from ps_server.shard.catalog import Catalog
from ps_server.shard.counters import Counters
from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, StateColumn
from ps_server.shard.registering import register_row_optimizer
from ps_server.shard.slab import Slab
from registered import taken_back
from sharding.hashing import buckets_of, table_salt

UNLUCKY = 13.0
UNLUCKIER = 4 * UNLUCKY  # also as the mean over some ranks


@dataclass(frozen=True)
class Brittle(Optimizer):
    """w -= lr·g, until a number of the gradient is 13 or more."""

    kind = "brittle"
    lr: float = 1.0


class BrittleRows(RowOptimizer):
    kind = "brittle"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return ()

    def apply(
        self,
        slab: Slab,
        slots: npt.NDArray[np.int32],
        gradients: npt.NDArray[np.float32],
        parameters: dict[str, float],
        origin: Origin,
    ) -> None:
        for slot, gradient in zip(slots, gradients, strict=True):
            if gradient.max() >= UNLUCKY:
                raise ArithmeticError("an unlucky number")
            slab.records[slot] -= np.float32(parameters["lr"]) * gradient


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with taken_back():
        register_optimizer(Brittle)
        register_row_optimizer(BrittleRows)
        yield


BRITTLE = TableSpec("brittle", 1, Brittle())
SOUND = TableSpec("sound", 1, SGD(lr=1.0))
MINE = Brittle().parameters()
LINE = BrittleRows.apply.__code__.co_firstlineno + 10
UNLUCKY_ROWS = rows("brittle", {7: 1.0, 8: UNLUCKIER, 9: 1.0})


def refused(talk: Conversation, body: object) -> OptimizerFailed:
    with pytest.raises(OptimizerFailed) as raised:
        talk.get(body)
    assert (raised.value.server, raised.value.table, raised.value.optimizer) == ("server-0", "brittle", "brittle")
    return raised.value


def test_the_error_names_the_place_and_the_way_out() -> None:
    talk = Conversation(Async(), 1, (BRITTLE,))
    assert str(refused(talk, Push(talk.fence(0), 1, (UNLUCKY_ROWS,)))) == (
        f"Optimizer 'brittle' of table 'brittle' raised on server-0 ({__file__}, line {LINE}: ArithmeticError: an unlucky number). "
        "It may have left rows half updated, so server-0 neither reads nor changes that table any more. "
        "Mend the plugin, start the cluster again and load the last saved model."
    )


# --- applied on arrival ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first", [True, False])
def test_the_other_tables_of_a_push_are_updated_exactly_once(is_first: bool) -> None:
    talk = Conversation(Async(), 1, (BRITTLE, SOUND))
    sound = rows("sound", dict.fromkeys(range(1, 20_001), 2.0))  # in nearly every bucket, those of the other table too
    buckets = buckets_of(table_salt("sound"), sound.ids)
    assert np.isin(buckets_of(table_salt("brittle"), UNLUCKY_ROWS.ids), buckets).any()
    push = Push(talk.fence(0), 1, (UNLUCKY_ROWS, sound) if is_first else (sound, UNLUCKY_ROWS))
    for _ in range(3):
        refused(talk, push)
        assert set(talk.read(*sound.ids.tolist(), table="sound")) == {-2.0}
    assert talk.shard.window.fresh(0, buckets, 1) is not None, "it is recorded"
    talk.push(0, 0, {5: 1.0}, seq=2, table="sound")
    assert talk.read(5, table="sound") == [-3.0]


def test_a_table_that_failed_is_neither_read_nor_changed_any_more() -> None:
    talk = Conversation(Async(), 1, (BRITTLE, SOUND))
    refused(talk, Push(talk.fence(0), 1, (UNLUCKY_ROWS,)))
    held = talk.shard.tables["brittle"].snapshot().read(0, 9)
    part = rows("brittle", {7: 1.0})
    for body in (
        Pull(talk.fence(0), (ids("brittle", 7),)),
        Pull(talk.fence(), (ids("sound", 7), ids("brittle", 7))),
        Push(talk.fence(0), 2, (part, rows("sound", {7: 1.0}))),
        OpenExport(talk.fence(0), "brittle"),
        ClearTable(talk.fence(0), 2, "brittle"),
    ):
        refused(talk, body)
    with pytest.raises(OptimizerFailed):
        talk.assign(0, 0, {7: 1.0}, seq=2, table="brittle")
    assert [array.tobytes() for array in talk.shard.tables["brittle"].snapshot().read(0, 9)] == [array.tobytes() for array in held]
    assert talk.read(7, table="sound") == [0.0]


def test_one_who_waits_for_a_table_is_told_when_it_fails() -> None:
    talk = Conversation(BoundedStaleness(0), 2, (BRITTLE, SOUND))
    waiting = talk.pull(0, 1, 7, table="brittle", finished=Finished(0))
    other = talk.pull(0, 1, 7, table="sound", finished=Finished(0))
    assert waiting.is_waiting
    refused(talk, Push(talk.fence(1), 1, (UNLUCKY_ROWS,)))
    with pytest.raises(OptimizerFailed):
        _ = waiting.answer
    assert other.is_waiting
    talk.finish(1, 0)
    assert other.rows == [0.0]


# --- folded ------------------------------------------------------------------------------------------------------------------


def test_a_fold_goes_on_with_the_other_tables_and_wakes_those_who_wait() -> None:
    talk = Conversation(Sync(), 2, (BRITTLE, SOUND))
    for rank in (0, 1):
        talk.get(Push(talk.fence(rank), 1, (UNLUCKY_ROWS, rows("sound", {7: 1.0}))))
    talk.push(0, 0, {8: 1.0}, seq=2, table="sound")
    both = talk.ask(Pull(talk.fence(0, 1), (ids("sound", 7), ids("brittle", 7)), Finished(0), 60.0))
    export = talk.ask(OpenExport(talk.fence(0, 1), "brittle", 60.0))
    sound = talk.pull(0, 1, 7, 8, table="sound", finished=Finished(0))
    assert both.is_waiting
    assert export.is_waiting
    last = talk.pull(1, 1, 7, table="brittle", finished=Finished(0))
    assert sound.rows == [-1.0, -0.5]
    for question in (both, export, last):
        with pytest.raises(OptimizerFailed):
            _ = question.answer
    assert talk.step() == 1


def test_the_steps_after_go_on_although_their_ranks_name_the_failed_tables_numbers() -> None:
    talk = Conversation(Sync(), 2, (BRITTLE, SOUND))
    wanted = (Hyperparameters("brittle", MINE), Hyperparameters("sound", SGD(lr=2.0).parameters()))
    talk.get(Push(talk.fence(0), 1, (UNLUCKY_ROWS,)))
    talk.finish(0, 0, *wanted)
    talk.get(Push(talk.fence(0, 1), 1, (rows("brittle", {7: 1.0}), rows("sound", {7: 1.0}))))  # staged before the table fails
    talk.finish(1, 0, *wanted)
    failed = talk.shard.tables["brittle"].pull(UNLUCKY_ROWS.ids)
    talk.push(1, 1, {7: 3.0}, table="sound")
    talk.finish(0, 1, *wanted)
    talk.finish(1, 1, *wanted)
    assert talk.step() == 2
    assert talk.read(7, table="sound") == [-4.0]
    assert talk.shard.tables["brittle"].pull(UNLUCKY_ROWS.ids).tobytes() == failed.tobytes()
    refused(talk, Push(talk.fence(0, 2), 1, (rows("brittle", {7: 1.0}),)))
    refused(talk, Pull(talk.fence(0, 2), (ids("brittle", 7),)))
    talk.shard.check_invariants()


def test_a_decision_that_names_the_failed_tables_numbers_is_followed() -> None:
    talk = Conversation(Sync(backup_workers=1), 2, (BRITTLE, SOUND), shard_map=map_of(1, "server-1", "server-0"))
    talk.shard.catalog.failures["brittle"] = OptimizerFailed("server-0", "brittle", "brittle", "why")
    talk.get(StepDecided(talk.fence(), 1, Decision(0, (0,), 1, (Hyperparameters("brittle", MINE),))))
    assert talk.step() == 1


def test_a_client_is_told_at_once_never_asks_again_and_may_go_on_with_other_tables() -> None:
    cluster = InProcess(servers=2)
    with cluster.connect(0, 1, Sync()) as client:
        client.create_table(BRITTLE)
        client.create_table(SOUND)
        client.push("brittle", [7], [[UNLUCKIER]])
        client.push("sound", range(100), np.ones((100, 1), np.float32))
        client.end_step()
        client.flush()
        before = len(cluster.calls)
        with pytest.raises(OptimizerFailed):
            client.pull("brittle", [7])
        assert len(cluster.calls) == before + 1
        assert client.pull("sound", [7, 8]).tolist() == [[-1.0], [-1.0]]
        client.push("sound", [7], [[1.0]])
        client.end_step()  # and close() waits for its fold


def test_a_push_that_fails_keeps_its_name_until_the_rank_is_taken_anew() -> None:
    cluster = InProcess(servers=2)
    first = cluster.connect(0, 1, Async())
    first.create_table(BRITTLE)
    first.create_table(SOUND)
    with pytest.raises(OptimizerFailed):
        first.push("brittle", [7], [[UNLUCKIER]])
    with pytest.raises(UnfinishedPush):
        first.push("sound", [7], [[1.0]])
    with pytest.raises(OptimizerFailed):
        first.retry_push()
    with cluster.connect(0, 1, Async()) as client:
        client.push("sound", [7], [[1.0]])
        assert client.pull("sound", [7]).tolist() == [[-1.0]]


# --- opened ------------------------------------------------------------------------------------------------------------------


def test_an_unknown_table_is_no_failure() -> None:
    with pytest.raises(UnknownTable):
        Catalog("server-0", Counters()).get("nobody's")


OTHERS = [
    replace(SOUND, dim=2),
    replace(SOUND, optimizer=Adagrad()),
    replace(SOUND, optimizer=SGD(lr=0.5)),  # the same table elsewhere, but what a push without numbers means must not depend on the server
    replace(SOUND, initializer=Constant(1.0)),
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_later_creation_replaces_a_table_that_nobody_has_used(other: TableSpec) -> None:
    talk = Conversation(Async(), 1, ())
    talk.get(InstallTable(1, SOUND, 4))
    talk.get(InstallTable(1, other, 5))
    talk.get(InstallTable(1, SOUND, 4))  # it was on its way all the time
    assert talk.shard.tables["sound"].spec == other
    pulled = talk.get(Pull(talk.fence(), (ids("sound", 7),)))
    assert pulled.rows[0].shape == (1, other.dim)  # type: ignore[attr-defined]  # of Pulled


@pytest.mark.parametrize("other", OTHERS, ids=str)
@pytest.mark.parametrize("use", ["rows", "staged", "read"])
def test_a_table_that_is_in_use_is_not_replaced(other: TableSpec, use: str) -> None:
    talk = Conversation(Sync() if use == "staged" else Async(), 1, ())
    talk.get(InstallTable(1, SOUND, 4))
    match use:
        case "rows":
            talk.assign(0, 0, {7: 5.0}, table="sound")
        case "staged":
            talk.push(0, 0, {7: 5.0}, table="sound")
        case "read":
            talk.read(7, table="sound")
    before = talk.shard.tables["sound"]
    with pytest.raises(InvalidRequest, match="table 'sound' is open so on server-0, and in use"):
        talk.get(InstallTable(1, other, 5))
    talk.get(InstallTable(1, SOUND, 6))
    assert talk.shard.tables["sound"] is before


def test_a_name_that_a_server_refused_is_free_for_another_table() -> None:
    cluster = InProcess(servers=3)
    failing = cluster.shards["server-1"].catalog
    with cluster.connect(0, 1, Async()) as client:
        opened = failing.install
        failing.install = lambda spec, creation: failing.get("nobody's")  # type: ignore[method-assign,assignment]
        with pytest.raises(UnknownTable):
            client.create_table(SOUND)
        failing.install = opened  # type: ignore[method-assign]
        client.create_table(TableSpec("sound", 2, Adagrad(), Constant(3.0)))
        assert client.pull("sound", range(50)).tolist() == [[3.0, 3.0]] * 50
    assert {shard.tables["sound"].spec.dim for shard in cluster.shards.values()} == {2}

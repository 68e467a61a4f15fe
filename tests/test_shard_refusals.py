"""What a shard refuses, and that a refused request has changed nothing."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from conversation import ITEM, USER, Conversation, ids, map_of, rows, wants
from ps_proto.errors import (
    InvalidRequest,
    MapBehind,
    NotOwner,
    Overloaded,
    ParameterServerError,
    Recovering,
    RequestTooLarge,
    RolledBack,
    StaleIncarnation,
    StalenessTimeout,
    TableFull,
    UnknownTable,
)
from ps_proto.methods import METHODS, PARAMETER_SERVER
from ps_proto.orders import FenceRank
from ps_proto.requests import OBSERVER, Assign, Fence, Finish, Finished, Hyperparameters, OpenExport, OpenLane, Pull, Push, TableRows
from ps_proto.values import Adagrad, Async, BoundedStaleness, Mode, Sync, TableSpec
from ps_server.shard import parking
from samples import REQUESTS, type_name

MODES: list[Mode] = [Sync(), Async(), BoundedStaleness(1)]
IDS = np.array([7], np.uint64)
Ask = Callable[[], object]


# --- fences ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fence", "error"),
    [
        (Fence(1, 1, incarnation=2, timeline=-1), RolledBack),
        (Fence(1, 1, incarnation=2, timeline=1), Recovering),
        (Fence(0, 1, incarnation=2), NotOwner),
        (Fence(2, 1, incarnation=2), MapBehind),
        (Fence(1, 1, incarnation=1), StaleIncarnation),
        (Fence(1, 1, incarnation=3), Recovering),
        (Fence(1, 2), InvalidRequest),
        (Fence(1, -2), InvalidRequest),
        (Fence(1, 0, clock=2**32), InvalidRequest),
        (Fence(1, 0, clock=-1), InvalidRequest),
    ],
)
def test_every_request_of_a_worker_is_fenced(fence: Fence, error: type[ParameterServerError]) -> None:
    talk = Conversation(Async())
    talk.get(FenceRank(1, 1, 2))
    part = (rows("user", {7: 1.0}),)
    pull, export = Pull(fence, (ids("user", 7),)), OpenExport(fence, "user")
    for body in (pull, Push(fence, 1, part), Assign(fence, 1, part), Finish(fence, Finished(0)), export):
        with pytest.raises(error):
            talk.get(body)
    assert talk.read(7) == [0.0]
    assert talk.shard.clocks.finished == {0: -1, 1: -1}


def test_ids_of_another_server_are_refused() -> None:
    talk = Conversation(Async(), shard_map=map_of(1, "server-0", "server-1", all_to="server-1"))
    asks: list[Ask] = [lambda: talk.push(0, 0, {7: 1.0}), lambda: talk.assign(0, 0, {7: 1.0}), lambda: talk.pull(0, 0, 7).answer]
    for ask in asks:
        with pytest.raises(NotOwner):
            ask()


@pytest.mark.parametrize("body", [body for body in REQUESTS if METHODS[type(body)].service == PARAMETER_SERVER], ids=type_name)
def test_no_request_of_the_contract_is_a_bug(body: object) -> None:
    Conversation(Sync(), world_size=8).ask(body)  # whatever it is answered: it raises nothing here


def test_a_request_that_no_shard_serves_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest, match="the request is OpenLane, which server-0 does not serve"):
        Conversation(Sync()).get(OpenLane(1))


def test_a_parked_request_is_refused_when_its_worker_is_replaced() -> None:
    talk = Conversation(Sync())
    pull, flush = talk.pull(0, 1, 7), talk.ask(Finish(talk.fence(0), wait_s=5.0, finished=Finished(0)))
    other = talk.pull(1, 1, 7)
    talk.get(FenceRank(1, 0, 1))
    for question in (pull, flush):
        with pytest.raises(StaleIncarnation):
            _ = question.answer
    assert other.is_waiting


def test_a_parked_request_is_refused_when_a_newer_map_comes() -> None:
    talk = Conversation(Sync())
    question = talk.pull(0, 1, 7)
    talk.take_map(map_of(2, "server-0"))
    with pytest.raises(NotOwner) as refusal:
        _ = question.answer
    assert refusal.value.map_version == 2


# --- malformed requests ------------------------------------------------------------------------------------------------------


def block(*shape: int, value: float = 1.0) -> TableRows:
    return TableRows("item", np.arange(shape[0], dtype=np.uint64), np.full(shape, value, np.float32))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("kind", [Push, Assign])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (block(2, 2), InvalidRequest),
        (TableRows("item", IDS, np.ones((2, 1), np.float32)), InvalidRequest),
        (TableRows("item", IDS, np.ones(1, np.float32)), InvalidRequest),
        (block(2, 1, value=np.nan), InvalidRequest),
        (block(2, 1, value=-np.inf), InvalidRequest),
        (replace(block(2, 1), table="nobody's"), UnknownTable),
        (rows("user", {8: 1.0}), InvalidRequest),  # the first table again
    ],
    ids=["dim", "count", "shape", "nan", "inf", "table", "twice"],
)
def test_a_push_with_one_bad_table_applies_nothing_of_either(
    mode: Mode, kind: type[Push] | type[Assign], bad: TableRows, error: type[ParameterServerError]
) -> None:
    talk = Conversation(mode, world_size=1, tables=(USER, ITEM))
    for tables in ((rows("user", {7: 1.0}), bad), (bad, rows("user", {7: 1.0}))):
        with pytest.raises(error):
            talk.get(kind(talk.fence(0), 1, tables))
    talk.finish(0, 0)
    assert [len(table) for table in talk.shard.tables.values()] == [0, 0]
    talk.push(0, 1, {7: 1.0})  # the name was not used up either
    talk.finish(0, 1)
    assert talk.read(7) == [-1.0]


@pytest.mark.parametrize("seq", [0, -1, 2**32])
def test_seq_counts_from_1(seq: int) -> None:
    talk = Conversation(Async())
    with pytest.raises(InvalidRequest, match="seq"):
        talk.push(0, 0, {7: 1.0}, seq)


def test_an_observer_writes_and_finishes_nothing() -> None:
    talk = Conversation(Async())
    part = (rows("user", {7: 1.0}),)
    for body in (
        Push(talk.fence(), 1, part),
        Assign(talk.fence(), 1, part),
        Finish(talk.fence(), leave=True),
        Pull(talk.fence(), (), Finished(0)),
    ):
        with pytest.raises(InvalidRequest, match="observer"):
            talk.get(body)


def test_an_unknown_table_is_named() -> None:
    talk = Conversation(Sync())
    finished = Finished(0, (wants("nobody's", lr=1.0),))
    for body in (Pull(talk.fence(0), (ids("nobody's", 7),)), OpenExport(talk.fence(), "nobody's"), Finish(talk.fence(0), finished)):
        with pytest.raises(UnknownTable, match="nobody's"):
            talk.get(body)
    assert talk.shard.clocks.finished == {0: -1, 1: -1}


@pytest.mark.parametrize("parameters", [{}, {"lr": 0.5}, {"lr": -1.0, "initial_accumulator_value": 0.0, "eps": 0.0}, {"momentum": 0.5}])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_hyperparameters_that_the_optimizer_cannot_use_are_refused(mode: Mode, parameters: dict[str, float]) -> None:
    talk = Conversation(mode, world_size=1, tables=(TableSpec("user", 1, Adagrad(lr=1.0, eps=0.0)),))
    bad = Hyperparameters("user", parameters)
    with pytest.raises(InvalidRequest):
        talk.get(Push(talk.fence(0), 1, (rows("user", {7: 1.0}),), (bad,)))
    talk.push(0, 0, {7: 2.0})
    with pytest.raises(InvalidRequest):
        talk.finish(0, 0, bad)
    assert talk.shard.clocks.finished == {0: -1}
    talk.finish(0, 0)
    assert talk.read(7) == [-1.0]


def test_a_resume_state_beyond_64_kib_is_refused_with_its_fact() -> None:
    talk = Conversation(Sync())
    with pytest.raises(InvalidRequest, match="65537 bytes"):
        talk.finish(0, 0, resume=b"x" * (64 * 1024 + 1))
    assert talk.shard.clocks.finished == {0: -1, 1: -1}
    talk.finish(0, 0, resume=b"x" * 64 * 1024)
    assert talk.shard.clocks.finished == {0: 0, 1: -1}


@pytest.mark.parametrize("clock", [1, 1_000, 2**31])
def test_steps_are_finished_and_pushed_to_one_after_another(clock: int) -> None:
    """A fact about a far step would make a shard of one worker fold four billion empty ones."""
    talk = Conversation(Sync(), world_size=1)
    asks: list[Ask] = [lambda: talk.finish(0, clock), lambda: talk.push(0, clock, {7: 1.0}), lambda: talk.assign(0, clock, {7: 1.0})]
    for ask in asks:
        with pytest.raises(InvalidRequest, match="at most 0"):
            ask()
    assert talk.step() == 0


@pytest.mark.parametrize("clock", [-1, 2**32])
def test_a_fact_about_no_clock_is_refused(clock: int) -> None:
    talk = Conversation(Sync())
    with pytest.raises(InvalidRequest, match="finished clock"):
        talk.get(Finish(talk.fence(0), Finished(clock)))


# --- full --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Push, Assign])
def test_a_table_that_is_full_refuses_the_push_to_both(kind: type[Push] | type[Assign]) -> None:
    talk = Conversation(Async(), tables=(USER, ITEM), rows_max=2)
    talk.push(0, 0, {1: 1.0, 2: 1.0}, table="item")
    with pytest.raises(TableFull, match="item"):
        talk.get(kind(talk.fence(0), 2, (rows("user", {7: 1.0}), rows("item", {3: 1.0}))))
    assert talk.read(7) == [0.0]
    talk.get(kind(talk.fence(0), 2, (rows("user", {7: 1.0}), rows("item", {2: 1.0}))))  # a row that is there takes no room
    assert talk.read(7) != [0.0]


def test_staged_rows_take_room_so_that_a_fold_cannot_fail() -> None:
    talk = Conversation(Sync(), rows_max=3)
    talk.push(0, 0, {1: 2.0, 2: 2.0})
    talk.push(1, 0, {2: 2.0, 3: 2.0})  # three rows in all
    asks: list[Ask] = [lambda: talk.push(1, 0, {4: 1.0}, seq=2), lambda: talk.assign(1, 0, {4: 1.0}, seq=2)]
    for ask in asks:
        with pytest.raises(TableFull):
            ask()
    talk.push(1, 0, {2: 2.0, 3: 2.0})  # a repetition takes no room
    talk.finish(0, 0)
    talk.finish(1, 0)
    assert talk.read(1, 2, 3) == [-1.0, -2.0, -1.0]


# --- waiting -----------------------------------------------------------------------------------------------------------------


def test_a_wait_ends_at_its_deadline_and_names_the_slowest() -> None:
    talk = Conversation(Sync(), world_size=3)
    talk.finish(0, 0)
    talk.finish(2, 0)  # clocks [1, 0, 1]
    pull = talk.pull(0, 1, 7, wait_s=4.0)
    flush = talk.ask(Finish(talk.fence(2, 1), wait_s=6.0))
    assert talk.shard.deadline_s() == 4.0
    talk.tick(4.0)
    with pytest.raises(StalenessTimeout) as refusal:
        _ = pull.answer
    assert (refusal.value.clock, refusal.value.min_clock, refusal.value.rank, refusal.value.after_s) == (1, 0, 1, 4.0)
    assert talk.shard.deadline_s() == 6.0
    assert flush.is_waiting
    talk.tick(2.0)
    with pytest.raises(StalenessTimeout, match="rank 1"):
        _ = flush.answer
    assert talk.shard.deadline_s() is None


@pytest.mark.parametrize("wait_s", [0.0, -5.0])
def test_who_cannot_wait_is_refused_at_once(wait_s: float) -> None:
    talk = Conversation(Sync())
    with pytest.raises(StalenessTimeout):
        talk.get(Pull(talk.fence(0, 1), (ids("user", 7),), wait_s=wait_s))


def test_any_turn_refuses_what_is_due() -> None:
    talk = Conversation(Sync())
    question = talk.pull(0, 1, 7, wait_s=1.0)
    talk.now_s = 1.0
    talk.stats()
    assert not question.is_waiting


def test_too_much_waiting_is_overload_and_the_fact_it_brought_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "PARKED_MAX", 1)
    talk = Conversation(Sync())
    first = talk.pull(0, 1, 7, finished=Finished(0))
    with pytest.raises(Overloaded, match="limit of 1"):
        talk.get(Pull(talk.fence(0, 1), (ids("user", 7),)))
    talk.finish(1, 0)
    assert first.rows == [0.0]


def test_one_that_nobody_waits_for_is_forgotten() -> None:
    talk = Conversation(Sync())
    question = talk.pull(0, 1, 7, wait_s=1.0)
    talk.drop(question)
    talk.tick(2.0)
    assert question.is_waiting
    assert talk.shard.deadline_s() is None


@pytest.mark.parametrize("body", ["pull", "export"])
def test_before_any_job_an_observer_cannot_wait_for_a_step(body: str) -> None:
    """Nobody would finish it, and there is no slowest rank to name."""
    talk = Conversation(None, tables=(replace(USER, mode=Sync()),))
    fence = talk.fence(OBSERVER)
    with pytest.raises(InvalidRequest, match="no job"):
        talk.get(Pull(fence, (ids("user", 7),), at_step=5) if body == "pull" else OpenExport(fence, "user", at_step=5))
    assert talk.read(7) == [0.0]


def test_a_pull_of_more_bytes_than_the_server_gives_is_refused_before_any_room_is_made() -> None:
    talk = Conversation(Async())
    talk.shard.reader.bytes_max = 11
    assert talk.pull(0, 0, 7, 8).rows == [0.0, 0.0]
    question = talk.pull(0, 0, 7, 8, 9)
    with pytest.raises(RequestTooLarge, match="12 bytes"):
        _ = question.answer

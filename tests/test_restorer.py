"""A server that goes back to a checkpoint: what is gone, what is there again, and who is told what at each stage."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from conversation import ITEM, USER, Conversation, Question, ids, map_of, rows
from ps_proto.errors import (
    CorruptFile,
    InvalidRequest,
    NotOwner,
    ParameterServerError,
    Recovering,
    RolledBack,
    StaleOrder,
    StaleTimeline,
    UnknownKeyList,
    UnknownTable,
)
from ps_proto.orders import (
    AskRestore,
    BeginCheckpoint,
    FenceRank,
    InstallMap,
    InstallTable,
    JobState,
    RankState,
    ResolveRank,
    RestoreState,
    RollBack,
    Source,
    StartJob,
)
from ps_proto.requests import (
    NEVER,
    OBSERVER,
    Assign,
    ClearTable,
    Decision,
    Done,
    Fence,
    Finish,
    Finished,
    GetStats,
    OpenExport,
    Pull,
    Push,
    ReadExport,
    StepDecided,
    TableIds,
    TableRows,
)
from ps_proto.values import Adagrad, Async, BoundedStaleness, Mode, Optimizer, Sync, TableSpec, Uniform
from ps_server.shard.orders import REGISTRATION_S
from ps_server.tasks import LoadFacts, LoadNames, LoadRows, OpenPart, PartHead, Registered
from rollbacks import ask, job_of, load, loading, order, phase, restore
from saved_parts import ROOT, ReadPart, begin, open_part, save
from sharding.shard_map import ShardMap


@dataclass(frozen=True)
class Unknown(Optimizer):
    """An optimizer that no server here has."""

    kind: ClassVar[str] = "unknown to servers"


BAD_FILE = CorruptFile("part.json", "it was cut")
LEARNED = TableSpec("user", 2, Adagrad(0.1), Uniform(-1.0, 1.0), seed=3)


def job(step: int = 2, *finished: int, mode: Mode | None = None, number: int = 1) -> JobState:
    """Return a job of two ranks, or of those that are given."""
    ranks = [RankState(rank, Finished(clock), clock, False) for rank, clock in enumerate(finished or (step - 1, step - 1))]
    return JobState(number, len(ranks), mode or Sync(), 0, step, tuple(ranks))


# --- what is there again -----------------------------------------------------------------------------------------------------


def train(talks: list[Conversation], begin_step: int, end_step: int) -> None:
    """Let two ranks push to a table of dim 2 on these servers, each to its own rows and some of the other's."""
    for step in range(begin_step, end_step):
        for rank in (0, 1):
            rng = np.random.default_rng([step, rank])
            wanted = rng.choice(30, 12, replace=False).astype(np.uint64)
            gradients = rng.standard_normal((12, 2)).astype(np.float32)
            for talk in talks:
                own = np.array([talk.shard.membership.owns("user", wanted[[place]]) for place in range(12)])
                push = Push(talk.fence(rank, step), 1, (TableRows("user", wanted[own].copy(), gradients[own].copy()),))
                talk.get(push)
        for talk in talks:
            for rank in (0, 1):
                talk.finish(rank, step, resume=b"rank %d after step %d" % (rank, step))


def bits(talks: list[Conversation]) -> dict[int, list[int]]:
    """Return every record of "user", to the last bit, by id."""
    found: dict[int, list[int]] = {}
    for talk in talks:
        held, records = talk.shard.tables["user"].snapshot().read_records(0, 100)
        found |= dict(zip(held.tolist(), records.view(np.uint32).tolist(), strict=True))
    return found


def cluster(count: int, mode: Mode, version: int = 1) -> list[Conversation]:
    shard_map = map_of(version, *[f"server-{index}" for index in range(count)])
    return [Conversation(mode, tables=(LEARNED,), server=server.name, shard_map=shard_map) for server in shard_map.servers]


@pytest.mark.parametrize("mode", [Sync(), Async(), BoundedStaleness(1)], ids=str)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 2), (2, 3)])
def test_training_goes_on_from_a_checkpoint_to_the_same_bits(mode: Mode, before: int, after: int) -> None:
    talks = cluster(before, mode)
    train(talks, 0, 4)
    parts = [save(talk, 1) for talk in talks]
    saved = bits(talks)
    train(talks, 4, 7)
    expected = bits(talks)

    state = job_of(parts, 2, mode)
    assert state.step == 4
    shard_map = map_of(2, *[f"server-{index}" for index in range(after)])
    others = cluster(after, mode)
    train(others, 0, 1)  # what they held counts for nothing
    for talk in others:
        restore(talk, parts, order(1, state, shard_map, (LEARNED,)))
        talk.shard.check_invariants()
        assert talk.shard.clocks.finished == {0: 3, 1: 3}
        assert talk.shard.facts == {rank: Finished(3, resume=b"rank %d after step 3" % rank) for rank in (0, 1)}
    assert bits(others) == saved
    train(others, 4, 7)
    assert bits(others) == expected


def test_a_push_that_the_rows_have_is_known_and_a_later_one_is_new_again() -> None:
    talk = Conversation(Async(), world_size=1)
    talk.push(0, 0, {7: 1.0}, seq=1)
    part = save(talk, 1)
    talk.push(0, 0, {7: 1.0}, seq=2)
    restore(talk, [part], order(1, job(0, NEVER, mode=Async())))
    for seq in (1, 2):  # the worker does step 0 again
        talk.push(0, 0, {7: 1.0}, seq=seq)
    assert talk.read(7) == [-2.0]


def test_a_synchronous_step_at_work_is_done_again_as_a_whole() -> None:
    talk = Conversation(Sync())
    talk.push(0, 0, {7: 2.0})
    talk.finish(0, 0)
    part = save(talk, 1)
    restore(talk, [part], order(1, job_of([part], 2, Sync())))
    assert talk.shard.staging.rows_count == 0
    assert talk.shard.clocks.finished == {0: NEVER, 1: NEVER}
    for rank in (0, 1):
        talk.push(rank, 0, {7: 4.0})
        talk.finish(rank, 0)
    assert talk.read(7) == [-4.0]


def test_a_rank_that_had_left_is_not_waited_for_and_one_that_left_since_is() -> None:
    talk = Conversation(Sync(), world_size=3)
    talk.finish(2, 0, leave=True)
    talk.finish(0, 0)
    talk.finish(1, 0)
    part = save(talk, 1)
    talk.finish(1, 1, leave=True)
    restore(talk, [part], order(1, job_of([part], 3, Sync())))
    assert (talk.shard.clocks.roster(0), talk.shard.clocks.roster(1)) == ([0, 1, 2], [0, 1])
    talk.finish(0, 1)
    assert talk.step() == 1
    talk.finish(1, 1)
    assert talk.step() == 2


def test_ranks_of_a_job_without_synchronous_tables_go_on_at_different_steps() -> None:
    talk = Conversation(BoundedStaleness(1))
    restore(talk, [], order(1, job(3, 4, 2, mode=BoundedStaleness(1))))
    assert (talk.shard.clocks.finished, talk.step()) == ({0: 4, 1: 2}, 3)
    question = talk.pull(0, 5, 7)
    assert question.is_waiting
    talk.finish(1, 3)
    assert question.rows == [0.0]


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_without_a_checkpoint_a_server_begins_anew_at_once(mode: Mode) -> None:
    talk = Conversation(mode, world_size=1)
    talk.push(0, 0, {7: 2.0})
    talk.finish(0, 0)
    shard_map = map_of(2, "server-0")
    talk.get(order(1, JobState(1, 1, mode, 0, 0, ()), shard_map, source=None))
    assert (phase(talk, 1), talk.at_work) == ("loaded", [])
    talk.follow(shard_map, 1)
    assert (talk.read(7), talk.step()) == ([0.0], 0)
    talk.push(0, 0, {7: 3.0})  # under the name that was applied before
    talk.finish(0, 0)
    assert (talk.read(7), talk.step()) == ([-3.0], 1)


def test_a_job_that_the_checkpoint_does_not_have_begins_without_its_resume_states() -> None:
    talk = Conversation(Async())
    for clock in range(5):
        talk.finish(0, clock, resume=b"of the job before")
    talk.push(0, 5, {7: 1.0})
    part = save(talk, 1)
    restore(talk, [part], order(1, JobState(2, 3, Async(), 6, 6, ())))
    assert (talk.shard.job, talk.shard.clocks.finished, talk.shard.facts) == (2, {0: 5, 1: 5, 2: 5}, {})
    assert talk.read(7) == [-1.0]


def test_a_cluster_without_a_job_has_its_rows_and_no_ranks() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0})
    part = save(talk, 1)
    restore(talk, [part], order(1))
    assert (talk.shard.job, talk.shard.clocks.finished, talk.read(7)) == (1, {}, [-1.0])
    with pytest.raises(InvalidRequest, match="rank"):
        talk.push(0, 0, {7: 1.0})
    talk.get(StartJob(1, 1, 2, Async(), 0, timeline=1))
    assert talk.shard.clocks.finished == {}, "it is the one that was there before"
    talk.get(StartJob(1, 2, 1, Async(), 3, timeline=1))
    talk.push(0, 3, {7: 1.0})
    assert talk.read(7) == [-2.0]


def test_only_the_tables_of_the_order_are_there_and_a_later_one_can_be_opened() -> None:
    talk = Conversation(Async(), tables=(USER, ITEM))
    restore(talk, [], order(1, job(0, mode=Async())))
    with pytest.raises(UnknownTable):
        talk.read(7, table="item")
    talk.get(InstallTable(1, ITEM, 2))
    assert talk.read(7, table="item") == [0.0]


def test_a_table_whose_optimizer_had_failed_is_whole_again() -> None:
    talk = Conversation(Async())
    part = save(talk, 1)
    talk.shard.catalog.failures["user"] = BAD_FILE  # type: ignore[assignment]  # any error will do
    restore(talk, [part], order(1, job(0, mode=Async())))
    assert talk.read(7) == [0.0]


def test_the_checkpoint_that_was_loaded_is_the_base_of_the_next_increment() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0, 8: 1.0})
    part = save(talk, 7)
    restore(talk, [part], order(1, job(0, NEVER, NEVER, mode=Async())))
    talk.push(0, 0, {8: 1.0}, seq=2)
    part = save(talk, 8, base=7)
    assert (part.is_full("user"), list(part.rows["user"])) == (False, [8])


# --- what is gone ------------------------------------------------------------------------------------------------------------


def test_those_who_wait_are_told_in_the_same_turn_with_which_step_they_go_on() -> None:
    talk = Conversation(Sync())
    waiting = [talk.pull(0, 1, 7, finished=Finished(0)), talk.ask(Finish(talk.fence(0, 1), wait_s=9.0))]
    observer = talk.ask(Pull(talk.fence(), (ids("user", 7),), None, 9.0, 3))
    talk.get(order(1, job(3, 2, 2)))
    for question in waiting:
        error = refusal(question)
        assert isinstance(error, RolledBack)
        assert (error.rank, error.clock, error.timeline) == (0, 3, 1)
    assert isinstance(refusal(observer), StaleTimeline)


def test_what_was_open_before_is_not_found_after() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0})
    opened = talk.get(OpenExport(talk.fence(), "user"))
    talk.get(Pull(talk.fence(0, 0), (TableIds("user", np.array([7], np.uint64), 1),)))
    begin(talk, 1)
    restore(talk, [], order(1, job(0, NEVER, NEVER, mode=Async())))
    with pytest.raises(InvalidRequest, match="not open"):
        talk.get(ReadExport(talk.fence(), 1, 0, 10))
    with pytest.raises(InvalidRequest, match="over"):
        talk.get(OpenPart(1))
    with pytest.raises(UnknownKeyList):
        talk.get(Push(talk.fence(0, 0), 1, (TableRows("user", np.zeros(0, np.uint64), np.ones((1, 1), np.float32), 1),)))
    assert talk.get(OpenExport(talk.fence(), "user")) != opened, "numbers are not given twice"


def test_a_late_order_of_a_checkpoint_of_before_writes_over_nothing() -> None:
    talk = Conversation(Async())
    part = save(talk, 7)
    talk.get(BeginCheckpoint(1, 0, 8, ROOT, 0, -1, 7, True, False))
    restore(talk, [part], order(1, job(0, mode=Async())))
    for number in (6, 7, 8):
        assert begin(talk, number).phase == "failed"
    assert begin(talk, 9).phase == "taken"


def test_decisions_of_before_are_neither_told_nor_heard() -> None:
    shard_map = map_of(1, "server-0", "server-1", all_to="server-0")
    talk = Conversation(Sync(1), shard_map=shard_map)
    talk.finish(0, 0)
    (told,) = talk.told
    later = map_of(2, "server-0", "server-1", all_to="server-0")
    talk.get(order(1, job(0, NEVER, NEVER, mode=Sync(1)), later))
    talk.end(loading(talk), 0)
    talk.follow(later, 1)
    talk.finish(1, 0)
    again = talk.told[-1]
    talk.answer(told, Done())  # that of the timeline before
    talk.answer(again, Recovering("server-1", "it is loading"))
    talk.tick(10.0)
    assert isinstance(talk.told[-1].body, StepDecided)
    assert talk.told[-1].body.fence.timeline == 1

    hearer = Conversation(Sync(1), server="server-1", shard_map=shard_map)
    hearer.get(order(1, job(0, NEVER, NEVER, mode=Sync(1)), later))
    hearer.end(loading(hearer), 0)
    with pytest.raises(StaleTimeline):
        hearer.get(StepDecided(hearer.fence(), 1, Decision(0, (0,), 1)))
    assert hearer.step() == 0


def test_orders_about_ranks_that_were_on_their_way_change_nothing_and_the_same_ones_anew_do() -> None:
    talk = Conversation(Sync())
    talk.get(FenceRank(1, 0, 4))
    talk.get(ResolveRank(1, 0, 4, None, 0))
    restore(talk, [], order(1, job(2, 1, 1)))
    with pytest.raises(StaleTimeline):
        talk.get(ResolveRank(1, 0, 4, Finished(9), 10))
    with pytest.raises(StaleTimeline):
        talk.get(StartJob(1, 2, 2, Sync(), 9))
    talk.get(FenceRank(1, 0, 4))
    talk.get(ResolveRank(1, 0, 4, Finished(2), 3, timeline=1))
    assert talk.shard.clocks.finished == {0: 2, 1: 1}


# --- orders ------------------------------------------------------------------------------------------------------------------


def test_an_order_that_is_given_again_changes_nothing() -> None:
    talk = Conversation(Sync())
    first = order(1, job())
    talk.get(first)
    work = loading(talk)
    talk.get(first)
    assert talk.at_work == [work]
    talk.end(work, 0)
    talk.get(first)
    assert (talk.at_work, phase(talk, 1)) == ([], "loaded")


def test_a_later_rollback_ends_the_one_that_loads() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0})
    part = save(talk, 1)
    talk.get(order(1, job(0, mode=Async())))
    first = loading(talk)
    talk.get(order(2, job(0, mode=Async()), source=Source(ROOT, 3)))
    late = [
        LoadRows(1, "user", np.array([7], np.uint64), np.zeros((1, 1), np.uint32), 1),
        LoadNames(1, part.head.names),
        LoadFacts(1, part.head.facts),
    ]
    for body in late:
        with pytest.raises(StaleTimeline):
            talk.get(body)
    talk.end(first, 0)
    assert phase(talk, 2) == "loading"
    load(talk, [part], loading(talk))
    talk.end(loading(talk), 1)
    assert ask(talk, 2) == RestoreState(2, "loaded", 1)
    with pytest.raises(StaleTimeline):
        talk.get(LoadRows(2, "user", np.array([7], np.uint64), np.zeros((1, 1), np.uint32), 1))


def test_a_part_that_cannot_be_loaded_is_told_and_nothing_is_served_before_another_rollback() -> None:
    talk = Conversation(Async())
    shard_map = map_of(2, "server-0")
    talk.get(order(1, job(0, mode=Async()), shard_map))
    talk.end(loading(talk), BAD_FILE)
    assert ask(talk, 1) == RestoreState(1, "failed", 0, str(BAD_FILE))
    talk.follow(shard_map, 1)
    with pytest.raises(Recovering, match=r"could not load its rows: part.json is not as it was written: it was cut. .*copy\.$"):
        talk.read(7)
    restore(talk, [], order(2, job(0, mode=Async()), source=Source(ROOT, 3)))
    assert talk.read(7) == [0.0]


NO_RANKS = JobState(1, 0, Sync(), 0, 0, ())
TWICE = JobState(1, 2, Sync(), 0, 0, (RankState(1, None, 0, False), RankState(1, None, 0, False)))
BEYOND = JobState(1, 2, Sync(), 0, 0, (RankState(2, None, 0, False),))


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        (order(1), StaleTimeline, "rolled back to timeline 2; this request is of timeline 1"),
        (order(2, source=Source(ROOT, 8)), InvalidRequest, "timeline is 2, but must be above 2, which began otherwise"),
        (order(3, shard_map=map_of(2, "server-0")), InvalidRequest, "shard map is version 2, but must be version 3 or a later one"),
        (order(3, NO_RANKS), InvalidRequest, "world_size is 0"),
        (order(3, TWICE), InvalidRequest, r"ranks is \[1, 1\], but must be each once, from 0 to 1"),
        (order(3, BEYOND), InvalidRequest, r"ranks is \[2\]"),
        (order(3, tables=(LEARNED, TableSpec("odd", 1, Unknown()))), InvalidRequest, "optimizer"),
    ],
    ids=str,
)
def test_an_order_that_does_not_fit_changes_nothing(asked: RollBack, error: type[ParameterServerError], match: str) -> None:
    talk = Conversation(Async())
    restore(talk, [], order(2, job(0, NEVER, NEVER, mode=Async())))
    talk.push(0, 0, {7: 1.0})
    with pytest.raises(error, match=match):
        talk.get(asked)
    assert talk.read(7) == [-1.0]


def test_a_server_that_never_went_back_was_never_told_to_at_its_first_timeline() -> None:
    with pytest.raises(InvalidRequest, match="timeline is 0, but must be above 0"):
        Conversation(Sync()).get(order(0))


@pytest.mark.parametrize("asked", [order(1), AskRestore(1, 0, 0)], ids=lambda asked: type(asked).__name__)
def test_an_order_of_a_replaced_coordinator_is_refused(asked: object) -> None:
    talk = Conversation(Sync())
    talk.get(InstallTable(2, USER))
    with pytest.raises(StaleOrder):
        talk.get(asked)


@pytest.mark.parametrize("asked", [replace(order(1), cluster=6), AskRestore(1, 6, 0)], ids=lambda asked: type(asked).__name__)
def test_an_order_of_another_cluster_is_refused(asked: object) -> None:
    talk = Conversation(Sync())
    talk.get(InstallTable(1, USER, cluster=5))
    with pytest.raises(StaleOrder, match="of cluster 5; this order is of cluster 6"):
        talk.get(asked)


def test_how_far_a_server_is_says_only_the_timeline_that_it_loads() -> None:
    talk = Conversation(Async())
    assert ask(talk, 0) == RestoreState(0, "loaded", 0)
    with pytest.raises(Recovering, match="timeline 1"):
        ask(talk, 1)
    part = ReadPart(open_part_of(talk), {"user": {7: (0,), 8: (0,)}})
    talk.get(order(1, job(0, mode=Async())))
    load(talk, [part])
    assert ask(talk, 1) == RestoreState(1, "loading", 2)
    with pytest.raises(StaleTimeline):
        ask(talk, 0)


def open_part_of(talk: Conversation) -> PartHead:
    begin(talk, 1)
    return open_part(talk, 1)


@pytest.mark.parametrize(
    ("body", "error", "match"),
    [
        (LoadRows(1, "item", np.array([7], np.uint64), np.zeros((1, 1), np.uint32), 1), UnknownTable, "item"),
        (LoadRows(1, "user", np.arange(40, dtype=np.uint64), np.zeros((40, 1), np.uint32), 40), NotOwner, "own"),
        (LoadRows(1, "user", np.zeros(0, np.uint64), np.zeros((0, 3), np.uint32), 0), InvalidRequest, r"uint32\[0, 3\], but must be"),
    ],
)
def test_what_does_not_fit_is_not_loaded(body: object, error: type[ParameterServerError], match: str) -> None:
    talk = Conversation(Async())
    talk.get(order(1, job(0, mode=Async()), map_of(2, "server-0", "server-1")))
    with pytest.raises(error, match=match):
        talk.get(body)


# --- who is told what, at each stage -------------------------------------------------------------------------------------------


def asked_by(fence: Fence) -> list[object]:
    """Return a request of every kind that has a fence."""
    some = (rows("user", {7: 1.0}),)
    asked: list[object] = [
        Pull(fence, (ids("user", 7),)),
        Pull(fence, (), Finished(0)),
        OpenExport(fence, "user"),
        ReadExport(fence, 1, 0, 1),
    ]
    if fence.rank == OBSERVER:
        return [*asked, StepDecided(fence, 1, Decision(0, (0,), 1))]
    return [*asked, Push(fence, 1, some), Assign(fence, 1, some), ClearTable(fence, 1, "user"), Finish(fence, Finished(0), leave=True)]


ORDERS = [
    InstallTable(1, ITEM),
    StartJob(1, 9, 2, Sync(), 0),
    FenceRank(1, 0, 9),
    ResolveRank(1, 0, 9, None, 4),
    BeginCheckpoint(1, 0, 99, ROOT, 0, -1, -1, True, False),
]


def expect(talk: Conversation, asked: list[object], error: type[ParameterServerError]) -> None:
    for body in asked:
        assert isinstance(refusal(talk.ask(body)), error), body


@pytest.mark.parametrize("stage", ["restarted", "loading", "failed", "loaded"])
def test_every_request_at_every_stage(stage: str) -> None:
    """`restarted`: a fresh process, which has heard that it must recover; the others have, or had, something to lose."""
    shard_map = map_of(2, "server-0")
    if stage == "restarted":
        talk = Conversation(None, awaits_registration=True)
        talk.get(Registered(1, must_recover=True, cluster=0))
        talk.get(InstallMap(shard_map))
    else:
        talk = Conversation(Sync())
        talk.push(0, 0, {7: 1.0})
        talk.finish(0, 0)
        talk.get(order(1, job(), shard_map))
    if stage == "failed":
        talk.end(loading(talk), BAD_FILE)
    if stage == "loaded":
        talk.end(loading(talk), 0)
    before = state_of(talk)
    new = 0 if stage == "restarted" else 1
    if new:
        for version in (1, 2):
            expect(talk, asked_by(Fence(version, 0, clock=1)), RolledBack)
            expect(talk, asked_by(Fence(version)), StaleTimeline)
        expect(
            talk,
            [replace(body, timeline=0) for body in ORDERS if isinstance(body, StartJob | ResolveRank)],
            StaleTimeline if stage == "loaded" else Recovering,
        )
    expect(talk, asked_by(Fence(2, 0, timeline=new + 1)), Recovering)
    expect(talk, asked_by(Fence(2, timeline=new + 1)), Recovering)
    if stage != "loaded":
        for version in (1, 2, 3):
            expect(talk, asked_by(Fence(version, 0, clock=2, timeline=new)), Recovering)
            expect(talk, asked_by(Fence(version, timeline=new)), Recovering)
        expect(talk, [*ORDERS, GetStats(Fence(2, timeline=new))], Recovering)
    assert state_of(talk) == before
    talk.shard.check_invariants()


def state_of(talk: Conversation) -> object:
    shard = talk.shard
    return (
        shard.step,
        shard.job,
        dict(shard.clocks.finished),
        dict(shard.clocks.left_after),
        dict(shard.facts),
        sorted(shard.tables),
        [len(table) for table in shard.tables.values()],
        shard.staging.rows_count,
        shard.window.ranks,
        shard.membership.shard_map,
        shard.membership.timeline,
    )


# --- a server that was started again -------------------------------------------------------------------------------------------


def started(must_recover: bool = True, incarnation: int = 2) -> Conversation:
    """Return a server that has just been taken in."""
    talk = Conversation(None, awaits_registration=True)
    talk.get(Registered(incarnation, must_recover, 77))
    return talk


def meaning(version: int, incarnation: int) -> ShardMap:
    """Return a map that names this start of server-0, and another server."""
    shard_map = map_of(version, "server-0", "server-1", all_to="server-0")
    servers = (replace(shard_map.servers[0], incarnation=incarnation), shard_map.servers[1])
    return ShardMap(version, servers, shard_map.owners)


def test_a_map_that_overtakes_the_registration_waits_for_it() -> None:
    talk = Conversation(None, awaits_registration=True)
    question = talk.ask(InstallMap(meaning(1, 1)))
    assert question.is_waiting
    talk.get(Registered(1, must_recover=False, cluster=77))
    assert question.answer == Done(0)
    talk.get(InstallTable(1, USER))
    assert talk.read(7) == [0.0]


def test_a_map_waits_no_longer_than_its_time_and_nothing_is_served_meanwhile() -> None:
    talk = Conversation(None, awaits_registration=True)
    question, dropped = talk.ask(InstallMap(meaning(1, 1))), talk.ask(InstallMap(meaning(1, 1)))
    talk.drop(dropped)
    expect(talk, [*asked_by(Fence(1)), *asked_by(Fence(1, 0)), *ORDERS], Recovering)
    talk.tick(REGISTRATION_S)
    assert "has not taken it in after 10.0 s" in str(refusal(question))
    assert dropped.is_waiting


@pytest.mark.parametrize("must_recover", [False, True])
def test_a_map_of_an_earlier_start_is_not_followed(must_recover: bool) -> None:
    """A worker that has not heard of the restart hands its map on: under that, this server would serve initial rows."""
    talk = started(must_recover)
    with pytest.raises(Recovering, match="shard map 1 does not name its start 2"):
        talk.get(InstallMap(meaning(1, 1)))
    with pytest.raises(Recovering, match="shard map 1 does not name"):
        talk.get(InstallMap(map_of(1, "server-1")))
    expect(talk, [*asked_by(Fence(1)), *asked_by(Fence(1, 0))], Recovering)


def test_a_restarted_server_serves_after_the_rollback_alone() -> None:
    talk = started()
    talk.get(InstallMap(meaning(5, 2)))
    with pytest.raises(Recovering, match="it was started again, and has to load the last checkpoint first"):
        talk.get(Pull(Fence(5), (ids("user", 7),)))
    with pytest.raises(Recovering, match="does not name its start 2"):
        talk.get(order(1, job(), meaning(5, 1)))
    restore(talk, [], order(1, job(), meaning(5, 2)))
    talk.get(Registered(2, must_recover=True, cluster=77))  # said again
    assert talk.read(7) == [0.0]


def test_a_rollback_before_the_registration_comes_too_early() -> None:
    talk = Conversation(None, awaits_registration=True)
    with pytest.raises(Recovering, match="not been taken in"):
        talk.get(order(1, job(), meaning(5, 1)))
    talk.get(Registered(1, must_recover=True, cluster=77))
    talk.get(order(1, job(), meaning(5, 1)))
    assert phase(talk, 1) == "loading"


def test_the_cluster_of_the_registration_is_the_one_that_is_followed() -> None:
    talk = started(must_recover=False)
    with pytest.raises(StaleOrder, match="of cluster 77; this order is of cluster 78"):
        talk.get(InstallTable(1, USER, cluster=78))


def test_a_server_that_was_replaced_owns_nothing_under_the_map_that_says_so() -> None:
    talk = started(must_recover=False, incarnation=1)
    talk.get(InstallMap(meaning(1, 1)))
    talk.get(InstallTable(1, USER))
    assert talk.read(7) == [0.0]
    talk.take_map(meaning(2, 2))
    with pytest.raises(NotOwner):
        talk.read(7)


def refusal(question: Question) -> ParameterServerError:
    assert isinstance(question.outcome, ParameterServerError), question
    return question.outcome

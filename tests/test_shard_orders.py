"""The coordinator's orders, exports, numbers and invariants of a shard."""

from collections.abc import Callable

import numpy as np
import pytest

from conversation import USER, Conversation, ids, map_of, rows, settled, wants
from ps_proto.errors import InvalidRequest, Recovering, StaleIncarnation, StaleOrder, StepPassed
from ps_proto.orders import FenceRank, InstallTable, RankFenced, ResolveRank, StartJob
from ps_proto.requests import (
    NEVER,
    OBSERVER,
    CloseExport,
    ExportOpened,
    ExportPart,
    Finish,
    Finished,
    JoinJob,
    OpenExport,
    Pull,
    Push,
    ReadExport,
)
from ps_proto.values import Async, Mode, Sync
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.job import Job
from ps_server.shard.exports import IDLE_S

# --- jobs and ranks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [InstallTable(1, USER), StartJob(1, 9, 1, Sync(), 0), FenceRank(1, 0, 9), ResolveRank(1, 0, 9, None, 5)])
def test_an_order_of_a_replaced_coordinator_is_refused(order: object) -> None:
    talk = Conversation(Sync())
    talk.get(InstallTable(2, USER))
    with pytest.raises(StaleOrder):
        talk.get(order)
    assert (talk.shard.job, talk.shard.clocks.finished) == (1, {0: NEVER, 1: NEVER})


@pytest.mark.parametrize(
    "order",
    [InstallTable(1, USER, 1, 8), StartJob(1, 9, 1, Sync(), 0, 8), FenceRank(1, 0, 9, 8), ResolveRank(1, 0, 9, None, 5, False, 8)],
)
def test_an_order_of_another_cluster_is_refused(order: object) -> None:
    talk = Conversation(Sync())
    talk.get(InstallTable(1, USER, cluster=7))
    with pytest.raises(StaleOrder, match="cluster"):
        talk.get(order)
    assert (talk.shard.job, talk.shard.clocks.finished) == (1, {0: NEVER, 1: NEVER})


@pytest.mark.parametrize("order", [StartJob(1, 9, 1, Sync(), 0, timeline=1), ResolveRank(1, 0, 9, None, 5, timeline=1)])
def test_an_order_of_another_timeline_moves_no_clock(order: object) -> None:
    talk = Conversation(Sync())
    with pytest.raises(Recovering, match="timeline 1"):
        talk.get(order)
    assert (talk.shard.job, talk.shard.clocks.finished) == (1, {0: NEVER, 1: NEVER})


def test_a_table_that_is_opened_again_keeps_its_rows() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0})
    talk.get(InstallTable(1, USER))
    assert talk.read(7) == [-1.0]


def test_a_new_job_starts_with_the_rows_and_without_the_facts() -> None:
    talk = Conversation(Sync())
    talk.push(0, 0, {7: 2.0})
    talk.finish(0, 0, resume=b"r")
    talk.finish(1, 0)
    talk.push(0, 1, {7: 50.0})
    talk.get(StartJob(1, 2, 1, Sync(), 3))
    assert talk.shard.clocks.finished == {0: 2}
    assert talk.shard.facts == {}
    assert talk.shard.staging.rows_count == 0
    assert talk.step() == 3
    assert talk.pull(0, 3, 7).rows == [-1.0]
    talk.push(0, 3, {7: 2.0})
    talk.finish(0, 3)
    assert talk.read(7) == [-3.0]


@pytest.mark.parametrize("job", [0, 1])
def test_a_late_repetition_of_the_start_is_harmless(job: int) -> None:
    talk = Conversation(Sync())
    talk.push(0, 0, {7: 2.0})
    talk.finish(0, 0)
    talk.get(StartJob(1, job, 2, Sync(), 0))
    talk.finish(1, 0)
    assert talk.read(7) == [-1.0]


def test_a_job_without_ranks_is_refused() -> None:
    talk = Conversation(None)
    with pytest.raises(InvalidRequest, match="world_size"):
        talk.get(StartJob(1, 1, 0, Sync(), 0))


def test_a_late_leave_of_the_job_before_does_not_shrink_the_new_roster() -> None:
    talk = Conversation(Sync())
    for rank in (0, 1):
        talk.get(FenceRank(1, rank, 1))
        talk.get(settled(rank, 1, NEVER))
    leave = Finish(talk.fence(1, 1, incarnation=1), Finished(0), leave=True)
    talk.get(leave)
    talk.get(FenceRank(1, 0, 2))
    talk.get(StartJob(1, 2, 2, Sync(), 1))
    talk.get(settled(0, 2, 0))
    with pytest.raises(StaleIncarnation):
        talk.get(leave)
    assert talk.shard.clocks.roster(1) == [0, 1]
    talk.get(Finish(talk.fence(0, 2, incarnation=2), Finished(1)))
    assert talk.step() == 1  # it waits for rank 1


def test_a_fence_says_how_far_the_rank_and_anybody_came() -> None:
    talk = Conversation(Async())
    assert talk.get(FenceRank(1, 1, 1)) == RankFenced(None, NEVER, NEVER, finished=NEVER, since=0)
    talk.finish(0, 0)
    talk.push(0, 1, {7: 1.0})
    assert talk.get(FenceRank(1, 0, 1)) == RankFenced(Finished(0), 1, 1, finished=0, since=0)
    assert talk.get(FenceRank(1, 1, 1)) == RankFenced(None, NEVER, 1, finished=NEVER, since=0)
    with pytest.raises(StaleIncarnation):
        talk.get(FenceRank(1, 1, 0))


def test_a_fence_says_what_counts_as_finished_without_a_fact_and_where_the_job_began() -> None:
    talk = Conversation(Async(), first_clock=5)
    assert talk.get(FenceRank(1, 1, 1)) == RankFenced(None, NEVER, 4, finished=4, since=5)
    talk.get(ResolveRank(1, 1, 1, None, 8))  # pushes up to step 7 were applied somewhere
    assert talk.get(FenceRank(1, 1, 2)) == RankFenced(None, NEVER, 7, finished=7, since=5)


def test_a_fence_can_come_before_the_first_job() -> None:
    assert Conversation(None).get(FenceRank(1, 3, 1)) == RankFenced(None, NEVER, NEVER)


def test_resolving_a_rank_drops_what_it_staged_beyond_and_takes_the_fact() -> None:
    talk = Conversation(Sync())
    talk.push(0, 0, {7: 2.0})
    talk.finish(0, 0)
    talk.push(0, 1, {7: 50.0})
    waiting = talk.pull(1, 1, 7, finished=Finished(0))
    assert waiting.rows == [-1.0]
    talk.get(FenceRank(1, 0, 1))
    talk.get(settled(0, 1, 0))
    assert talk.shard.staging.rows_count == 0
    talk.get(FenceRank(1, 1, 1))
    talk.get(settled(1, 1, 1))  # known elsewhere to have finished step 1
    assert talk.shard.clocks.finished == {0: 0, 1: 1}


def test_a_fact_that_is_resolved_folds_what_waited_for_it() -> None:
    talk = Conversation(Sync())
    question = talk.pull(0, 1, 7, finished=Finished(0))
    talk.get(FenceRank(1, 1, 1))
    talk.get(settled(1, 1, 0))
    assert question.rows == [0.0]


def test_a_late_repetition_of_the_resolution_drops_nothing_staged_since() -> None:
    talk = Conversation(Sync(), world_size=1)
    talk.get(FenceRank(1, 0, 1))
    talk.get(settled(0, 1, NEVER))
    fence = talk.fence(0, 0, incarnation=1)
    talk.get(Push(fence, 1, (rows("user", {7: 2.0}),)))
    talk.get(settled(0, 1, NEVER))
    talk.get(Finish(fence, Finished(0)))
    assert talk.read(7) == [-2.0]


def test_resolving_a_rank_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="rank"):
        Conversation(Sync()).get(settled(5, 1, 0))


def two_servers(world_size: int = 1) -> list[Conversation]:
    shard_map = map_of(1, "server-0", "server-1")
    return [Conversation(Sync(), world_size, server=server.name, shard_map=shard_map) for server in shard_map.servers]


def parts_of(talks: list[Conversation], value: float) -> list[dict[int, float]]:
    """Return the value for each of some ids, by who owns them."""
    owned = [[id for id in range(40) if talk.shard.membership.owns("user", np.array([id], np.uint64))] for talk in talks]
    return [dict.fromkeys(ids, value) for ids in owned]


def replace_rank(talks: list[Conversation], rank: int) -> int:
    """Do as the coordinator does when a rank is taken again; return the clock that its new incarnation begins with."""
    core = CoordinatorCore(CoreSettings(len(talks)))
    core.ranks.job = Job(1, world_size=2, mode=Sync())
    plan = core.ranks.plan_join(JoinJob(rank, 2, Sync()))
    answers = None
    try:
        while True:
            order = plan.send(answers) if answers is not None else next(plan)
            answers = [talk.get(order) for talk in talks]
            if isinstance(order, ResolveRank):
                return order.start
    finally:
        plan.close()


def test_a_half_pushed_step_is_redone_although_something_of_it_was_applied() -> None:
    """An assignment is applied at once: it moves the start of the next incarnation, but makes no staged push whole."""
    talks = two_servers()
    parts = parts_of(talks, 1.0)
    talks[0].assign(0, 0, dict.fromkeys(list(parts[0])[:1], 0.0), seq=1)
    talks[0].push(0, 0, parts[0], seq=2)  # server-1's part is lost, and the worker dies
    assert replace_rank(talks, 0) == 1
    assert {talk.read(id)[0] for talk, part in zip(talks, parts, strict=True) for id in part} == {0.0}


def test_a_fact_that_one_server_heard_reaches_the_others_with_all_that_it_says() -> None:
    talks = two_servers()
    parts = parts_of(talks, 2.0)
    for talk, part in zip(talks, parts, strict=True):
        talk.push(0, 0, part)
    talks[0].finish(0, 0, wants("user", lr=0.5), resume=b"state")  # server-1 never hears it, and the worker dies
    assert replace_rank(talks, 0) == 1
    assert {talk.read(id)[0] for talk, part in zip(talks, parts, strict=True) for id in part} == {-1.0}
    assert talks[1].shard.facts == talks[0].shard.facts


def test_a_leave_that_one_server_heard_reaches_the_others() -> None:
    talks = two_servers(world_size=2)
    talks[0].get(Finish(talks[0].fence(1), leave=True))  # server-1 never hears it, and the worker dies
    replace_rank(talks, 1)
    assert [talk.shard.clocks.roster(0) for talk in talks] == [[0], [0]]


# --- exports and observers ---------------------------------------------------------------------------------------------------


def opened(talk: Conversation, at_step: int = -1) -> ExportOpened:
    answer = talk.get(OpenExport(talk.fence(), "user", at_step=at_step))
    assert isinstance(answer, ExportOpened)
    return answer


def part_of(talk: Conversation, export: int) -> dict[int, float]:
    part = talk.get(ReadExport(talk.fence(), export, 0, 100))
    assert isinstance(part, ExportPart)
    return dict(zip(part.ids.tolist(), part.rows[:, 0].tolist(), strict=True))


def test_an_export_stays_while_pushes_go_on() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {8: 1.0, 7: 1.0}, seq=1)
    export = opened(talk)
    assert export.rows_count == 2
    talk.push(0, 0, {7: 1.0, 9: 1.0}, seq=2)
    assert part_of(talk, export.export) == {7: -1.0, 8: -1.0}
    assert part_of(talk, opened(talk).export) == {7: -2.0, 8: -1.0, 9: -1.0}


def test_an_export_is_dropped_when_closed_or_idle() -> None:
    talk = Conversation(Async())
    first, second = opened(talk), opened(talk)
    talk.get(CloseExport(talk.fence(), first.export))
    talk.get(CloseExport(talk.fence(), first.export))
    assert talk.shard.deadline_s() == IDLE_S
    talk.tick(IDLE_S)
    assert talk.stats().server["exports_open"] == 0
    for export in (first, second):
        with pytest.raises(InvalidRequest, match="not open"):
            part_of(talk, export.export)


@pytest.mark.parametrize("what", ["pull", "export"])
def test_an_observer_reads_a_step_exactly(what: str) -> None:
    talk = Conversation(Sync(), world_size=1)
    talk.push(0, 0, {7: 1.0})
    talk.finish(0, 0)

    def at(step: int) -> object:
        return Pull(talk.fence(), (ids("user", 7),), None, 5.0, step) if what == "pull" else OpenExport(talk.fence(), "user", 5.0, step)

    with pytest.raises(StepPassed):
        talk.get(at(0))
    assert not talk.ask(at(1)).is_waiting
    later = talk.ask(at(2))
    assert later.is_waiting
    talk.push(0, 1, {7: 1.0})
    talk.finish(0, 1)
    if what == "pull":
        assert later.rows == [-2.0]
    else:
        assert isinstance(later.answer, ExportOpened)
        assert part_of(talk, later.answer.export) == {7: -2.0}


def test_a_ranked_export_waits_for_its_step() -> None:
    talk = Conversation(Sync())
    talk.finish(0, 0)
    question = talk.ask(OpenExport(talk.fence(0, 1), "user", 5.0))
    assert question.is_waiting
    talk.finish(1, 0)
    assert question.answer == ExportOpened(1, 0, 1)


# --- numbers -----------------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_what_happened() -> None:
    talk = Conversation(Sync())
    talk.push(0, 0, {7: 1.0, 8: 1.0})
    talk.push(0, 0, {7: 1.0, 8: 1.0})
    assert talk.stats().server["staged_rows"] == 2
    assert talk.stats().server["staged_bytes"] == 2 * 12
    question = talk.pull(0, 1, 7, 8, 9, finished=Finished(0))
    assert talk.stats().server["parked"] == 1
    talk.now_s = 2.5
    talk.finish(1, 0)
    assert not question.is_waiting
    with pytest.raises(StepPassed):
        talk.push(1, 0, {7: 1.0})
    stats = talk.stats()
    assert stats.server == {
        "pulls": 1.0,
        "pushes": 2.0,
        "pushes_repeated": 1.0,
        "key_lists": 0.0,
        "key_lists_bytes": 0.0,
        "key_lists_unknown": 0.0,
        "pushes_late": 0.0,
        "contributions_dropped": 0.0,
        "steps_decided": 0.0,
        "folds": 1.0,
        "refused": 1.0,
        "waits": 1.0,
        "wait_s": 2.5,
        "waits_timed_out": 0.0,
        "staleness_sum": 0.0,
        "staleness_max": 0.0,
        "step": 1.0,
        "min_clock": 1.0,
        "parked": 0.0,
        "staged_rows": 0.0,
        "staged_bytes": 0.0,
        "exports_open": 0.0,
    }
    assert stats.tables == {
        "user": {
            "rows_pulled": 3.0,
            "rows_pushed": 4.0,
            "rows_listed": 0.0,
            "rows_repeated": 0.0,
            "rows_updated": 2.0,
            "rows_unread": 0.0,
            "bytes_in": 7 * 8.0 + 4 * 4.0,  # an id is 8 bytes, a row of dim 1 is 4
            "bytes_out": 3 * 4.0,
            "rows": 2.0,
            "bytes": 8.0,
        }
    }


def test_staleness_is_measured_when_a_pull_is_answered() -> None:
    talk = Conversation(Async())
    for clock in range(3):
        talk.finish(0, clock)
    talk.pull(0, 3, 7)  # clocks [3, 0]
    talk.pull(1, 0, 7)
    talk.pull(OBSERVER, 9, 7)
    assert (talk.stats().server["staleness_sum"], talk.stats().server["staleness_max"]) == (3.0, 3.0)


# --- invariants --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_a_state_that_messages_made_is_sound(mode: Mode) -> None:
    talk = Conversation(mode)
    talk.push(0, 0, {7: 1.0})
    talk.finish(0, 0)
    talk.pull(0, 1, 7)
    talk.shard.check_invariants()


def unfolded(talk: Conversation) -> None:
    for rank in (0, 1):
        talk.shard.clocks.finish(rank, 0)


def misremembered(talk: Conversation) -> None:
    talk.shard.clocks.finished[0] = 7
    talk.shard.clocks.finished[1] = 5


def left_behind(talk: Conversation) -> None:
    talk.finish(0, 0)
    talk.finish(1, 0)
    talk.shard.staging.add(0, 0, 1, (rows("user", {7: 1.0}),))


def others_row(talk: Conversation) -> None:
    talk.take_map(map_of(2, "server-0", "server-1", all_to="server-1"))
    talk.shard.tables["user"].assign(np.array([7], np.uint64), np.ones((1, 1), np.float32))


@pytest.mark.parametrize("break_it", [unfolded, misremembered, left_behind, others_row])
def test_a_broken_state_is_caught(break_it: Callable[[Conversation], None]) -> None:
    talk = Conversation(Sync())
    talk.shard.check_invariants()
    break_it(talk)
    with pytest.raises(AssertionError):
        talk.shard.check_invariants()

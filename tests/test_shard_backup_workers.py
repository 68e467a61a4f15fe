"""Backup workers on one server (R9): who decides, what a late rank gets, and what the others are told."""

from dataclasses import replace

import numpy as np
import pytest

from conversation import ITEM, USER, Conversation, ids, map_of, rows, wants
from ps_proto.errors import InvalidRequest, MapBehind, NotOwner, Recovering, StepPassed, Unreachable
from ps_proto.orders import JobState, RankState, ResolveRank, StartJob
from ps_proto.requests import Decision, Done, Fence, Finish, Finished, OpenExport, Pull, Pulled, Push, StepDecided
from ps_proto.values import Async, BoundedStaleness, Sync
from ps_server.events import Tell
from ps_server.shard.telling import AGAIN_FIRST_S
from rollbacks import order, restore

MAP = map_of(1, "server-0", "server-1", "server-2")  # server-0 owns bucket 0
ALL = map_of(1, "server-0", "server-1", "server-2", all_to="server-0")


def decider(world_size: int = 3, backup_workers: int = 1) -> Conversation:
    """Return the server that decides, and owns all rows."""
    return Conversation(Sync(backup_workers), world_size, tables=(USER, ITEM), shard_map=ALL)


def follower() -> Conversation:
    """Return one that owns all rows but bucket 0."""
    owners = np.ones_like(ALL.owners)
    owners[0] = 0
    shard_map = replace(ALL, owners=owners)
    return Conversation(Sync(1), 3, server="server-1", shard_map=shard_map)


def decided(step: int, *ranks: int, count: int = 2, job: int = 1) -> StepDecided:
    return StepDecided(Fence(1), job, Decision(step, ranks, count))


# --- the one that decides --------------------------------------------------------------------------------------------------------


def test_a_step_is_folded_once_all_but_the_backup_workers_have_finished_it() -> None:
    talk = decider()
    for rank, value in enumerate((6.0, 8.0, 100.0)):
        talk.push(rank, 0, {7: value})
    talk.finish(2, 0)
    assert talk.step() == 0
    talk.finish(0, 0)
    assert talk.step() == 1
    assert talk.read(7) == [-53.0]  # the mean of those of ranks 0 and 2
    talk.finish(1, 0)
    assert (talk.step(), talk.read(7)) == (1, [-53.0])
    stats = talk.stats().server
    assert (stats["contributions_dropped"], stats["steps_decided"], stats["pushes_late"]) == (1.0, 1.0, 0.0)


def test_as_ranks_leave_fewer_are_enough_but_always_one() -> None:
    talk = decider()
    talk.get(Finish(talk.fence(2), leave=True))
    talk.push(0, 0, {7: 1.0})
    talk.finish(0, 0)
    assert talk.step() == 1  # of two that are left, one
    talk.get(Finish(talk.fence(1), leave=True))
    assert talk.step() == 1
    talk.finish(0, 1)
    assert talk.step() == 2  # of one, one
    talk.get(Finish(talk.fence(0, 2), leave=True))
    assert talk.step() == 2  # of none, none


def test_a_leave_may_be_what_a_step_waited_for() -> None:
    talk = decider()
    talk.finish(0, 0)
    talk.get(Finish(talk.fence(1), leave=True))
    assert talk.step() == 1


def test_after_a_rollback_a_step_is_of_as_many_ranks_as_ever() -> None:
    """No table is synchronous: one server was at step 5 by its own instant, since it had yet to hear of decisions, and three ranks at 8."""
    table = replace(USER, mode=Async())
    talk = Conversation(Sync(2), 4, tables=(table,), shard_map=ALL)
    ranks = tuple([RankState(rank, Finished(clock), clock, False) for rank, clock in enumerate((8, 8, 8, 6))])
    restore(talk, [], order(1, JobState(1, 4, Sync(2), 0, 5, ranks), replace(ALL, version=2), (table,)))
    assert told(talk) == [Decision(7, (0, 1), 2), Decision(8, (0, 1), 2)]
    assert talk.step() == 9


def test_the_lowest_of_the_decided_ranks_says_the_hyperparameters_and_they_may_differ() -> None:
    talk = decider()
    for rank in range(3):
        talk.push(rank, 0, {7: 1.0})
    talk.finish(2, 0, wants("user", lr=0.25))
    talk.finish(1, 0, wants("user", lr=0.5), wants("item", lr=2.0))
    talk.finish(0, 0, wants("user", lr=8.0))  # came after the step was decided
    assert talk.read(7) == [-0.5]
    assert {item.table: item.parameters["lr"] for item in told(talk)[0].hyperparameters} == {"user": 0.5, "item": 2.0}


def test_a_rank_that_was_taken_anew_beyond_a_step_counts_in_it_without_a_gradient() -> None:
    """It assigned something in step 0, so that its next incarnation begins with step 1; what it pushed in step 0 was not whole."""
    talk = decider()
    talk.push(0, 0, {7: 100.0})
    talk.push(1, 0, {7: 6.0})
    talk.get(ResolveRank(1, 0, 1, None, 1))
    talk.finish(1, 0)
    assert talk.read(7) == [-3.0]
    assert told(talk)[0] == Decision(0, (1,), 2)


def test_a_rank_may_leave_out_only_steps_that_are_decided() -> None:
    talk = decider()
    for clock in range(4):
        talk.finish(0, clock)
        talk.finish(1, clock)
    with pytest.raises(InvalidRequest, match="at most 0: the last step that rank 2 finished here is -1"):
        talk.finish(2, 4)
    talk.finish(2, 3)
    assert talk.shard.clocks.finished == {0: 3, 1: 3, 2: 3}
    assert talk.step() == 4
    talk.finish(2, 4)
    talk.finish(0, 4)
    assert talk.step() == 5


def test_without_backup_workers_a_gap_is_refused() -> None:
    talk = Conversation(Sync(), world_size=1)
    talk.finish(0, 0)
    with pytest.raises(InvalidRequest, match="at most 1"):
        talk.finish(0, 2)


# --- what the others are told ------------------------------------------------------------------------------------------------------


def told(talk: Conversation) -> list[Decision]:
    """Return the decisions that server-1 was told."""
    orders = [tell.body for tell in talk.told if tell.server == "server-1"]
    assert all(isinstance(order, StepDecided) for order in orders)
    return [order.decision for order in orders if isinstance(order, StepDecided)]


def to_server_1(talk: Conversation) -> Tell:
    (tell,) = [tell for tell in talk.told if tell.server == "server-1"]
    return tell


def test_every_other_server_in_the_map_is_told_and_once_is_enough() -> None:
    talk = decider()
    talk.finish(0, 0)
    assert talk.told == []
    talk.finish(2, 0)
    assert [(tell.server, tell.address, tell.body) for tell in talk.told] == [
        (name, name, StepDecided(Fence(1), 1, Decision(0, (0, 2), 2))) for name in ("server-1", "server-2")
    ]
    for tell in list(talk.told):
        talk.answer(tell, Done(1))
    talk.tick(100.0)
    assert talk.told == []
    assert talk.shard.deadline_s() is None


def test_one_that_does_not_answer_is_told_again_ever_more_slowly_and_holds_nobody_up() -> None:
    talk = decider()
    talk.finish(0, 0)
    talk.finish(2, 0)
    pauses = []
    for _ in range(8):
        tell = to_server_1(talk)
        talk.answer(tell, Unreachable("server-1", "server-1", 1.0, "timed out"))
        due_s = talk.shard.deadline_s()
        assert due_s is not None
        pauses.append(round(due_s - talk.now_s, 6))
        talk.tick(due_s - talk.now_s - 0.001)
        assert "server-1" not in [tell.server for tell in talk.told]
        talk.tick(0.0011)
    assert pauses == [AGAIN_FIRST_S * factor for factor in (1, 2, 4, 8, 16, 32, 32, 32)]
    talk.finish(0, 1)
    talk.finish(2, 1)
    assert talk.step() == 2
    assert [decision.step for decision in told(talk)] == [0, 1]


def test_what_is_told_again_goes_out_under_the_newest_map_and_to_its_servers_alone() -> None:
    talk = decider()
    talk.finish(0, 0)
    talk.finish(2, 0)
    for tell in list(talk.told):
        talk.answer(tell, NotOwner(tell.server, 2))
    talk.take_map(map_of(2, "server-0", "server-1", all_to="server-0"))
    talk.tick(1.0)
    assert [(tell.server, tell.body) for tell in talk.told] == [("server-1", StepDecided(Fence(2), 1, Decision(0, (0, 2), 2)))]
    talk.tick(100.0)
    assert len(talk.told) == 1


def test_the_decision_of_a_job_that_is_over_is_no_longer_wanted() -> None:
    talk = follower()
    talk.get(StartJob(1, 2, 3, Sync(1), 0))
    assert talk.get(decided(0, 0, 1)) == Done(0)
    assert talk.step() == 0


# --- the ones that follow ----------------------------------------------------------------------------------------------------------


def test_a_server_folds_by_what_it_hears_and_not_by_what_it_sees() -> None:
    talk = follower()
    for rank, value in enumerate((6.0, 8.0, 100.0)):
        talk.push(rank, 0, {7: value})
        talk.finish(rank, 0)
    assert talk.step() == 0
    question = talk.pull(0, 1, 7)
    assert question.is_waiting
    assert talk.get(decided(0, 1, 2)) == Done(1)
    assert question.rows == [-54.0]
    assert talk.get(decided(0, 1, 2)) == Done(1)  # again, late
    assert talk.read(7) == [-54.0]
    assert talk.stats().server["contributions_dropped"] == 1.0
    assert talk.told == []


def test_a_decision_waits_for_that_of_the_step_before() -> None:
    talk = follower()
    talk.push(0, 0, {7: 1.0})
    talk.finish(0, 0)
    talk.push(0, 1, {7: 10.0})
    talk.finish(0, 1)
    talk.get(decided(1, 0, count=1))
    assert talk.step() == 0
    talk.get(decided(0, 0, count=1))
    assert (talk.step(), talk.read(7)) == (2, [-11.0])
    talk.shard.check_invariants()


def test_a_follower_takes_any_gap_for_the_decider_has_seen_it() -> None:
    talk = follower()
    talk.finish(2, 40)
    assert talk.shard.clocks.finished[2] == 40
    assert talk.step() == 0


@pytest.mark.parametrize(
    "decision",
    [
        Decision(-1, (0, 1), 2),
        Decision(2**32, (0, 1), 2),
        Decision(0, (1, 0), 2),
        Decision(0, (0, 0), 2),
        Decision(0, (0, 3), 2),
        Decision(0, (-1, 0), 2),
        Decision(0, (0, 1), 1),
        Decision(0, (), 0),
        Decision(0, (0, 1), 4),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused(decision: Decision) -> None:
    talk = follower()
    with pytest.raises(InvalidRequest):
        talk.get(StepDecided(Fence(1), 1, decision))
    talk.get(decided(0, 0, 1))
    assert talk.step() == 1


def test_only_one_server_decides() -> None:
    for talk in (decider(), Conversation(Sync(), 3)):
        with pytest.raises(InvalidRequest, match="this one does"):
            talk.get(decided(0, 0, 1))
        assert talk.step() == 0


def test_a_decision_under_another_map_or_of_a_later_job_is_for_later() -> None:
    talk = follower()
    with pytest.raises(MapBehind):
        talk.get(replace(decided(0, 0, 1), fence=Fence(2)))
    with pytest.raises(NotOwner):
        talk.get(replace(decided(0, 0, 1), fence=Fence(0)))
    with pytest.raises(Recovering, match="has not heard of job 2"):
        talk.get(decided(0, 0, 1, job=2))
    assert talk.step() == 0


# --- a rank that is late -----------------------------------------------------------------------------------------------------------


def behind() -> Conversation:
    """Return a server at step 2, of whose steps rank 2 has finished none."""
    talk = decider()
    for clock in (0, 1):
        talk.push(0, clock, {7: 2.0})
        talk.finish(0, clock)
        talk.finish(1, clock)
    return talk


def test_a_late_pull_gets_whatever_rows_are_there_and_is_told_of_which_step() -> None:
    answer = behind().pull(2, 0, 7).answer
    assert isinstance(answer, Pulled)
    assert (answer.rows[0].tolist(), answer.step) == ([[-2.0]], 2)


def test_an_observer_is_never_late() -> None:
    talk = behind()
    with pytest.raises(StepPassed):
        talk.get(Pull(talk.fence(), (ids("user", 7),), at_step=1))


def test_a_late_export_is_of_the_newest_step() -> None:
    talk = behind()
    opened = talk.get(OpenExport(talk.fence(2), "user"))
    assert getattr(opened, "step", None) == 2


def test_a_late_push_is_not_taken_is_counted_and_says_so_by_its_step() -> None:
    talk = behind()
    assert talk.push(2, 0, {7: 100.0}) == Done(2)
    assert talk.shard.staging.rows_count == 0
    assert talk.stats().server["pushes_late"] == 1.0
    talk.finish(2, 1)
    assert talk.push(2, 2, {7: 4.0}) == Done(2)
    talk.finish(2, 2)
    talk.finish(0, 2)
    assert talk.read(7) == [-4.0]


def test_what_a_late_push_has_for_other_tables_is_applied_once() -> None:
    talk = Conversation(Sync(1), 2, tables=(USER, replace(ITEM, mode=Async())))
    talk.finish(0, 0)
    push = Push(talk.fence(1), 1, (rows("user", {7: 1.0}), rows("item", {7: 1.0})))
    for _ in range(2):
        assert talk.get(push) == Done(1)
    assert (talk.read(7), talk.read(7, table="item")) == ([0.0], [-1.0])


def test_a_late_rank_that_left_steps_out_holds_no_bounded_table_up() -> None:
    talk = Conversation(Sync(1), 2, tables=(USER, replace(ITEM, mode=BoundedStaleness(0))))
    for clock in range(5):
        talk.finish(0, clock)
    question = talk.pull(1, 5, 7, table="item", finished=Finished(4))
    assert question.rows == [0.0]

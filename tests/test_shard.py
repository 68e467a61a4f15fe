"""A shard's synchronous steps as conversations: who reads what, who waits for whom, what a repeated push does, who is looked at again.

Rows of "user" and "item" are 0 at first and SGD has lr 1, so a row is minus what was pushed to it.
"""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from conversation import ITEM, USER, Conversation, ids, rows, wants
from ps_proto.errors import InvalidRequest, StepPassed
from ps_proto.requests import Done, Finish, Finished, Pull, Pulled, Push
from ps_proto.values import SGD, Adagrad, Assigned, Async, BoundedStaleness, Constant, Mode, Sync, TableSpec
from ps_server.events import MakeRows
from ps_server.tasks import ReadStall, Stall

START = TableSpec("dense", 1, SGD(lr=1.0), Assigned())


# --- synchronous: reading ----------------------------------------------------------------------------------------------------


def test_a_pull_waits_for_the_fold_of_the_step_before_and_reads_exactly_that() -> None:
    talk = Conversation(Sync())
    talk.push(0, 0, {7: 6.0})
    question = talk.pull(0, 1, 7, finished=Finished(0))  # clocks [1, 0]
    assert question.is_waiting
    talk.push(1, 0, {7: 2.0})
    assert question.is_waiting
    talk.finish(1, 0)  # clocks [1, 1]: step 0 is folded
    assert question.rows == [-4.0]
    assert isinstance(question.answer, Pulled)
    assert question.answer.step == 1


def test_the_first_step_reads_the_initial_values_and_creates_nothing() -> None:
    talk = Conversation(Sync(), tables=(TableSpec("user", 1, initializer=Constant(3.0)),))
    assert talk.pull(0, 0, 7, 2**64 - 1, 0).rows == [3.0, 3.0, 3.0]
    assert len(talk.shard.tables["user"]) == 0


def test_a_staged_push_is_seen_by_nobody_before_the_fold() -> None:
    talk = Conversation(Sync())
    talk.push(0, 0, {7: 6.0})
    assert talk.pull(0, 0, 7).rows == [0.0]
    assert talk.pull(1, 0, 7).rows == [0.0]
    assert talk.read(7) == [0.0]
    assert len(talk.shard.tables["user"]) == 0


def test_a_step_that_has_passed_cannot_be_read() -> None:
    talk = Conversation(Sync(), world_size=1)
    talk.finish(0, 0)
    talk.finish(0, 1)
    with pytest.raises(StepPassed) as refusal:
        talk.get(Pull(talk.fence(0, 1), (ids("user", 7),)))
    assert (refusal.value.clock, refusal.value.step) == (1, 2)


def test_a_pull_that_brings_the_last_fact_is_answered_at_once() -> None:
    talk = Conversation(Sync())
    talk.finish(1, 0)
    talk.push(0, 0, {7: 2.0})
    assert talk.pull(0, 1, 7, finished=Finished(0)).rows == [-1.0]


def test_a_prefetched_pull_of_a_later_step_is_answered_when_that_step_may_read() -> None:
    talk = Conversation(Sync(), world_size=1)
    question = talk.pull(0, 2, 7)
    talk.push(0, 0, {7: 1.0})
    talk.finish(0, 0)
    assert question.is_waiting
    talk.push(0, 1, {7: 1.0})
    talk.finish(0, 1)
    assert question.rows == [-2.0]


def test_a_pull_without_ids_carries_the_fact_and_is_answered_at_once() -> None:
    talk = Conversation(Sync())
    answer = talk.get(Pull(talk.fence(0, 1), (), Finished(0)))
    assert answer == Pulled((), 0)
    talk.finish(1, 0)
    assert talk.step() == 1


# --- synchronous: the fold ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_fold_does_not_depend_on_the_order_of_arrival(order: tuple[int, ...]) -> None:
    talk = Conversation(Sync(), world_size=3)
    gradients = [1e8, 30.0, -1e8]  # 32 in this order, and 30 where the two great ones meet first
    for rank in order:
        talk.push(rank, 0, {7: gradients[rank]})
        talk.finish(rank, 0)
    assert talk.read(7) == [-float(np.float32(32.0) * np.float32(1 / 3))]


def test_several_pushes_of_a_step_add_up_by_their_number() -> None:
    talk = Conversation(Sync(), world_size=1)
    for seq, gradient in ((3, -1e8), (1, 1e8), (2, 30.0)):
        talk.push(0, 0, {7: gradient}, seq)
    talk.finish(0, 0)
    assert talk.read(7) == [-32.0]  # by any other order -30


def test_a_rank_that_pushed_nothing_counts_as_zeros() -> None:
    talk = Conversation(Sync(), world_size=4)
    talk.push(2, 0, {7: 8.0})
    for rank in range(4):
        talk.finish(rank, 0)
    assert talk.read(7) == [-2.0]


def test_the_optimizer_runs_once_a_step() -> None:
    talk = Conversation(Sync(), tables=(TableSpec("user", 1, Adagrad(lr=1.0, eps=0.0)),))
    talk.push(0, 0, {7: 3.0})
    talk.push(1, 0, {7: 5.0})
    talk.finish(0, 0)
    talk.finish(1, 0)
    assert talk.read(7) == [-1.0]  # the mean 4 over √(4²); twice would be more
    assert talk.stats().tables["user"]["rows_updated"] == 1


@pytest.mark.parametrize("same_content", [True, False])
def test_a_repeated_push_changes_nothing_before_the_fold(same_content: bool) -> None:
    talk = Conversation(Sync(), world_size=1)
    talk.push(0, 0, {7: 2.0})
    talk.push(0, 0, {7: 2.0 if same_content else 9.0})
    talk.finish(0, 0)
    assert talk.read(7) == [-2.0]
    assert talk.stats().server["pushes_repeated"] == 1


def test_a_late_repetition_after_the_fold_is_refused_and_changes_nothing() -> None:
    talk = Conversation(Sync(), world_size=1)
    talk.push(0, 0, {7: 2.0})
    talk.finish(0, 0)
    with pytest.raises(StepPassed):
        talk.push(0, 0, {7: 2.0})
    talk.finish(0, 1)
    assert talk.read(7) == [-2.0]
    assert talk.shard.staging.rows_count == 0


def test_two_synchronous_tables_and_an_asynchronous_one_in_one_push() -> None:
    talk = Conversation(Sync(), world_size=1, tables=(USER, replace(ITEM, mode=Async()), TableSpec("tag", 1, SGD(lr=1.0))))
    talk.get(Push(talk.fence(0), 1, (rows("user", {7: 1.0}), rows("item", {7: 2.0}), rows("tag", {7: 3.0}))))
    assert talk.get(Pull(talk.fence(), (ids("user", 7), ids("item", 7), ids("tag", 7)))).rows == (0.0, -2.0, 0.0)  # type: ignore[attr-defined]
    talk.finish(0, 0)
    assert talk.read(7, table="user") + talk.read(7, table="tag") == [-1.0, -3.0]


# --- finished, leave, hyperparameters ----------------------------------------------------------------------------------------


def test_a_repeated_fact_is_harmless_and_an_older_one_too() -> None:
    talk = Conversation(Sync())
    for clock in (0, 1, 0, 1):
        talk.finish(0, clock)
    assert talk.shard.clocks.finished == {0: 1, 1: -1}
    assert talk.step() == 0


def test_a_leave_shrinks_the_roster_of_later_steps_only() -> None:
    talk = Conversation(Sync())
    talk.push(1, 0, {7: 4.0})
    talk.finish(1, 0, leave=True)
    talk.push(0, 0, {7: 2.0})
    talk.finish(0, 0)
    assert talk.read(7) == [-3.0]  # the mean of two
    talk.push(0, 1, {7: 2.0})
    talk.finish(0, 1)
    assert talk.read(7) == [-5.0]  # of one


def test_a_leave_of_the_rank_that_all_wait_for_lets_them_go_on() -> None:
    talk = Conversation(Sync())
    question = talk.pull(0, 1, 7, finished=Finished(0))
    talk.get(Finish(talk.fence(1), leave=True))
    assert question.rows == [0.0]


def test_a_repeated_leave_is_harmless() -> None:
    talk = Conversation(Sync())
    talk.finish(1, 0, leave=True)
    talk.finish(1, 0, leave=True)
    assert talk.shard.clocks.left_after == {1: 0}


@pytest.mark.parametrize("act", ["push", "assign", "finish"])
def test_a_rank_that_left_writes_no_more(act: str) -> None:
    """It would be staged for a step whose fold does not look at it: acknowledged, and lost."""
    talk = Conversation(Sync())
    talk.finish(1, 0, leave=True)
    with pytest.raises(InvalidRequest, match="left"):
        talk.finish(1, 1) if act == "finish" else getattr(talk, act)(1, 1, {7: 1.0})


def test_flush_waits_for_the_fold_and_says_at_which_step_the_shard_is() -> None:
    talk = Conversation(Sync())
    flush = talk.ask(Finish(talk.fence(0, 1), Finished(0), wait_s=5.0))
    assert flush.is_waiting
    talk.finish(1, 0)
    assert flush.answer == Done(1)


def test_flush_waits_for_nothing_where_no_table_is_synchronous() -> None:
    talk = Conversation(Async())
    assert talk.get(Finish(talk.fence(0, 1), Finished(0), wait_s=5.0)) == Done(0)


def test_hyperparameters_of_a_step_hold_for_that_step() -> None:
    talk = Conversation(Sync(), world_size=1)
    for clock, lr in ((0, 0.5), (1, 2.0)):
        talk.push(0, clock, {7: 4.0})
        talk.finish(0, clock, wants("user", lr=lr))
    assert talk.read(7) == [-10.0]
    talk.push(0, 2, {7: 4.0})
    talk.finish(0, 2)
    assert talk.read(7) == [-14.0]  # the table's own again


def test_a_rank_that_wants_other_hyperparameters_is_refused_and_its_fact_not_taken() -> None:
    talk = Conversation(Sync())
    talk.finish(0, 0, wants("user", lr=0.5))
    with pytest.raises(InvalidRequest, match=r"rank 0.*lr.*0\.5"):
        talk.finish(1, 0, wants("user", lr=0.25))
    assert talk.shard.clocks.finished == {0: 0, 1: -1}
    talk.finish(1, 0, wants("user", lr=0.5))
    assert talk.step() == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_lowest_rank_that_says_anything_of_a_table_counts(order: tuple[int, ...]) -> None:
    talk = Conversation(Sync(), world_size=3, tables=(USER, ITEM))
    asked = {0: (), 1: (wants("user", lr=0.5),), 2: (wants("user", lr=0.5), wants("item", lr=2.0))}
    for rank in order:
        talk.get(Push(talk.fence(rank), 1, (rows("user", {7: 2.0}), rows("item", {7: 2.0}))))
        talk.finish(rank, 0, *asked[rank])
    assert talk.read(7, table="user") + talk.read(7, table="item") == [-1.0, -4.0]


def test_the_resume_state_is_that_of_the_newest_step_and_may_follow_it() -> None:
    talk = Conversation(Async())
    talk.finish(0, 0, resume=b"zero")
    talk.finish(0, 1)
    talk.pull(0, 2, 7, finished=Finished(1, resume=b"one"))
    talk.finish(0, 0, resume=b"late")
    talk.finish(0, 1)
    assert talk.shard.facts[0].resume == b"one"


def test_a_rank_that_is_ahead_of_the_fold_leaves_the_fact_of_each_step_with_its_resume_state() -> None:
    talk = Conversation(Sync(), tables=(USER, replace(ITEM, mode=Async())))
    for clock in range(3):  # rank 0 uses only "item", which is not synchronous: it waits for nobody
        talk.finish(0, clock)
        talk.finish(0, clock, resume=bytes([clock]))  # it follows the bare fact
    assert [fact and fact.resume for fact in (talk.shard.steps.fact_at(0, clock) for clock in range(4))] == [b"\0", b"\1", b"\2", None]
    talk.finish(0, 1, resume=b"again")  # of a step that is not its newest
    for clock in range(2):
        talk.finish(1, clock)  # rank 1 lets a step be folded
        assert talk.step() == clock + 1
        assert talk.shard.steps.fact_at(0, clock) is not None  # what goes with the rows as they are now
        assert talk.shard.steps.fact_at(0, clock - 1) is None
        talk.shard.check_invariants()
    assert talk.shard.steps.fact_at(0, 1) == Finished(1, resume=b"again")
    assert talk.shard.facts == {0: Finished(2, resume=b"\2"), 1: Finished(1)}


def test_where_no_table_is_synchronous_only_the_newest_fact_of_a_rank_is_kept() -> None:
    talk = Conversation(Async())
    for clock in range(3):  # however far it is ahead of rank 1
        talk.finish(0, clock, resume=bytes([clock]))
    assert [talk.shard.steps.fact_at(0, clock) for clock in range(3)] == [None, None, Finished(2, resume=b"\2")]
    assert talk.shard.steps.facts.earlier_clocks == []


# --- who is looked at again, and when ----------------------------------------------------------------------------------------


def count_attempts(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> list[Pull]:
    """Return a list that grows by every attempt to answer a pull."""
    attempts: list[Pull] = []
    answer = talk.shard.reader._try_pull

    def counted(pull: Pull, make_rows: MakeRows, is_borrowed: bool) -> Pulled | None:
        attempts.append(pull)
        return answer(pull, make_rows, is_borrowed)

    monkeypatch.setattr(talk.shard.reader, "_try_pull", counted)
    return attempts


@pytest.mark.parametrize("mode", [Sync(), BoundedStaleness(0)], ids=str)
def test_pushes_of_others_do_not_look_at_those_who_wait(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = 300
    talk = Conversation(mode, world_size=ranks)
    attempts = count_attempts(talk, monkeypatch)
    waiting = []
    for rank in range(1, ranks):
        talk.push(rank, 0, {rank: 1.0})
        waiting.append(talk.pull(rank, 1, rank, finished=Finished(0)))
    for seq in range(1, ranks):
        talk.push(0, 0, {0: 1.0}, seq=seq)
    assert all(question.is_waiting for question in waiting)
    assert len(attempts) == ranks - 1  # one when each came
    talk.finish(0, 0)
    assert not any(question.is_waiting for question in waiting)
    assert len(attempts) == 2 * (ranks - 1)  # and one when the slowest had finished


def test_whoever_waits_for_start_values_is_looked_at_when_some_are_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation(Async(), tables=(START, USER))
    attempts = count_attempts(talk, monkeypatch)
    question = talk.pull(1, 0, 7, table="dense")
    talk.assign(0, 0, {8: 1.0})
    talk.push(0, 0, {7: 1.0}, seq=2)
    assert (question.is_waiting, len(attempts)) == (True, 1)
    talk.assign(0, 0, {8: 1.0}, seq=3, table="dense")
    assert (question.is_waiting, len(attempts)) == (True, 2)
    talk.assign(0, 0, {7: 1.0}, seq=4, table="dense")
    assert question.rows == [1.0]


def test_a_shard_knows_no_time_so_its_stall_is_left_to_the_edge() -> None:
    assert Conversation(Async()).get(ReadStall(4)) == Stall()

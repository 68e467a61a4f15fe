"""Rows that a shard is given instead of learning them, and who waits for them, as conversations.

Rows of "user" and "item" are 0 at first and SGD has lr 1, so a row is minus what was pushed to it.
"""

from dataclasses import replace

import pytest

from conversation import USER, Conversation, rows, settled
from ps_proto.errors import InvalidRequest, RowsUnset
from ps_proto.orders import FenceRank, RankFenced
from ps_proto.requests import NEVER, UNNAMED, Assign, ClearTable, Push
from ps_proto.values import SGD, Assigned, Async, BoundedStaleness, Mode, Sync, TableSpec

MODES: list[Mode] = [Sync(), Async(), BoundedStaleness(1)]
START = TableSpec("dense", 1, SGD(lr=1.0), Assigned())


# --- assigning ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_an_assignment_takes_effect_at_once_and_once(mode: Mode) -> None:
    talk = Conversation(mode, world_size=1)
    talk.assign(0, 0, {7: 5.0}, seq=1)
    assert talk.read(7) == [5.0]
    talk.push(0, 0, {7: 1.0}, seq=2)
    talk.finish(0, 0)
    talk.assign(0, 0, {7: 5.0}, seq=1)  # late: it must not undo the push
    assert talk.read(7) == [4.0]


def test_only_absent_leaves_rows_that_are_there() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0})
    talk.assign(1, 0, {7: 5.0, 8: 6.0}, only_absent=True)
    assert talk.read(7, 8) == [-1.0, 6.0]


def test_start_values_that_are_put_again_take_no_name_from_the_push_that_is_redone() -> None:
    talk = Conversation(Async(), world_size=1)
    talk.push(0, 0, {7: 1.0}, seq=1)
    talk.get(FenceRank(1, 0, 2))  # the worker dies before it has finished the step, and starts again from its top
    talk.get(settled(0, 2, NEVER))
    fence = talk.fence(0, 0, incarnation=2)
    for _ in range(2):  # one is doubled on its way
        talk.get(Assign(fence, UNNAMED, (rows("user", {7: 9.0, 8: 6.0}),), only_absent=True))
    talk.get(Push(fence, 1, (rows("user", {7: 1.0, 8: 1.0}),)))
    assert talk.read(7) == [-1.0]  # redone, and not applied twice
    assert talk.shard.counters.table("user").rows_repeated == 1
    assert talk.read(8) == [5.0]  # the first push had no id 8: that bucket has yet to hear of it


def test_start_values_without_a_name_leave_no_trace_of_their_step() -> None:
    talk = Conversation(Async(), world_size=1)
    talk.assign(0, 0, {7: 9.0}, seq=UNNAMED, only_absent=True)
    assert talk.get(FenceRank(1, 0, 2)) == RankFenced(None, NEVER, NEVER, since=0)


@pytest.mark.parametrize("ask", ["push", "assign", "clear"])
def test_what_is_not_the_same_when_it_is_done_again_needs_a_name(ask: str) -> None:
    talk = Conversation(Async(), world_size=1)
    fence, part = talk.fence(0, 0), (rows("user", {7: 1.0}),)
    body = {"push": Push(fence, UNNAMED, part), "assign": Assign(fence, UNNAMED, part), "clear": ClearTable(fence, UNNAMED, "user")}[ask]
    with pytest.raises(InvalidRequest, match="seq is 0, but must be from 1"):
        talk.get(body)
    assert talk.read(7) == [0.0]


# --- rows that nobody has set -----------------------------------------------------------------------------------------------


def test_a_pull_of_unset_rows_waits_for_rank_0() -> None:
    talk = Conversation(Sync(), tables=(START,))
    question = talk.pull(1, 0, 1, 2, table="dense")
    talk.assign(0, 0, {1: 5.0}, seq=1, table="dense")
    assert question.is_waiting
    talk.assign(0, 0, {2: 6.0}, seq=2, table="dense", only_absent=True)
    assert question.rows == [5.0, 6.0]


def test_at_its_deadline_a_pull_of_unset_rows_names_rank_0() -> None:
    talk = Conversation(Async(), tables=(START,))
    question = talk.pull(1, 0, 1, 2, table="dense", wait_s=3.0)
    talk.assign(0, 0, {1: 5.0}, table="dense")
    talk.tick(3.0)
    with pytest.raises(RowsUnset, match="rank 0") as refusal:
        _ = question.answer
    assert (refusal.value.table, refusal.value.missing, refusal.value.after_s) == ("dense", 1, 3.0)


def test_start_values_come_from_rank_0_alone() -> None:
    talk = Conversation(Async(), tables=(START, USER))
    with pytest.raises(InvalidRequest, match="rank 0"):
        talk.get(Assign(talk.fence(1), 1, (rows("user", {7: 1.0}), rows("dense", {7: 1.0}))))
    assert talk.read(7) == [0.0]
    talk.assign(1, 0, {7: 5.0})
    assert talk.read(7) == [5.0]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_push_to_unset_rows_is_refused_whole(mode: Mode) -> None:
    talk = Conversation(mode, tables=(START, replace(USER, mode=Async())))
    with pytest.raises(InvalidRequest, match="without a value"):
        talk.get(Push(talk.fence(1), 1, (rows("user", {7: 1.0}), rows("dense", {7: 1.0}))))
    assert talk.read(7) == [0.0]

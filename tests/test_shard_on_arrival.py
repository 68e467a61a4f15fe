"""A shard's asynchronous and bounded tables as conversations: what is applied on arrival, and who waits for whom.

Rows of "user" and "item" are 0 at first and SGD has lr 1, so a row is minus what was pushed to it.
"""

import pytest

from conversation import ITEM, USER, Conversation, rows, wants
from ps_proto.errors import StalenessTimeout
from ps_proto.requests import OBSERVER, Finish, Finished, Push
from ps_proto.values import Async, BoundedStaleness, Mode, Sync

MODES: list[Mode] = [Sync(), Async(), BoundedStaleness(1)]


# --- asynchronous ------------------------------------------------------------------------------------------------------------


def test_a_push_is_applied_on_arrival_and_a_pull_never_waits() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 2.0})
    assert talk.pull(1, 100, 7).rows == [-2.0]
    assert talk.read(7) == [-2.0]


def test_a_push_is_applied_once_under_its_name() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 2.0}, seq=1)
    talk.push(0, 0, {7: 2.0}, seq=2)
    talk.push(0, 0, {7: 2.0}, seq=1)  # late
    talk.push(0, 0, {7: 2.0}, seq=2)
    assert talk.read(7) == [-4.0]
    assert talk.stats().tables["user"]["rows_repeated"] == 2
    talk.push(1, 0, {7: 2.0}, seq=1)  # another rank's is another push
    assert talk.read(7) == [-6.0]


def test_hyperparameters_ride_in_the_push() -> None:
    talk = Conversation(Async(), tables=(USER, ITEM))
    talk.get(Push(talk.fence(0), 1, (rows("user", {7: 2.0}), rows("item", {7: 2.0})), (wants("item", lr=0.5),)))
    assert talk.read(7, table="user") + talk.read(7, table="item") == [-2.0, -1.0]


def test_an_empty_push_is_legal_in_every_mode() -> None:
    for mode in MODES:
        talk = Conversation(mode, world_size=1)
        talk.get(Push(talk.fence(0), 1, ()))
        talk.get(Push(talk.fence(0), 2, (rows("user", {}),)))
        talk.finish(0, 0)
        assert len(talk.shard.tables["user"]) == 0


# --- bounded staleness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_pull_waits_while_some_rank_is_further_behind_than_the_bound(bound: int) -> None:
    talk = Conversation(BoundedStaleness(bound))
    for clock in range(4):
        talk.finish(0, clock)  # clocks [4, 0]
    talk.push(0, 4, {7: 1.0})
    assert talk.pull(0, bound, 7).rows == [-1.0]
    question = talk.pull(0, bound + 1, 7)
    assert question.is_waiting
    talk.push(1, 0, {7: 1.0})
    talk.finish(1, 0)  # clocks [4, 1]
    assert question.rows == [-2.0]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_the_asker_counts_too(bound: int) -> None:
    talk = Conversation(BoundedStaleness(bound))
    for clock in range(9):
        talk.finish(1, clock)  # clocks [0, 9]
    question = talk.pull(0, bound + 1, 7, wait_s=1.0)
    talk.tick(1.0)
    with pytest.raises(StalenessTimeout) as refusal:
        _ = question.answer
    assert (refusal.value.rank, refusal.value.min_clock, refusal.value.bound) == (0, 0, bound)


def test_a_rank_that_left_does_not_count() -> None:
    talk = Conversation(BoundedStaleness(0))
    question = talk.pull(0, 1, 7, finished=Finished(0))
    talk.get(Finish(talk.fence(1), leave=True))
    assert question.rows == [0.0]


def test_an_observer_reads_a_bounded_table_as_it_is() -> None:
    talk = Conversation(BoundedStaleness(0))
    talk.push(0, 0, {7: 1.0})
    assert talk.pull(OBSERVER, 50, 7).rows == [-1.0]

"""Barriers by their numbers: when one opens, what those agree upon who are there, and what holds after a rollback."""

import pytest

from ps_server.coordinator.generations import Generations
from ps_server.coordinator.minima import RUNS_KEPT

BOTH = [0, 1]


def come(barriers: Generations, generation: int, *values: int | None) -> int | None:
    """Let ranks 0, 1, … come to a barrier, each with its value; return what is agreed upon."""
    for rank, value in enumerate(values):
        barriers.stand(rank, generation, value)
    return barriers.try_open(generation, BOTH)


def test_a_barrier_opens_once_all_are_there_and_says_the_same_to_whoever_asks_again() -> None:
    barriers = Generations()
    assert come(barriers, 0, 7) is None
    assert barriers.missing(0, BOTH) == [1]
    assert come(barriers, 0, 7, 5) == 5
    assert barriers.next == 1
    barriers.stand(0, 1, 3)
    barriers.stand(0, 0, -9)  # a late message
    assert barriers.opened(0) == 5
    assert barriers.opened(1) is None
    assert barriers.try_open(1, BOTH) is None
    barriers.stand(1, 1, 4)
    assert barriers.try_open(1, BOTH) == 3


def test_one_that_is_replaced_or_leaves_was_not_there() -> None:
    barriers = Generations()
    barriers.stand(0, 0, 7)
    barriers.stand(1, 0, 5)
    barriers.forget(1)
    assert barriers.try_open(0, BOTH) is None
    assert barriers.try_open(0, [0]) == 7


def test_what_was_agreed_upon_is_forgotten_after_a_while() -> None:
    barriers = Generations()
    for generation in range(RUNS_KEPT + 1):
        assert come(barriers, generation, generation, 1000) == generation
    assert barriers.is_forgotten(0)
    assert not barriers.is_forgotten(1)
    assert not barriers.is_forgotten(RUNS_KEPT + 1)


def test_a_long_evaluation_before_each_batch_of_which_all_agree_is_not_forgotten() -> None:
    """A worker that dies at its end does it again, and asks what all have agreed upon since the last step."""
    barriers = Generations()
    for generation in range(1000):
        come(barriers, generation, 1, 2)
    come(barriers, 1000, 1, 0)
    barriers.forget(0)
    assert [barriers.opened(generation) for generation in (0, 500, 999, 1000)] == [1, 1, 1, 0]
    assert len(barriers.minima()) == 2


@pytest.fixture
def back() -> Generations:
    """The barriers 0, 1 and 2 opened with 0, 10 and 20; then all went back."""
    barriers = Generations()
    for generation in range(3):
        come(barriers, generation, 10 * generation, 10 * generation + 5)
    barriers.go_back()
    return barriers


def test_after_a_rollback_all_agree_anew_on_what_all_come_to_again(back: Generations) -> None:
    assert back.opened(1) is None
    assert come(back, 1, 99) is None
    assert come(back, 1, 99, 98) == 98
    assert come(back, 2, 97, 96) == 96


def test_one_that_had_passed_it_is_not_waited_for_and_the_others_hear_what_it_heard(back: Generations) -> None:
    back.stand(1, 2, None)
    assert come(back, 1, 99) == 10
    assert come(back, 2, 99) == 20
    assert come(back, 3, 99) is None  # there nobody was
    back.stand(1, 3, 98)
    assert back.try_open(3, BOTH) == 98


def test_one_that_comes_to_a_later_one_is_beyond_those_before(back: Generations) -> None:
    back.stand(1, 3, 98)
    assert come(back, 2, 99) == 20
    assert come(back, 3, 99) == 98


def test_one_that_is_missing_is_waited_for_after_a_rollback_too(back: Generations) -> None:
    assert come(back, 2, 99) is None
    assert back.missing(2, BOTH) == [1]


def test_what_nobody_knows_any_more_is_not_guessed(back: Generations) -> None:
    barriers = Generations(0)
    barriers.go_back()
    barriers.stand(1, 6, None)
    barriers.stand(0, 5, 99)
    assert barriers.is_forgotten(5)


def test_all_of_it_comes_back_from_what_is_stored(back: Generations) -> None:
    come(back, 1, 99, 98)
    again = Generations(back.next, back.minima(), back.earlier())
    assert (again.next, again.opened(1)) == (2, 98)
    again.stand(1, 2, None)
    assert come(again, 2, 99) == 20
    again.go_back()
    again.stand(1, 2, None)
    assert come(again, 1, 50) == 98  # the later word counts

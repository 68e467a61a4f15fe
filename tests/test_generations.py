"""Barriers by their numbers: when one opens, what those agree upon who are there, and what holds after a rollback."""

from collections.abc import Callable, Sequence, Set

import pytest

from ps_proto.requests import SkippedTurn
from ps_server.coordinator.generations import Generations
from ps_server.coordinator.minima import RUNS_KEPT
from ps_server.coordinator.stand import Stand

BOTH = [0, 1]


def come(barriers: Generations, generation: int, *values: int | None) -> int | None:
    """Let ranks 0, 1, … come to a barrier, each with its value; return what is agreed upon."""
    for rank, value in enumerate(values):
        barriers.stand(rank, Stand(generation, value))
    return barriers.try_open(generation, BOTH)


def test_a_barrier_opens_once_all_are_there_and_says_the_same_to_whoever_asks_again() -> None:
    barriers = Generations()
    assert come(barriers, 0, 7) is None
    assert barriers.missing(0, BOTH) == [1]
    assert come(barriers, 0, 7, 5) == 5
    assert barriers.next == 1
    barriers.stand(0, Stand(1, 3))
    barriers.stand(0, Stand(0, -9))  # a late message
    assert barriers.opened(0) == 5
    assert barriers.opened(1) is None
    assert barriers.try_open(1, BOTH) is None
    barriers.stand(1, Stand(1, 4))
    assert barriers.try_open(1, BOTH) == 3


def test_one_that_gave_up_and_comes_again_brings_what_it_brings_then() -> None:
    """Rank 1 gives up at a barrier of turn 20 that rank 0 had skipped, and comes to the next turn's, which rank 0 comes to as well."""
    barriers = Generations()
    barriers.stand(0, Stand(0, 9, 21, (SkippedTurn(0, 20),)))
    barriers.stand(1, Stand(0, 0, 20))
    assert barriers.number(0, 0) == 1
    barriers.stand(1, Stand(0, 7, 21))
    assert barriers.number(0, 0) == 0
    assert barriers.try_open(0, BOTH) == 7


def test_one_that_is_replaced_or_leaves_was_not_there() -> None:
    barriers = Generations()
    barriers.stand(0, Stand(0, 7))
    barriers.stand(1, Stand(0, 5))
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
    barriers.go_back(barriers.passed())
    return barriers


def test_after_a_rollback_all_agree_anew_on_what_all_come_to_again(back: Generations) -> None:
    assert back.opened(1) is None
    assert come(back, 1, 99) is None
    assert come(back, 1, 99, 98) == 98
    assert come(back, 2, 97, 96) == 96


def test_one_that_had_passed_it_is_not_waited_for_and_the_others_hear_what_it_heard(back: Generations) -> None:
    back.stand(1, Stand(3, None))
    assert come(back, 1, 99) == 10
    assert come(back, 2, 99) == 20
    assert come(back, 3, 99) is None  # there nobody was
    back.stand(1, Stand(3, 98))
    assert back.try_open(3, BOTH) == 98


def test_one_that_comes_to_a_later_one_is_beyond_those_before(back: Generations) -> None:
    back.stand(1, Stand(3, 98))
    assert come(back, 2, 99) == 20
    assert come(back, 3, 99) == 98


def test_one_that_is_missing_is_waited_for_after_a_rollback_too(back: Generations) -> None:
    assert come(back, 2, 99) is None
    assert back.missing(2, BOTH) == [1]


def test_what_nobody_knows_any_more_is_not_guessed() -> None:
    barriers = Generations()
    for generation in range(RUNS_KEPT + 5):
        come(barriers, generation, generation, 1000)
    barriers.go_back(barriers.passed())
    barriers.stand(1, Stand(7, None))
    barriers.stand(0, Stand(4, 99))
    assert barriers.is_forgotten(4)
    assert not barriers.is_forgotten(5)


def test_what_was_before_a_rollback_says_nothing_beyond_what_any_rank_had_passed() -> None:
    """Then both ranks skipped the rest of a turn, so that its third barrier's number was that of another one; now only rank 0 skips it."""
    barriers = Generations()
    for generation, turn in ((0, 0), (1, 20), (2, 20), (3, 0)):
        for rank in BOTH:
            barriers.stand(rank, Stand(generation, 100, turn))
        assert barriers.try_open(generation, BOTH) == 100
    barriers.go_back(barriers.passed())
    for generation, turn in ((0, 0), (1, 20), (2, 20)):
        for rank in BOTH:
            barriers.stand(rank, Stand(generation, 5, turn))
        assert barriers.try_open(generation, BOTH) == 5
    barriers.stand(1, Stand(3, 52, 20))
    barriers.forget(0)
    barriers.stand(0, Stand(1, None, skipped=(SkippedTurn(1, 20),)))
    assert barriers.try_open(3, BOTH) == 52
    barriers.stand(0, Stand(1, 60, skipped=(SkippedTurn(1, 20),)))
    assert barriers.number(0, 1) == 4


def test_what_was_before_a_rollback_says_nothing_of_a_barrier_that_opened_since(behind: Generations) -> None:
    """Rank 1 came to the turn's barrier then, and skips the turn now."""
    assert ask(behind, 1, 3, 0, TURN) == 0
    behind.go_back(behind.passed())
    for value in (None, 70):
        for rank in BOTH:
            behind.stand(rank, Stand(3, value, skipped=SKIPPED))
    assert behind.try_open(3, BOTH) == 70
    behind.stand(0, Stand(4, 80, TURN + 1))
    assert behind.try_open(4, BOTH) is None
    behind.stand(1, Stand(4, 81, TURN + 1))
    assert behind.try_open(4, BOTH) == 80


def test_ranks_that_all_went_back_behind_what_is_known_agree_anew() -> None:
    """A job that meets behind each step, and whose checkpoint is older than what is kept of its barriers."""
    barriers = Generations()
    for generation in range(RUNS_KEPT + 5):
        for rank in BOTH:
            barriers.stand(rank, Stand(generation, 0, turn=generation + 1))
        assert barriers.try_open(generation, BOTH) == 0
    barriers.go_back(barriers.passed())
    for rank in BOTH:
        barriers.stand(rank, Stand(2, None))
    for generation in range(2, RUNS_KEPT + 5):
        for rank in BOTH:
            barriers.stand(rank, Stand(generation, 7 + rank, turn=generation + 1))
            assert not barriers.is_forgotten(generation)
        assert barriers.try_open(generation, BOTH) == 7


def test_in_a_cluster_that_began_with_a_checkpoint_those_who_come_agree_themselves() -> None:
    barriers = Generations()
    barriers.stand(1, Stand(6, None))
    assert come(barriers, 4, 99) == 99
    assert come(barriers, 5, 98) == 98
    assert come(barriers, 6, 97) is None


def test_all_of_it_comes_back_from_what_is_stored(back: Generations) -> None:
    come(back, 1, 99, 98)
    again = Generations(back.next, back.minima(), back.earlier(), back.stands())
    assert (again.next, again.opened(1)) == (2, 98)
    again.stand(1, Stand(3, None))
    assert come(again, 2, 99) == 20
    again.go_back(again.passed())
    again.stand(1, Stand(3, None))
    assert come(again, 1, 50) == 98  # the later word counts


# --- behind a turn that a rank skipped ---------------------------------------------------------------------------------------------


TURN = 20  # in which rank 0 died, and behind which it goes on
SKIPPED = (SkippedTurn(3, TURN),)


@pytest.fixture
def behind() -> Generations:
    """Barriers 0 to 2 opened; then rank 0 goes on behind a turn, and knows nothing of its barriers."""
    barriers = Generations()
    for generation in range(3):
        come(barriers, generation, 0, 0)
    barriers.forget(0)
    barriers.stand(0, Stand(3, None, skipped=SKIPPED))
    return barriers


def ask(barriers: Generations, rank: int, generation: int, value: int, turn: int = 0, ranks: Sequence[int] = BOTH) -> int | None:
    """Let one rank come to a barrier; return what is agreed upon there."""
    barriers.stand(rank, Stand(generation, value, turn, SKIPPED if rank == 0 else ()))
    number = barriers.number(rank, generation)
    opened = barriers.opened(number)
    return barriers.try_open(number, ranks) if opened is None else opened


def test_a_rank_is_not_waited_for_in_the_turn_that_it_skipped(behind: Generations) -> None:
    assert [ask(behind, 1, generation, 10 * generation, TURN) for generation in (3, 4, 5)] == [30, 40, 50]
    assert ask(behind, 1, 6, 60, TURN + 1) is None
    assert ask(behind, 0, 3, 55, TURN + 1) == 55
    assert behind.number(0, 3) == 6
    assert behind.opened(6) == 55


def test_it_stands_behind_those_that_are_yet_to_be_asked_for(behind: Generations) -> None:
    assert ask(behind, 0, 3, 55) is None
    assert [behind.number(0, 3), behind.missing(3, BOTH)] == [3, [1]]
    assert ask(behind, 1, 3, 30, TURN) == 30
    assert ask(behind, 1, 4, 40, TURN) == 40
    assert not behind.is_forgotten(4)
    assert [behind.number(0, 3), behind.missing(5, BOTH)] == [5, [1]]
    assert ask(behind, 1, 5, 50) == 50


def test_it_is_waited_for_in_every_other_turn(behind: Generations) -> None:
    assert ask(behind, 1, 3, 30) is None
    assert behind.missing(3, BOTH) == [0]
    behind.forget(1)
    assert ask(behind, 1, 3, 30, TURN - 1) is None


class CountedStand(Stand):
    """Counts how often anybody asks how far one reaches that skips."""

    looks = 0

    def settle(self, turns_of: Callable[[int], Set[int]]) -> bool:
        CountedStand.looks += 1
        return super().settle(turns_of)


def test_each_of_many_that_skip_the_same_turn_is_looked_at_as_it_comes_and_not_at_each_that_comes() -> None:
    """After a rollback all ranks may go on behind a turn."""
    barriers, CountedStand.looks = Generations(), 0
    for value in (None, 5):
        for rank in range(100):
            barriers.stand(rank, CountedStand(3, value, skipped=SKIPPED))
    assert CountedStand.looks == 200
    assert barriers.try_open(3, range(100)) == 5


def test_two_that_skip_the_same_turn_meet_behind_what_a_third_asks_for_in_it(behind: Generations) -> None:
    ranks = [0, 1, 2]
    behind.forget(1)
    behind.stand(1, Stand(3, None, skipped=SKIPPED))
    assert ask(behind, 0, 3, 55, ranks=ranks) is None
    assert ask(behind, 2, 3, 30, TURN, ranks) == 30
    assert ask(behind, 2, 4, 50, TURN + 1, ranks) is None
    behind.stand(1, Stand(3, 60, TURN + 1, SKIPPED))
    assert behind.try_open(4, ranks) == 50
    assert [behind.number(rank, 3) for rank in range(3)] == [4, 4, 3]


def test_one_that_skips_two_turns_stands_behind_the_barriers_of_both(behind: Generations) -> None:
    skipped = (SkippedTurn(3, TURN), SkippedTurn(4, TURN + 5))
    behind.forget(0)
    behind.stand(0, Stand(3, None, skipped=skipped))
    assert ask(behind, 1, 3, 30, TURN) == 30
    assert ask(behind, 1, 4, 40, TURN + 4) is None
    behind.stand(0, Stand(3, 45, TURN + 4, skipped))
    assert behind.try_open(4, BOTH) == 40
    assert ask(behind, 1, 5, 50, TURN + 5) == 50
    assert ask(behind, 1, 6, 60) is None
    behind.stand(0, Stand(4, 55, 0, skipped))
    assert behind.try_open(6, BOTH) == 55


def test_what_one_skips_holds_for_a_coordinator_that_is_started_again(behind: Generations) -> None:
    ask(behind, 1, 3, 30, TURN)
    again = Generations(behind.next, behind.minima(), behind.earlier(), behind.stands())
    assert ask(again, 1, 4, 40, TURN) == 40
    assert ask(again, 1, 5, 50) is None
    assert ask(again, 0, 3, 55) == 50
    assert again.number(0, 3) == 5


@pytest.mark.parametrize("is_passed", [False, True], ids=["both skip the turn", "rank 1 is behind it"])
def test_after_a_rollback_it_skips_what_another_had_passed_before(behind: Generations, is_passed: bool) -> None:
    assert [ask(behind, 1, generation, 0, TURN) for generation in (3, 4)] == [0, 0]
    behind.go_back(behind.passed())
    firsts, skips = ((3, 5), (SKIPPED, ())) if is_passed else ((3, 3), (SKIPPED, SKIPPED))
    for value in (None, 70):
        for rank in BOTH:
            behind.stand(rank, Stand(firsts[rank], value, skipped=skips[rank]))
    number = 5 if is_passed else 3
    assert [behind.number(rank, firsts[rank]) for rank in BOTH] == [number, number]
    assert behind.try_open(number, BOTH) == 70


def test_what_a_checkpoint_tells_of_barriers_holds_wherever_the_job_goes_on(behind: Generations) -> None:
    """One rank's state is of the middle of the turn that the other's is behind; between then and the rollback, the job passed many."""
    assert [ask(behind, 1, generation, 0, TURN) for generation in (3, 4)] == [0, 0]
    told = behind.passed()
    behind.forget(0)
    for generation in range(5, 5 + 2 * RUNS_KEPT):
        come(behind, generation, generation, generation)
    behind.go_back(told)
    for barriers in (behind, Generations()):
        barriers.go_back(told)
        barriers.stand(0, Stand(3, None, skipped=SKIPPED))
        barriers.stand(1, Stand(5, None))
        assert ask(barriers, 0, 3, 70, TURN + 1) is None
        assert barriers.number(0, 3) == 5
        assert ask(barriers, 1, 5, 60, TURN + 1) == 60


def test_what_no_rank_had_passed_where_all_went_back_is_not_told_again(back: Generations) -> None:
    come(back, 0, 7, 8)
    back.stand(1, Stand(2, None))
    assert [(run.generation, run.minimum) for run in back.passed()] == [(0, 7), (1, 10)]

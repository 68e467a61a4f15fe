"""Who has finished what, and what that allows."""

import random

import pytest

from naive.roster import NaiveRoster
from ps_proto.requests import NEVER
from ps_server.shard.clocks import Clocks


def test_nobody_has_finished_anything_at_first() -> None:
    clocks = Clocks(3)
    assert clocks.finished == {0: NEVER, 1: NEVER, 2: NEVER}
    assert (clocks.min_clock, clocks.clock_max) == (0, NEVER)


def test_a_later_job_begins_where_it_is_told() -> None:
    clocks = Clocks(2, first_clock=5)
    assert clocks.finished == {0: 4, 1: 4}
    assert (clocks.min_clock, clocks.clock_max) == (5, 4)


def test_without_a_job_there_is_nothing_to_wait_for() -> None:
    clocks = Clocks()
    assert (clocks.roster(0), clocks.can_fold(0), clocks.min_clock, clocks.clock_max) == ([], False, 0, NEVER)


def test_facts_are_merged_by_the_greatest() -> None:
    clocks = Clocks(2)
    assert clocks.finish(0, 3)
    assert not clocks.finish(0, 3)
    assert not clocks.finish(0, 2)
    assert clocks.finished == {0: 3, 1: NEVER}
    assert clocks.clock_max == 3


def test_a_step_folds_once_the_whole_roster_has_finished_it() -> None:
    clocks = Clocks(2)
    clocks.finish(0, 1)
    assert not clocks.can_fold(0)
    clocks.finish(1, 0)  # clocks [2, 1], min 1
    assert clocks.can_fold(0)
    assert not clocks.can_fold(1)


def test_a_rank_that_leaves_is_in_the_roster_up_to_its_last_step() -> None:
    clocks = Clocks(3)
    clocks.finish(1, 2)
    clocks.leave(1)
    assert clocks.roster(2) == [0, 1, 2]
    assert clocks.roster(3) == [0, 2]
    assert clocks.present == [0, 2]
    assert (clocks.takes_part(1, 2), clocks.takes_part(1, 3)) == (True, False)


def test_a_repeated_leave_keeps_the_first_word() -> None:
    clocks = Clocks(2)
    clocks.leave(1)
    clocks.finish(1, 4)
    clocks.leave(1)
    assert clocks.roster(0) == [0]


def test_nothing_folds_once_everybody_has_left() -> None:
    clocks = Clocks(2)
    for rank in (0, 1):
        clocks.finish(rank, 0)
        clocks.leave(rank)
    assert clocks.can_fold(0)
    assert not clocks.can_fold(1)


@pytest.mark.parametrize(("bound", "newest"), [(0, 2), (1, 3), (3, 5)])
def test_the_bound_lets_a_pull_run_ahead_of_the_slowest_by_so_many_steps(bound: int, newest: int) -> None:
    clocks = Clocks(2)
    clocks.finish(0, 9)
    clocks.finish(1, 1)  # clocks [10, 2]
    assert clocks.within_bound(newest, bound)
    assert not clocks.within_bound(newest + 1, bound)


def test_a_rank_that_left_holds_nobody_up() -> None:
    clocks = Clocks(2)
    clocks.finish(0, 9)
    clocks.leave(1)
    assert clocks.within_bound(10, 0)
    assert clocks.slowest() == 0
    assert clocks.min_clock == 10


def test_the_slowest_is_the_lowest_rank_of_those_furthest_behind() -> None:
    clocks = Clocks(4)
    for rank, clock in ((0, 3), (1, 1), (2, 1), (3, 2)):
        clocks.finish(rank, clock)
    assert (clocks.slowest(), clocks.min_clock) == (1, 2)


def test_where_all_have_left_the_slowest_is_one_of_them() -> None:
    clocks = Clocks(2)
    for rank, clock in ((0, 3), (1, 1)):
        clocks.finish(rank, clock)
        clocks.leave(rank)
    assert clocks.slowest() == 1


def test_the_next_rank_is_admitted_from_a_step_on() -> None:
    clocks = Clocks(2)
    clocks.finish(0, 6)
    clocks.finish(1, 4)
    clocks.admit(2, 7)
    assert (clocks.world_size, clocks.present, clocks.finished) == (3, [0, 1, 2], {0: 6, 1: 4, 2: 6})
    assert (clocks.roster(6), clocks.roster(7)) == ([0, 1], [0, 1, 2])
    assert (clocks.can_fold(4), clocks.can_fold(5)) == (True, False)
    assert [clocks.first_of(rank) for rank in (0, 2, 3)] == [0, 7, NEVER]
    clocks.admit(2, 9)
    assert clocks.first_of(2) == 7, "it is there"
    with pytest.raises(ValueError, match="rank 4 cannot be admitted to 3 ranks"):
        clocks.admit(4, 9)


def test_a_rank_that_left_is_admitted_anew() -> None:
    clocks = Clocks(2)
    clocks.finish(1, 2)
    clocks.leave(1)
    assert clocks.first_of(1) == NEVER
    clocks.finish(0, 5)
    clocks.admit(1, 6)
    assert [clocks.roster(step) for step in (2, 3, 5, 6)] == [[0, 1], [0], [0], [0, 1]]
    assert (clocks.finished, clocks.left_after, clocks.first_of(1)) == ({0: 5, 1: 5}, {}, 6)
    clocks.leave(1)
    assert [clocks.roster(step) for step in (5, 6)] == [[0], [0]], "it did no step this time"


def test_a_rank_that_left_ahead_of_the_others_comes_back_after_its_last_step() -> None:
    """Its gradients of the steps up to that are staged."""
    clocks = Clocks(2)
    clocks.finish(1, 4)
    clocks.leave(1)
    clocks.admit(1, 3)
    assert [clocks.roster(step) for step in (2, 3, 4, 5)] == [[0, 1]] * 4
    assert (clocks.finished[1], clocks.first_of(1)) == (4, 5)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_is_what_a_look_at_every_rank_gives(seed: int) -> None:
    rng = random.Random(seed)
    clocks, twin = Clocks(3, first_clock=(first := rng.randrange(3))), NaiveRoster(3, first)
    for _ in range(200):
        rank, chance = rng.randrange(len(twin.finished)), rng.random()
        if chance < 0.05:
            clocks.leave(rank)
            twin.leave(rank)
        elif chance < 0.1:
            rank = rng.choice([rank, min(len(twin.finished), 7)])
            admitted = max(twin.least + rng.choice((1, 2, 9)), 0)
            clocks.admit(rank, admitted)
            twin.admit(rank, admitted)
        elif twin.is_present(rank):
            clock = clocks.finished[rank] + rng.choice((0, 1, 1, 1, 3))
            clocks.finish(rank, clock)
            twin.finish(rank, clock)
        assert (clocks.present, clocks.finished) == (twin.present, dict(enumerate(twin.finished)))
        assert (clocks.min_clock, clocks.slowest()) == (twin.least + 1, twin.slowest)
        for step in range(max(twin.least - 4, 0), twin.least + 4):
            roster = twin.roster(step)
            assert clocks.roster(step) == roster
            has_finished = all(twin.finished[rank] >= step for rank in roster)
            assert clocks.can_fold(step) == (has_finished and (bool(roster) or (bool(twin.present) and twin.least >= step)))
            assert clocks.within_bound(step + 1, 0) == all(twin.finished[rank] >= step for rank in twin.present)
        for rank in range(9):
            assert clocks.first_of(rank) == twin.first_of(rank)


def test_the_first_to_finish_are_known_once_all_but_the_backup_workers_have() -> None:
    clocks = Clocks(4)
    clocks.finish(3, 0)
    clocks.finish(1, 2)
    assert clocks.first_finished(0, 1) == []
    assert clocks.first_finished(0, 2) == [1, 3]
    clocks.finish(0, 0)
    assert clocks.first_finished(0, 1) == [0, 1, 3]
    assert clocks.first_finished(1, 3) == [1]
    clocks.leave(2)
    assert clocks.first_finished(1, 2) == [1], "of three that are left, one is enough"
    assert Clocks(2).first_finished(0, 5) == [], "one at least"


def test_of_ranks_that_were_all_past_a_step_the_lowest_make_it_up() -> None:
    clocks = Clocks(4, 0, {0: 4, 1: 8, 2: 8, 3: 8})  # as a checkpoint may have them
    assert clocks.first_finished(5, 2) == [1, 2]
    assert clocks.first_finished(4, 2) == [0, 1]
    assert clocks.first_finished(5, 5) == [1], "one is enough"

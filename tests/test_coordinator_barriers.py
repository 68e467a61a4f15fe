"""The coordinator's core: barriers open when all are there, and say who is missing."""

from collections.abc import Sequence

import pytest

from driven import SYNC, Driver, driven, join, leave
from ps_proto.errors import BarrierTimeout, InvalidRequest, StaleIncarnation
from ps_proto.requests import Barrier, BarrierPassed, Done, JoinJob, LeaveJob, RenewLease, SkippedTurn
from ps_server.coordinator.generations import Generations
from ps_server.coordinator.minima import RUNS_KEPT
from ps_server.events import Dropped


@pytest.fixture
def driver() -> Driver:
    return driven()


def test_a_barrier_opens_when_all_are_there(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    first = driver.ask(Barrier(0, 1, 0, 10.0))
    driver.tick(5.0)
    assert first not in driver.outcomes
    second = driver.ask(Barrier(1, 1, 0, 10.0))
    assert driver.outcomes[first] == driver.outcomes[second] == BarrierPassed()
    assert driver.core.deadline_s() is None


def test_the_next_generation_waits_anew_and_a_late_repetition_does_not(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    driver.ask(Barrier(0, 1, 0, 10.0))
    driver.ask(Barrier(1, 1, 0, 10.0))
    assert driver.outcomes[driver.ask(Barrier(0, 1, 0, 10.0))] == BarrierPassed()  # its answer was lost
    waiting = driver.ask(Barrier(0, 1, 1, 10.0))
    assert waiting not in driver.outcomes
    assert driver.outcomes[driver.ask(Barrier(1, 1, 1, 10.0))] == driver.outcomes[waiting] == BarrierPassed(0, 1)


def test_one_that_asks_twice_is_one(driver: Driver) -> None:
    join(driver, 0, 3)
    join(driver, 1, 3)
    asked = [driver.ask(Barrier(0, 1, 0, 10.0)), driver.ask(Barrier(0, 1, 0, 10.0)), driver.ask(Barrier(1, 1, 0, 10.0))]
    assert not driver.outcomes.keys() & set(asked)
    driver.tick(10.0)
    assert {str(driver.outcomes[request]) for request in asked} == {"Barrier 0 waited 10.0 s for rank 2. Check that those workers run."}


def test_a_barrier_passes_with_the_least_value_also_for_who_asks_again(driver: Driver) -> None:
    for rank in range(3):
        join(driver, rank, 3)
    asked = [driver.ask(Barrier(rank, 1, 0, 10.0, value)) for rank, value in enumerate((5, -2, 7))]
    assert [driver.outcomes[request] for request in asked] == [BarrierPassed(-2)] * 3
    driver.ask(Barrier(1, 1, 1, 10.0, 4))
    assert driver.outcomes[driver.ask(Barrier(0, 1, 0, 10.0, 5))] == BarrierPassed(-2)  # its answer was lost


def test_barriers_that_have_passed_are_answered_for_a_while(driver: Driver) -> None:
    for rank in range(2):
        join(driver, rank)
    for generation in range(RUNS_KEPT + 1):
        for rank in range(2):
            driver.ask(Barrier(rank, 1, generation, 10.0, 100 * generation + rank))
    assert [driver.get(Barrier(0, 1, generation, 10.0)) for generation in (1, 2, RUNS_KEPT)] == [
        BarrierPassed(100 * generation, generation) for generation in (1, 2, RUNS_KEPT)
    ]
    with pytest.raises(InvalidRequest, match="generation is 0, but must be one that the others have passed lately, or the next one"):
        driver.get(Barrier(0, 1, 0, 10.0))


def test_what_one_brought_that_leaves_counts_no_more(driver: Driver) -> None:
    for rank in range(3):
        join(driver, rank, 3)
    first = driver.ask(Barrier(0, 1, 0, 10.0, 5))
    driver.ask(Barrier(1, 1, 0, 10.0, -2))
    driver.ask(LeaveJob(1, 1))
    driver.ask(Barrier(2, 1, 0, 10.0, 7))
    assert driver.outcomes[first] == BarrierPassed(5)


def test_a_barrier_that_times_out_names_the_missing_ranks(driver: Driver) -> None:
    join(driver, 1, 4)
    request = driver.ask(Barrier(1, 1, 0, 7.0))
    driver.tick(7.0)
    error = driver.outcomes[request]
    assert isinstance(error, BarrierTimeout)
    assert (error.generation, error.missing_ranks, error.after_s) == (0, "0, 2, 3", 7.0)


def test_one_that_leaves_is_waited_for_no_more(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    request = driver.ask(Barrier(0, 1, 0, 10.0))
    driver.ask(LeaveJob(1, 1))
    assert driver.outcomes[request] == BarrierPassed()


def test_one_that_joins_again_was_not_at_the_barrier(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    old = driver.ask(Barrier(0, 1, 0, 10.0))
    joined = join(driver, 0)
    assert isinstance(driver.outcomes[old], StaleIncarnation)
    other = driver.ask(Barrier(1, 1, 0, 10.0))
    assert other not in driver.outcomes  # the new one is not there yet
    driver.ask(Barrier(0, joined.incarnation, joined.barrier, 10.0))
    assert driver.outcomes[other] == BarrierPassed()


def test_one_that_joins_later_starts_at_the_generation_of_the_others(driver: Driver) -> None:
    join(driver, 0, 2)
    join(driver, 1, 2)
    for generation in range(3):
        driver.ask(Barrier(0, 1, generation, 10.0))
        driver.ask(Barrier(1, 1, generation, 10.0))
    assert join(driver, 1, 2).barrier == 3


def test_one_that_goes_on_before_its_first_step_has_ended_comes_to_each_barrier_of_its_script_again(driver: Driver) -> None:
    for rank in range(2):
        join(driver, rank)
    for rank in range(2):
        driver.ask(Barrier(rank, 1, 0, 10.0, rank + 5))
    again = driver.get(JoinJob(1, 2, SYNC, 77, resume=True))
    assert (again.barrier, again.is_resumed) == (0, False)
    assert driver.get(Barrier(1, again.incarnation, 0, 10.0, 99)) == BarrierPassed(5)


def test_a_barrier_without_a_job_is_refused(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match="rank is 0, which has not joined or has left"):
        driver.get(Barrier(0, 1, 0, 10.0))


@pytest.mark.parametrize(("rank", "incarnation"), [(1, 0), (1, 1), (2, 0), (0, 2)])
def test_a_barrier_from_a_rank_that_never_joined_says_so(driver: Driver, rank: int, incarnation: int) -> None:
    join(driver, 0)
    with pytest.raises(InvalidRequest, match=f"rank is {rank}, which has not joined or has left"):
        driver.get(Barrier(rank, incarnation, 0, 10.0))


def test_a_barrier_from_a_rank_that_has_left_says_so(driver: Driver) -> None:
    joined = join(driver, 0)
    join(driver, 1)
    leave(driver, joined, 0)
    with pytest.raises(InvalidRequest, match="rank is 0, which has not joined or has left"):
        driver.get(Barrier(0, joined.incarnation, 0, 10.0))


def test_one_who_has_gone_from_a_barrier_has_been_there_all_the_same(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    gone = driver.ask(Barrier(0, 1, 0, 10.0))
    driver.turn(Dropped(gone))
    assert driver.outcomes[driver.ask(Barrier(1, 1, 0, 10.0))] == BarrierPassed()
    assert gone not in driver.outcomes
    assert driver.outcomes[driver.ask(Barrier(0, 1, 0, 10.0))] == BarrierPassed()  # it asks again


class CountedGenerations(Generations):
    """Counts how often all ranks are looked at."""

    looks = 0

    def missing(self, generation: int, ranks: Sequence[int]) -> list[int]:
        self.looks += 1
        return super().missing(generation, ranks)


def full_barrier(count: int, skipped: tuple[SkippedTurn, ...] = ()) -> tuple[Driver, CountedGenerations, list[int]]:
    """Return a job of so many ranks that all stand at barrier 0 but for the last, and their requests; each has skipped these turns."""
    driver = driven()
    for rank in range(count):
        join(driver, rank, count)
    assert driver.core.job is not None
    counted = driver.core.job.barriers = CountedGenerations()
    return driver, counted, [driver.ask(Barrier(rank, 1, 0, 1000.0, skipped=skipped)) for rank in range(count - 1)]


@pytest.mark.parametrize("skipped", [(), (SkippedTurn(0, 7),)], ids=["each came by itself", "each was started again behind a step"])
def test_a_turn_looks_at_all_ranks_once_however_many_wait_at_a_barrier(skipped: tuple[SkippedTurn, ...]) -> None:
    count = 40
    driver, counted, asked = full_barrier(count, skipped)
    assert counted.looks == count - 1
    for rank in range(10):
        driver.ask(RenewLease(rank, 1, 0))
    assert counted.looks == count + 9
    asked.append(driver.ask(Barrier(count - 1, 1, 0, 1000.0)))
    assert counted.looks == count + 10
    assert [driver.outcomes[request] for request in asked] == [BarrierPassed()] * count


def test_the_ranks_of_a_job_are_counted_where_one_comes_or_goes_and_not_at_each_look() -> None:
    driver, _, _ = full_barrier(4)
    job = driver.core.job
    assert job is not None
    before = job.still_in
    driver.ask(RenewLease(0, 1, 0))
    assert job.still_in is before
    assert driver.get(LeaveJob(3, 1)) == Done()
    assert job.still_in == [0, 1, 2]


def test_of_those_who_wait_at_a_barrier_each_is_told_what_concerns_it_alone() -> None:
    driver, _, asked = full_barrier(4)
    join(driver, 2, 4)  # anew
    assert isinstance(driver.outcomes[asked[2]], StaleIncarnation)
    assert not driver.outcomes.keys() & {asked[0], asked[1]}


def test_those_who_wait_at_a_barrier_pass_it_once_the_last_rank_says_that_it_is_beyond() -> None:
    driver, _, asked = full_barrier(3)
    driver.ask(Barrier(2, 1, 1, 1000.0, is_between=True))
    assert [driver.outcomes[request] for request in asked] == [BarrierPassed()] * 2


def test_one_that_skipped_a_turn_is_looked_at_by_the_number_that_the_job_has_by_now() -> None:
    """Its number is not yet the job's: another that says the same one may stand at another barrier."""
    driver = driven()
    for rank in range(3):
        join(driver, rank, 3)
    skipping = driver.ask(Barrier(0, 1, 0, 1000.0, 5, skipped=(SkippedTurn(0, 7),)))
    waiting = driver.ask(Barrier(1, 1, 0, 1000.0, 6, turn=7))
    assert not driver.outcomes.keys() & {skipping, waiting}
    last = driver.ask(Barrier(2, 1, 0, 1000.0, 8, turn=7))
    assert driver.outcomes[waiting] == driver.outcomes[last] == BarrierPassed(6, 0)
    for rank in (1, 2):
        asked = driver.ask(Barrier(rank, 1, 1, 1000.0, 9))
    assert driver.outcomes[skipping] == driver.outcomes[asked] == BarrierPassed(5, 1)

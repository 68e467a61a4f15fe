"""What was agreed upon at barriers, against a dict of them."""

import random

import pytest

from ps_server.coordinator.minima import RUNS_KEPT, Minima
from ps_server.coordinator.stored import StoredMinimum


@pytest.mark.parametrize("seed", range(20))
def test_it_says_of_each_barrier_what_a_dict_says(seed: int) -> None:
    rng = random.Random(seed)
    minima, twin = Minima(), dict[int, int]()
    for _ in range(rng.randrange(1, 40)):
        run = StoredMinimum(rng.randrange(30), rng.randrange(3), rng.randrange(1, 6))
        minima.put(run)
        twin |= dict.fromkeys(range(run.generation, run.generation + run.count), run.minimum)
        assert {generation: minima.get(generation) for generation in range(40)} == {key: twin.get(key) for key in range(40)}
    again = Minima(minima.runs)
    assert [again.get(generation) for generation in range(40)] == [minima.get(generation) for generation in range(40)]
    ends = [(run.generation + run.count, run.minimum) for run in minima.runs]
    assert all((run.generation, run.minimum) not in ends for run in minima.runs), "a run that goes on is one"


def test_the_last_runs_are_kept() -> None:
    minima = Minima()
    for generation in range(2 * RUNS_KEPT):
        minima.put(StoredMinimum(generation, generation % 2))
    assert [run.generation for run in minima.runs] == list(range(RUNS_KEPT, 2 * RUNS_KEPT))
    assert minima.get(RUNS_KEPT - 1) is None

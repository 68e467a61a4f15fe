"""What was agreed upon at barriers, against a dict of them."""

import random

import pytest

from ps_server.coordinator.minima import RUNS_KEPT, Minima
from ps_server.tasks import BarrierRun

Agreed = tuple[int, tuple[int, ...]]


def found(minima: Minima, generation: int) -> Agreed | None:
    run = minima.get(generation)
    return None if run is None else (run.minimum, run.turns)


@pytest.mark.parametrize("seed", range(20))
def test_it_says_of_each_barrier_what_a_dict_says(seed: int) -> None:
    rng = random.Random(seed)
    minima, twin = Minima(), dict[int, Agreed]()
    for _ in range(rng.randrange(1, 40)):
        run = BarrierRun(rng.randrange(30), rng.randrange(3), rng.randrange(1, 6), (rng.randrange(2),))
        minima.put(run)
        twin |= dict.fromkeys(range(run.generation, run.generation + run.count), (run.minimum, run.turns))
        assert [found(minima, key) for key in range(40)] == [twin.get(key) for key in range(40)]
    again = Minima(minima.runs)
    assert [found(again, key) for key in range(40)] == [found(minima, key) for key in range(40)]
    ends = [(run.generation + run.count, run.minimum, run.turns) for run in minima.runs]
    assert all((run.generation, run.minimum, run.turns) not in ends for run in minima.runs), "a run that goes on is one"


def test_the_last_runs_are_kept() -> None:
    minima = Minima()
    for generation in range(2 * RUNS_KEPT):
        minima.put(BarrierRun(generation, generation % 2))
    assert [run.generation for run in minima.runs] == list(range(RUNS_KEPT, 2 * RUNS_KEPT))
    assert minima.get(RUNS_KEPT - 1) is None

"""Rounds of floor and ours in turn: what slows the machine for a while slows both."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.case import Case, Figure


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of all rounds."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def least(self) -> float:
        return min(self.rounds)

    @property
    def most(self) -> float:
        return max(self.rounds)


@dataclass(frozen=True, slots=True)
class Result:
    """One figure of a case. `ratio`: of ours and the floor of the same round."""

    case: str
    figure: Figure
    ours: Spread
    floor: Spread
    ratio: Spread

    @property
    def holds(self) -> bool:
        """Whether the median reaches the goal."""
        goal = self.figure.goal
        return goal.holds((self.ratio if goal.of == "ratio" else self.ours).median)


def measure(case: Case, rounds: int, warm_ups: int) -> list[Result]:
    """Return a result for each figure of the case. Raises WrongAnswer, also in a warm-up."""
    floors: list[Sequence[float]] = []
    ours: list[Sequence[float]] = []
    for number in range(warm_ups + rounds):
        case.prepare()
        floor, our = case.floor(), case.ours()
        case.check()
        if number >= warm_ups:
            floors.append(floor)
            ours.append(our)
    return [
        Result(
            case.name,
            figure,
            Spread(tuple([our[k] for our in ours])),
            Spread(tuple([floor[k] for floor in floors])),
            Spread(tuple([figure.goal.ratio(our[k], floor[k]) for our, floor in zip(ours, floors, strict=True)])),
        )
        for k, figure in enumerate(case.figures)
    ]


def milliseconds(work: Callable[[], object]) -> float:
    """Return how long the work takes."""
    begin_s = time.perf_counter()
    work()
    return (time.perf_counter() - begin_s) * 1e3

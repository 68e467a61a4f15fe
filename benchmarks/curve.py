"""A cost at several sizes of the work: what is measured of each, how it is printed, what is written as JSON."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import Spread
from benchmarks.report import spread_as_json, with_range

Values = Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one size; or nothing, and why the size was left out."""

    at: int
    values: Values = field(default_factory=dict)
    left_out: str | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A case: what grows, and the units of what is measured. `title` is a plot's; `note` says what to know when reading it.

    measure  yields the points as they come; it reads answers back and raises WrongAnswer.
    """

    case: str
    title: str
    axis: str
    units: Mapping[str, str]
    note: str
    measure: Callable[[], Iterator[Point]]

    def head(self) -> str:
        """Return the lines over its points."""
        columns = "".join([f" {f'{name}, {unit}' if unit else name:>26}" for name, unit in self.units.items()])
        return f"{self.case}: {self.note}\n{self.axis:>14}{columns}"

    def line(self, point: Point) -> str:
        """Return a line of the table under the head."""
        if point.left_out is not None:
            return f"{point.at:>14,} left out: {point.left_out}"
        return f"{point.at:>14,}" + "".join([f" {with_range(point.values[name]):>26}" for name in self.units])

    def as_json(self, points: list[Point]) -> dict[str, Any]:
        """Return everything that was measured."""
        return {
            "case": self.case,
            "title": self.title,
            "axis": self.axis,
            "units": dict(self.units),
            "note": self.note,
            "points": [
                {"at": point.at, "left_out": point.left_out, **{name: spread_as_json(value) for name, value in point.values.items()}}
                for point in points
            ],
        }


def rounds_of(one: Callable[[], Mapping[str, float]], rounds: int, warm_ups: int) -> dict[str, Spread]:
    """Return the spread of each value that one round returns."""
    measured = [one() for _ in range(warm_ups + rounds)][warm_ups:]
    return {name: Spread(tuple([values[name] for values in measured])) for name in measured[0]}

"""What is printed, and what is written as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Result, Spread

HEAD = f"{'case':<26} {'figure':<20} {'ours':>24} {'floor':>24} {'ratio':>20}  goal"


def line(result: Result) -> str:
    """Return a line of the table under HEAD: medians, with the range over the rounds."""
    figure = result.figure
    ours, floor = with_range(result.ours), with_range(result.floor)
    verdict = "" if result.holds else "  (missed)"
    name = f"{figure.name}, {figure.unit}"
    return f"{result.case:<26} {name:<20} {ours:>24} {floor:>24} {with_range(result.ratio):>20}  {figure.goal}{verdict}"


def as_json(results: Sequence[Result], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that was measured, with `about` it."""
    return {**about, "results": [_result(result) for result in results]}


def _result(result: Result) -> dict[str, Any]:
    goal = result.figure.goal
    return {
        "case": result.case,
        "figure": result.figure.name,
        "unit": result.figure.unit,
        "ours": spread_as_json(result.ours),
        "floor": spread_as_json(result.floor),
        "ratio": spread_as_json(result.ratio),
        "goal": {"of": goal.of, "kind": goal.kind, "bound": goal.bound, "holds": result.holds},
    }


def spread_as_json(spread: Spread) -> dict[str, Any]:
    return {"median": spread.median, "min": spread.least, "max": spread.most, "rounds": list(spread.rounds)}


def with_range(spread: Spread) -> str:
    return f"{_short(spread.median)} [{_short(spread.least)}..{_short(spread.most)}]"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

"""W7: a plot for each curve."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.growth import RECORD_BYTES
from benchmarks.plots.plot import Plot
from benchmarks.scaling.workers import SEEDS

Curve = Mapping[str, Any]


def scaling_plots(run: Mapping[str, Any]) -> Iterator[tuple[str, Plot]]:
    """Yield the name of a file and its plot, for each curve that has points."""
    for curve in run["curves"]:
        points = [point for point in curve["points"] if point["left_out"] is None]
        if not points:
            continue
        case = curve["case"]
        if case == "W7-ids":
            yield "scaling-ids", _times(curve, points, is_logarithmic=True)
        elif case == "W7-rows":
            yield "scaling-rows", _times(curve, points, is_logarithmic=True)
            yield "scaling-memory", _memory(curve, points)
        elif case == "W7-servers":
            yield "scaling-servers", _times(curve, points, is_logarithmic=False)
        else:
            yield f"scaling-workers-{case.split()[1]}", _workers(curve, points)


def _times(curve: Curve, points: list[Any], *, is_logarithmic: bool) -> Plot:
    plot = Plot(curve["title"], curve["axis"], "time, ms")
    across = [point["at"] for point in points]
    for name in [name for name in ("pull", "push") if name in curve["units"]]:
        plot.line(f"a {name}", across, [point[name] for point in points])
    plot.beside("np.take of the same rows, in the worker", across, [point["np.take"]["median"] for point in points])
    if is_logarithmic:
        plot.logarithmic(up=True)
    else:
        plot.from_zero()
    plot.ticks(across)
    return plot


def _memory(curve: Curve, points: list[Any]) -> Plot:
    plot = Plot("Memory of the server, by the rows held", curve["axis"], "memory, bytes a row")
    across = [point["at"] for point in points]
    plot.values("what the server holds more than empty", across, [point["memory"]["median"] for point in points])
    plot.beside("row and state alone", across, [RECORD_BYTES] * len(across))
    plot.logarithmic(up=False)
    plot.ticks(across)
    plot.from_zero()
    return plot


def _workers(curve: Curve, points: list[Any]) -> Plot:
    plot = Plot(curve["title"], curve["axis"], "thousand samples a second")
    across = [point["at"] for point in points]
    alone = points[0]["samples"]["median"] / across[0] / 1e3
    plot.line("ours", across, [_thousands(point["samples"]) for point in points])
    plot.line("without the sleep", across, [_thousands(point["flat out"]) for point in points])
    plot.beside("linear", across, [alone * count for count in across])
    seeds = [count for count in SEEDS if count in across]
    plot.marks("reported by seeds of this field, times ours with 1", seeds, [alone * SEEDS[count] for count in seeds])
    plot.ticks(across)
    plot.from_zero()
    return plot


def _thousands(spread: Mapping[str, Any]) -> dict[str, float]:
    return {name: spread[name] / 1e3 for name in ("median", "min", "max")}

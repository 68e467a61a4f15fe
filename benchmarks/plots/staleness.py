"""W8: the time of a step and the idle share in each mode; AUC where the run was given it."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.plots.plot import COLOURS, Plot
from benchmarks.staleness.finding import SPOKEN
from benchmarks.staleness.modes import MODES, spoken


def staleness_plots(run: Mapping[str, Any]) -> Iterator[tuple[str, Plot]]:
    """Yield the name of a file and its plot."""
    if run["findings"]:
        yield "staleness-step", _step(run)
        yield "staleness-idle", _idle(run)
    if run["auc"]:
        yield "staleness-auc", _auc(run["auc"])


def _modes(names: set[str]) -> list[str]:
    return [mode for mode in MODES if mode in names]


def _found(run: Mapping[str, Any], stragglers: str) -> dict[str, Mapping[str, Any]]:
    return {one["mode"]: one for one in run["findings"] if one["stragglers"] == stragglers}


def _name_modes(plot: Plot, modes: list[str]) -> None:
    plot.ticks(range(len(modes)), [spoken(mode) for mode in modes])
    plot.from_zero()


def _step(run: Mapping[str, Any]) -> Plot:
    title = f"Time of a step, {run['workers']} workers whose accelerator is a sleep of {run['accelerator_ms']:g} ms"
    plot = Plot(title, "mode", "time of a step, ms")
    modes = _modes({one["mode"] for one in run["findings"]})
    for stragglers, said in SPOKEN.items():
        found = _found(run, stragglers)
        places = [place for place, mode in enumerate(modes) if mode in found]
        colour = plot.values(said, places, [found[modes[place]]["step_ms"] for place in places])
        plot.beside(None, places, [found[modes[place]]["slowest_ms"] for place in places], colour)
    plot.beside("the slowest accelerator in each step", [], [])
    _name_modes(plot, modes)
    return plot


def _idle(run: Mapping[str, Any]) -> Plot:
    plot = Plot("How much of their time workers wait for rows", "mode", "idle, % of all workers' time")
    modes = _modes({one["mode"] for one in run["findings"]})
    for stragglers, said in SPOKEN.items():
        found = _found(run, stragglers)
        places = [place for place, mode in enumerate(modes) if mode in found]
        plot.values(said, places, [100 * found[modes[place]]["idle"] for place in places])
    theirs = run["osdi_14_idle"]
    places = [place for place, mode in enumerate(modes) if mode in theirs]
    plot.marks("OSDI'14, on a cluster", places, [100 * theirs[modes[place]] for place in places])
    _name_modes(plot, modes)
    return plot


def _auc(auc: Mapping[str, list[float]]) -> Plot:
    plot = Plot("AUC on the test rows, in each mode", "mode", "AUC")
    modes = _modes(set(auc))
    places = list(range(len(modes)))
    spreads = [{"median": statistics.mean(auc[mode]), "min": min(auc[mode]), "max": max(auc[mode])} for mode in modes]
    plot.line("mean and range over the seeds", places, spreads)
    if "sync" in auc:
        plot.beside("synchronous", places, [statistics.mean(auc["sync"])] * len(places), COLOURS[1])
    plot.ticks(places, [spoken(mode) for mode in modes])
    return plot

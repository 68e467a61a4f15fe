"""One plot: its axes and lines, what run it is of, and the file.

Colours are in the middle between light and dark, on no background, so that they can be read on both.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

COLOURS = ("#3584c8", "#d67a1f", "#2f9e6e", "#a566c4", "#c8524f")
GREY = "#808080"  # 3.9 to 1 on white, 4.8 to 1 on GitHub's dark
SIZE_INCHES = (7.0, 4.6)
SETTINGS = {
    "svg.hashsalt": "rowstead",
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


class Plot:
    """Lines are added to it, then it is saved. Made and used under `settings()`."""

    def __init__(self, title: str, across: str, up: str) -> None:
        self._figure = Figure(figsize=SIZE_INCHES)
        self._axes = self._figure.subplots()
        self._axes.set_title(title, loc="left", fontsize=11)
        self._axes.set_xlabel(across)
        self._axes.set_ylabel(up)
        self._axes.spines[["top", "right"]].set_visible(False)
        self._axes.grid(axis="y", color=GREY, alpha=0.2)
        self._lines = 0

    def line(self, name: str, across: Sequence[float], spreads: Sequence[Mapping[str, Any]]) -> None:
        """Add a line through the medians, with the range of the rounds around it."""
        colour = self.values(name, across, [spread["median"] for spread in spreads])
        least, most = [spread["min"] for spread in spreads], [spread["max"] for spread in spreads]
        self._axes.fill_between(across, least, most, color=colour, alpha=0.2, linewidth=0)

    def values(self, name: str, across: Sequence[float], values: Sequence[float]) -> str:
        """Add a line through these values; return its colour."""
        colour = COLOURS[self._lines % len(COLOURS)]
        self._lines += 1
        self._axes.plot(across, values, marker="o", markersize=4, color=colour, label=name)
        return colour

    def beside(self, name: str | None, across: Sequence[float], values: Sequence[float], colour: str = GREY) -> None:
        """Add a dashed line: a floor, or what is linear. Without a name it is not in the legend."""
        self._axes.plot(across, values, linestyle="--", linewidth=1.2, color=colour, label=name)

    def marks(self, name: str, across: Sequence[float], values: Sequence[float]) -> None:
        """Add what others report, as crosses."""
        self._axes.plot(across, values, linestyle="", marker="x", markersize=8, color=GREY, label=name)

    def logarithmic(self, *, up: bool) -> None:
        """Let the axis across, and the one up where asked, be logarithmic."""
        self._axes.set_xscale("log")
        if up:
            self._axes.set_yscale("log")
            self._axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: short(value)))

    def ticks(self, across: Sequence[float], names: Sequence[str] | None = None) -> None:
        """Name these places, and no others, on the axis across."""
        self._axes.set_xticks(across, labels=[short(value) for value in across] if names is None else names)
        self._axes.minorticks_off()

    def from_zero(self) -> None:
        """Let the axis up begin at 0."""
        self._axes.set_ylim(bottom=0.0)

    def save(self, path: Path, caption: str) -> None:
        """Write it as SVG; the same input gives the same bytes."""
        self._figure.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.05, 0.05), ncols=2, fontsize=9)
        self._figure.text(0.01, 0.01, caption, fontsize=7, color=GREY)
        self._figure.tight_layout(rect=(0.0, 0.17, 1.0, 1.0))
        self._figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def settings() -> AbstractContextManager[None]:
    """Return the context in which plots are made, whatever the user's own settings are."""
    defaults: dict[Any, Any] = {**mpl.rcParamsDefault}
    return mpl.rc_context(defaults | SETTINGS)


def short(value: float) -> str:
    """Return a number for an axis: 100, 30 k, 1 M.

    >>> [short(value) for value in (0.5, 100, 30_000, 1_500_000)]
    ['0.5', '100', '30 k', '1.5 M']
    """
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def caption(run: Mapping[str, Any]) -> str:
    """Return what a run was on: machine, commit, day."""
    machine = run["machine"]
    gib = int(machine["memory"].split()[0]) / 2**20
    of = f"{machine['cpu']}, {machine['cores']} cores, {gib:.0f} GiB, {machine['system']}; commit {run['commit'][:12]}, {run['date']}"
    return of + ("; small sizes: the times mean nothing" if run["quick"] else "")

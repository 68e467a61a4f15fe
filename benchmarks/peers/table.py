"""What is printed, and what is written as JSON: one line for each peer, allocator, transport of ours and figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.dense import BLOCK
from benchmarks.harness import Result, Spread
from benchmarks.peers.roster import Peer
from benchmarks.report import spread_as_json, with_range
from benchmarks.sizes import Sizes

HEAD = f"{'peer':<14} {'its memory':<10} {'figure':<8} {'unit':<8} {'theirs':>24} {'ours':>24} {'through':<7} {'ours, times faster':>22}"


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. theirs, ours: in `unit`, of each round.     ratio: how many times faster ours is, of each round."""

    peer: Peer
    memory: str
    through: str
    case: str
    figure: str
    unit: str
    theirs: Spread
    ours: Spread
    ratio: Spread

    @property
    def better(self) -> float:
        """A number that is larger where theirs is better."""
        return -self.theirs.median if self.unit == "µs" else self.theirs.median


def lines_of(peer: Peer, memory: str, through: str, results: Sequence[Result], sizes: Sizes) -> list[Line]:
    """Return the lines of a case; what the harness measured as time becomes speed, but for latencies."""
    lines = []
    for result in results:
        unit, work = _speed(result.case, sizes)
        theirs, ours = (spread if work is None else _speeds(spread, work) for spread in (result.floor, result.ours))
        lines.append(Line(peer, memory, through, result.case, result.figure.name, unit, theirs, ours, result.ratio))
    return lines


def _speed(case: str, sizes: Sizes) -> tuple[str, float | None]:
    """Return the unit, and how much of it a millisecond for all is; None where time itself is the figure."""
    match case:
        case "W1" | "W2":
            return "M rows/s", sizes.batch / 1e3
        case "W3":
            return "GB/s", 4 * BLOCK * sizes.dense_rows / 1e6
        case _:
            return "µs", None


def _speeds(spread: Spread, work: float) -> Spread:
    return Spread(tuple([work / cost_ms for cost_ms in spread.rounds]))


def quoted(lines: Sequence[Line]) -> set[int]:
    """Return the indices of the lines that have a peer's best: of all its allocators, for each figure and transport of ours."""
    best: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(lines):
        key = (line.peer.name, line.through, line.case, line.figure)
        if key not in best or line.better > lines[best[key]].better:
            best[key] = number
    return set(best.values())


def printed(lines: Sequence[Line]) -> list[str]:
    """Return the lines of the table under HEAD, those of one case and transport of ours together."""
    chosen = quoted(lines)
    order = sorted(range(len(lines)), key=lambda number: (lines[number].case, lines[number].figure, lines[number].through))
    return [_printed(lines[number], number in chosen) for number in order]


def _printed(line: Line, is_quoted: bool) -> str:
    figure = f"{line.case} {line.figure.removeprefix('a ')}"
    return (
        f"{line.peer.name:<14} {line.memory:<10} {figure:<8} {line.unit:<8} {with_range(line.theirs):>24} {with_range(line.ours):>24} "
        f"{line.through:<7} {with_range(line.ratio):>22}{' *' if is_quoted else ''}"
    )


def as_json(lines: Sequence[Line]) -> list[dict[str, Any]]:
    chosen = quoted(lines)
    return [
        {
            "peer": line.peer.name,
            "memory": line.memory,
            "case": line.case,
            "figure": line.figure,
            "unit": line.unit,
            "through": line.through,
            "theirs": spread_as_json(line.theirs),
            "ours": spread_as_json(line.ours),
            "ratio": spread_as_json(line.ratio),
            "quoted": number in chosen,
            "what_theirs_does": line.peer.notes[line.case],
        }
        for number, line in enumerate(lines)
    ]

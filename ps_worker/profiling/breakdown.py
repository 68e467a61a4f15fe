"""A step's time by what it went to: rows that add up, each with its mean and its spread over the steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ps_worker.profiling import stopwatch
from ps_worker.profiling.server_times import NOTHING_KNOWN, Split
from ps_worker.profiling.steps import Seconds, StepTimes
from ps_worker.profiling.taps import AWAIT, BARRIER, CALLS, END, OTHER, PAUSE, PULL, PUSH

STEP, COMPUTE = "step", "compute"
PARKED, TURNS, WIRE, RETRIES, CLIENT = "waiting", "servers", "wire", "retries", "client"  # what being blocked is made of

# group -> its parts, in the order of the report. A group's row is the sum of its parts.
GROUPS: dict[str, tuple[str, ...]] = {
    "pulls": (PARKED, TURNS, WIRE, RETRIES, CLIENT),
    "pushes": (PARKED, TURNS, WIRE, RETRIES, CLIENT),
    "worker": ("ids", "tensors", "pooling", "pooling back", "gradients", "steps"),
}
ALONE = (COMPUTE, stopwatch.LOAD, BARRIER, OTHER)  # rows without parts

_BLOCKED = {"pulls": (PULL,), "pushes": (PUSH, END)}  # the kinds of calls that a group is blocked in
# Spans of the training's thread -> the part that they belong to.
_WORK = {
    PULL: "ids",
    stopwatch.PLAN: "ids",
    stopwatch.PLACE: "tensors",
    stopwatch.POOL: "pooling",
    stopwatch.POOL_BACK: "pooling back",
    stopwatch.GRADIENTS: "gradients",
    PUSH: "gradients",
    END: "steps",
}


class Row(NamedTuple):
    """Seconds a step; `share`: the mean's of the whole step's mean."""

    mean_s: float
    p50_s: float
    p99_s: float
    share: float


@dataclass(frozen=True)
class Breakdown:
    """Where the time of some steps went.

    rows     by name: "step", "compute", a group such as "pulls", a part of one such as "pulls.wire". Means add up; percentiles do not.
    beside   seconds a step, mean, of what ran beside the training, by kind.     hidden  of them, the share that nobody waited for.
    """

    steps: int
    rows: Mapping[str, Row]
    beside_s: Mapping[str, float]
    hidden: Mapping[str, float]
    sent_bytes: float
    received_bytes: float

    @classmethod
    def of(cls, steps: Sequence[StepTimes], splits: Mapping[str, Split]) -> "Breakdown":
        """Divide the steps, of which there is one at least; `splits`: how calls are divided, by kind."""
        total_beside = {kind: sum([step.beside.get(kind, 0.0) for step in steps]) for kind in (PULL, PUSH, END)}
        total_calls = {kind: sum([step.calls_beside.get(kind, 0.0) for step in steps]) for kind in total_beside}
        calls_of = {kind: total_calls[kind] / total if total > 0.0 else 1.0 for kind, total in total_beside.items()}
        divided = [_divided(step, splits, calls_of) for step in steps]
        names = [STEP, *ALONE, *GROUPS, *[f"{group}.{part}" for group, parts in GROUPS.items() for part in parts]]
        rows = {name: [seconds.get(name, 0.0) for seconds in divided] for name in names}
        whole_s = float(np.mean(rows[STEP]))
        awaited = {kind: sum([step.within.get(f"{AWAIT} {kind}", 0.0) for step in steps]) for kind in total_beside}
        return cls(
            len(steps),
            {name: _row(seconds, whole_s) for name, seconds in rows.items()},
            {kind: total / len(steps) for kind, total in total_beside.items() if total > 0.0},
            {kind: 1.0 - min(1.0, awaited[kind] / total) for kind, total in total_beside.items() if total > 0.0},
            float(np.mean([step.sent_bytes for step in steps])),
            float(np.mean([step.received_bytes for step in steps])),
        )


def _row(seconds: Sequence[float], whole_s: float) -> Row:
    mean_s = float(np.mean(seconds))
    p50_s, p99_s = np.percentile(seconds, [50, 99]).tolist()
    return Row(mean_s, p50_s, p99_s, mean_s / whole_s if whole_s > 0.0 else 0.0)


def _divided(step: StepTimes, splits: Mapping[str, Split], calls_of: Mapping[str, float]) -> Seconds:
    """Return the seconds of a step by row. `calls_of`: by kind, the share of calls in what runs beside the training."""
    within = dict(step.within)
    rows: Seconds = {STEP: step.whole_s, COMPUTE: step.user_s}
    for group, kinds in _BLOCKED.items():
        parts = dict.fromkeys(GROUPS[group], 0.0)
        for kind in kinds:
            awaited_s = within.pop(f"{AWAIT} {kind}", 0.0)
            split = splits.get(kind, NOTHING_KNOWN)
            in_calls_s = within.pop(f"{CALLS} {kind}", 0.0) + awaited_s * calls_of[kind]
            parts[PARKED] += in_calls_s * split.parked
            parts[TURNS] += in_calls_s * split.turns
            parts[WIRE] += in_calls_s * split.wire
            parts[RETRIES] += within.pop(f"{PAUSE} {kind}", 0.0)
            parts[CLIENT] += awaited_s * (1.0 - calls_of[kind])
        _add(rows, group, parts)
    work = dict.fromkeys(GROUPS["worker"], 0.0)
    for name, part in _WORK.items():
        work[part] += within.pop(name, 0.0)
    _add(rows, "worker", work)
    rows[stopwatch.LOAD] = within.pop(stopwatch.LOAD, 0.0)
    rows[BARRIER] = sum([within.pop(name, 0.0) for name in (BARRIER, *[f"{span} {BARRIER}" for span in (CALLS, PAUSE, AWAIT)])])
    rows[OTHER] = sum(within.values())
    return rows


def _add(rows: Seconds, group: str, parts: Seconds) -> None:
    rows[group] = sum(parts.values())
    rows.update({f"{group}.{part}": seconds for part, seconds in parts.items()})

"""W7-workers: samples a second of 1 to 16 asynchronous workers with one server, each worker's accelerator a sleep.

A worker's step is what a DLRM does without its layers: the rows of its next batch travel and the gradients of its last one too, while
`time.sleep` stands for the accelerator. All share this machine's processors, which on a real cluster only the server would use.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.categories import CATEGORIES, DIM
from benchmarks.curve import Curve, Point, rounds_of
from benchmarks.emulated.batches import id_batches
from benchmarks.emulated.job import Job, job
from benchmarks.harness import Spread
from benchmarks.machine import cores
from benchmarks.scaling.sizes import ScalingSizes

SEEDS = {4: 3.6, 16: 9.0}  # what seeds of this field report: times the samples of one accelerator
GOAL_CASE, GOAL_AT, AT_LEAST = "W7-workers 512", 16, 0.90  # of linear

UNITS = {
    "samples": "1/s",
    "of linear": "",
    "blocked": "of time",
    "server": "processors",
    "workers": "processors",
    "flat out": "1/s",
}


def workers_curve(sizes: ScalingSizes, samples: int, seed: int) -> Curve:
    """Return the curve of workers with batches of so many samples."""

    def points() -> Iterator[Point]:
        alone: float | None = None
        for count in sizes.workers:
            with job(count, "async", samples, seed) as running:
                values = rounds_of(partial(_round, running, sizes, samples), sizes.worker_rounds, warm_ups=0)
                running.check()
            alone = alone or values["samples"].median / count
            linear = alone * count
            values["of linear"] = Spread(tuple([rate / linear for rate in values["samples"].rounds]))
            yield Point(count, values)

    distinct = np.mean([batch.size for batch in id_batches(samples, seed, 0)])
    said = ", ".join([f"{times}x on {count}" for count, times in SEEDS.items()])
    note = (
        f"asynchronous, one server; the accelerator is a sleep of {sizes.accelerator_s * 1e3:g} ms; {samples:,} samples x {CATEGORIES} "
        f"categories, dim {DIM}, some {distinct:,.0f} rows a step; {cores()} processors for all; flat out: without the sleep; "
        f"seeds of this field report {said}"
    )
    title = f"Workers whose accelerator is a sleep of {sizes.accelerator_s * 1e3:g} ms, batches of {samples:,}"
    return Curve(f"W7-workers {samples}", title, "workers", UNITS, note, points)


def goal(case: str, points: list[Point]) -> dict[str, Any] | None:
    """Return whether these points reach the goal of W7's workers; None where they have none."""
    shares = {point.at: point.values["of linear"].median for point in points if point.at == GOAL_AT}
    if case != GOAL_CASE or not shares:
        return None
    share = shares[GOAL_AT]
    holds = share >= AT_LEAST
    said = f"goal, at least {AT_LEAST:.2f} of linear with {GOAL_AT} workers: {share:.3f}{'' if holds else ' (missed)'}"
    return {"at": GOAL_AT, "at_least": AT_LEAST, "is": share, "holds": holds, "said": said}


def _round(running: Job, sizes: ScalingSizes, samples: int) -> Mapping[str, float]:
    ran = running.run(sizes.worker_steps, sizes.accelerator_s, lead=sizes.lead_steps)
    flat_out = running.run(sizes.lead_steps + sizes.worker_steps, 0.0, lead=0)  # all begin at once, so the first step counts too
    return {
        "samples": samples * ran.per_second,
        "blocked": ran.blocked_share,
        "server": ran.server_share,
        "workers": ran.workers_share,
        "flat out": samples * flat_out.per_second_until_last,
    }

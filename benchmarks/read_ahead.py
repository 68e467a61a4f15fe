"""How many pushes do the rows lack that a step computes with? Two workers that count each other's pushes, for each depth of prefetch.

    python -m benchmarks.read_ahead [--json lacking.json]        a minute

Each worker trains a row of its own, which loses 1 with each of its pushes, and reads both at every step. So its own row tells how many of
its pushes are in what it read, and the other's, beside a pull at that moment, how many of the other's it lacks. Workers are threads of this
process; what they compute is a sleep of --step-ms. Prints the mean and the most over all steps but the first ten.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import ps_worker as ps
from benchmarks.machine import commit, describe_machine

WORKERS, FIRST = 2, 10
MODES: dict[str, ps.Mode] = {"asynchronous": ps.Async(), "bound 2": ps.BoundedStaleness(2)}
SETTINGS = [(mode, depth, overlaps) for mode in MODES for depth in (0, 1, 2, 4) for overlaps in (False, True)]


class Lacking(NamedTuple):
    """Pushes that the rows of a step lacked: the worker's own, and the other's."""

    own: int
    other: int


@dataclass(frozen=True)
class Row:
    """What a setting came to, over the steps of both workers. `depth` 0: without prefetch."""

    mode: str
    depth: int
    overlap_pushes: bool
    own_mean: float
    own_max: int
    other_mean: float
    other_max: int


def train(address: str, rank: int, mode: ps.Mode, depth: int, overlaps: bool, steps: int, step_s: float) -> list[Lacking]:
    """Take so many steps; return what the rows of each lacked."""
    lacking = []
    with ps.connect(address, rank=rank, world_size=WORKERS, mode=mode) as client:
        module = ps.nn.Embedding(None, 1, name="count", initializer=ps.Zeros())
        optimizer = ps.optim.ServerOptimizer(module, sparse=ps.SGD(lr=1.0), overlap_pushes=overlaps, client=client)
        given = [torch.arange(WORKERS) for _ in range(steps)]
        batches: Iterable[Tensor] = ps.prefetch(given, ids=lambda ids: {module: ids}, depth=depth) if depth else given
        client.barrier()
        for number, ids in enumerate(batches):
            rows = module(ids)
            counts, now = -rows.detach().numpy()[:, 0], -client.pull("count", np.arange(WORKERS))[:, 0]
            lacking.append(Lacking(number - int(counts[rank]), int(now[1 - rank] - counts[1 - rank])))
            time.sleep(step_s)
            rows[rank].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        client.flush()
    return lacking[FIRST:]


def run(mode: str, depth: int, overlaps: bool, steps: int, step_s: float) -> Row:
    """Let two workers train beside each other."""
    with ps.local_cluster(servers=1, log_level="warning") as cluster, ThreadPoolExecutor(WORKERS) as workers:
        jobs = [workers.submit(train, cluster.address, rank, MODES[mode], depth, overlaps, steps, step_s) for rank in range(WORKERS)]
        lacking = [item for job in jobs for item in job.result()]
    own, other = [item.own for item in lacking], [item.other for item in lacking]
    return Row(mode, depth, overlaps, statistics.mean(own), max(own), statistics.mean(other), max(other))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Count the pushes that prefetched rows lack.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=10.0, help="how long a step computes (default 10)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    chosen = parser.parse_args(arguments)
    print("| mode | depth | pushes overlap | own pushes lacked, mean | most | the other's, mean | most |\n|" + " --- |" * 7)
    rows = []
    for mode, depth, overlaps in SETTINGS:
        row = run(mode, depth, overlaps, chosen.steps, chosen.step_ms / 1000)
        rows.append(row)
        numbers = f"{row.own_mean:.2f} | {row.own_max} | {row.other_mean:.2f} | {row.other_max}"
        print(f"| {row.mode} | {depth or 'none'} | {'yes' if overlaps else 'no'} | {numbers} |", flush=True)
    if chosen.json is not None:
        about = {"machine": describe_machine(), "commit": commit(), "steps": chosen.steps, "step_ms": chosen.step_ms}
        chosen.json.write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

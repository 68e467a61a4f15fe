"""What planning the next batch in another thread gains, by size: W5's training with plans there and in its own thread, in turn.

    python -m benchmarks.plan_beside [--mode sync] [--pairs 40] [--json beside.json]        two minutes

One process trains with ps.prefetch against one server. A pair is a block of steps with all plans beside, whatever their size, and one with
none; which of them is first changes from pair to pair. Prints, by batch size, how long `next()` keeps the loop in both (medians of blocks'
medians) and the time of the block with plans beside over that of the other: the median of the pairs and their quartiles, since what else
the machine does meanwhile moves single pairs by more than what is measured.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

import ps_worker as ps
from benchmarks.categories import CATEGORIES
from benchmarks.click_model import Batch, batches, endless
from benchmarks.machine import commit, describe_machine
from benchmarks.trainer import LEARNING_RATE, Clicks, sparse
from ps_worker.prefetch import planning

STEPS, WARM_UP = 12, 4
MODES: dict[str, ps.Mode] = {"async": ps.Async(), "sync": ps.Sync()}
SIZES = (64, 512, 1024, 2048, 4096)
BESIDE, AT_ONCE = 0, math.inf  # the fewest ids that are planned beside


class Block(NamedTuple):
    """Some steps: their seconds, and the median of what `next()` took."""

    whole_s: float
    next_s: float


@dataclass(frozen=True)
class Row:
    """What a batch size came to; `ratio`: the quartiles of time with plans beside over time without."""

    ids: int
    next_beside_s: float
    next_at_once_s: float
    step_s: float
    ratio: tuple[float, float, float]


class Training:
    """W5's, one rank of a job with one server."""

    def __init__(self, client: ps.Client, size: int) -> None:
        self._model, self._criterion = Clicks(), nn.BCEWithLogitsLoss()
        adagrad = ps.Adagrad(lr=LEARNING_RATE)
        self._optimizer = ps.optim.ServerOptimizer(self._model, dense=adagrad, sparse=adagrad, client=client)
        loader = ps.prefetch(endless(batches(size, seed=0)), ids=lambda batch: {self._model.bags: sparse(batch)}, client=client)
        self._source: Iterator[Batch] = iter(loader)

    def block(self, ids_min: float, steps: int = STEPS) -> Block:
        """Take so many steps, with batches of at least so many ids planned beside; the first few count for nothing."""
        planning.BESIDE_MIN = ids_min  # type: ignore[assignment]  # math.inf: none
        waited = []
        begin_s = 0.0
        for number in range(WARM_UP + steps):
            if number == WARM_UP:
                begin_s = time.perf_counter()
            asked_s = time.perf_counter()
            batch = next(self._source)
            waited.append(time.perf_counter() - asked_s)
            self._criterion(self._model(batch), batch.labels).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        return Block(time.perf_counter() - begin_s, statistics.median(waited[WARM_UP:]))


def run(mode: str, size: int, pairs: int) -> Row:
    """Measure one batch size, with a cluster of its own."""
    with (
        ps.local_cluster(servers=1, log_level="warning") as cluster,
        ps.connect(cluster.address, rank=0, world_size=1, mode=MODES[mode]) as client,
    ):
        training = Training(client, size)
        blocks: dict[float, list[Block]] = {BESIDE: [], AT_ONCE: []}
        usual = planning.BESIDE_MIN
        try:
            for pair in range(pairs + 1):
                for ids_min in (BESIDE, AT_ONCE) if pair % 2 else (AT_ONCE, BESIDE):
                    blocks[ids_min].append(training.block(ids_min))
        finally:
            planning.BESIDE_MIN = usual
    beside, at_once = [blocks[ids_min][1:] for ids_min in (BESIDE, AT_ONCE)]  # without the first pair, of which kernels are loaded
    ratios = [one.whole_s / other.whole_s for one, other in zip(beside, at_once, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Row(
        size * CATEGORIES,
        statistics.median([block.next_s for block in beside]),
        statistics.median([block.next_s for block in at_once]),
        statistics.median([block.whole_s for block in at_once]) / STEPS,
        (low, middle, high),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Compare plans beside the step with plans between steps.")
    parser.add_argument("--mode", choices=MODES, default="async")
    parser.add_argument("--size", type=int, action="append", help=f"samples in a batch (may be repeated; default {SIZES})")
    parser.add_argument("--pairs", type=int, default=40, help="how many pairs of blocks of each size (default 40; at least 2)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| ids | next(), beside | at once | a step | beside / at once | quartiles |\n|" + " --- |" * 6)
    rows = []
    for size in chosen.size or SIZES:
        row = run(chosen.mode, size, chosen.pairs)
        rows.append(row)
        low, middle, high = row.ratio
        times = " | ".join([f"{seconds * 1e3:.2f} ms" for seconds in (row.next_beside_s, row.next_at_once_s, row.step_s)])
        print(f"| {row.ids} | {times} | {middle:.3f} | {low:.3f} to {high:.3f} |", flush=True)
    if chosen.json is not None:
        about = {"machine": describe_machine(), "commit": commit(), "mode": chosen.mode, "pairs": chosen.pairs}
        chosen.json.write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What staleness costs in accuracy: DLRM on ctr-80k with prefetch of some depth, with overlapping pushes, and under each bound.

    python -m benchmarks.accuracy_staleness --json staleness.json         all sweeps, some ten minutes on 2 cores
    python -m benchmarks.accuracy_staleness --sweep prefetch --seeds 1    one of them, a first look

Each run is one pass of examples/train_dlrm.py over the training rows with 2 servers and 2 workers of 256 rows a step, then the AUC on the
test rows. Beside the AUC stands the staleness that the servers measured: how many steps ahead of the slowest worker the step was that a
pull is for, in the mean of all pulls and the most of all seeds.

    prefetch     asynchronous: without prefetch, with depths 1, 2 and 4, with depth 1 and overlapping pushes
    bounds       without prefetch: synchronous, bounds 1 to 16, asynchronous
    straggler    some of those with one of the two workers slowed down by 30 ms a step, which makes it some three times slower
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.accuracy_ctr import DATA, Scored, our_score
from benchmarks.machine import commit, describe_machine

SLOW_MS = 30


@dataclass(frozen=True)
class Setting:
    """A way to train: its name in the table, the mode, and further options of the script."""

    name: str
    mode: str
    options: tuple[str, ...] = ()

    def slowed(self) -> "Setting":
        """Return the same with a slow worker."""
        return Setting(self.name, self.mode, (*self.options, f"--slow-ms={SLOW_MS}"))


@dataclass(frozen=True)
class Row:
    """What a setting came to. `aucs` and `seconds`: by seed; staleness in steps: the mean and the most over all seeds."""

    sweep: str
    setting: Setting
    aucs: list[float]
    seconds: list[float]
    staleness_mean: float
    staleness_max: int


SYNC, ASYNC = Setting("synchronous", "sync"), Setting("asynchronous", "async")
BOUNDED = {bound: Setting(f"bound {bound}", "bounded", (f"--bound={bound}",)) for bound in (1, 2, 4, 8, 16)}
SWEEPS = {
    "prefetch": (
        ASYNC,
        *[Setting(f"asynchronous, prefetch of depth {depth}", "async", ("--prefetch", f"--depth={depth}")) for depth in (1, 2, 4)],
        Setting("asynchronous, prefetch of depth 1, overlapping pushes", "async", ("--prefetch", "--overlap-pushes")),
    ),
    "bounds": (SYNC, *BOUNDED.values(), ASYNC),
    "straggler": tuple(setting.slowed() for setting in (SYNC, BOUNDED[1], BOUNDED[4], BOUNDED[16], ASYNC)),
}


def run(train_path: Path, test_path: Path, sweep: str, setting: Setting, seeds: Sequence[int]) -> Row:
    """Train once for each seed."""
    scores: list[Scored] = []
    seconds = []
    for seed in seeds:
        begin_s = time.perf_counter()
        scores.append(our_score(train_path, test_path, setting.mode, seed, *setting.options))
        seconds.append(time.perf_counter() - begin_s)
    mean, most = statistics.mean([score.staleness_mean for score in scores]), max([score.staleness_max for score in scores])
    return Row(sweep, setting, [score.auc for score in scores], seconds, mean, most)


def print_row(row: Row, first: Row) -> None:
    aucs, mean = " | ".join(f"{auc:.4f}" for auc in row.aucs), statistics.mean(row.aucs)
    apart = "" if row is first else f"{mean - statistics.mean(first.aucs):+.4f}"
    print(f"| {row.setting.name} | {aucs} | {mean:.4f} | {apart} | {row.staleness_mean:.2f} | {row.staleness_max} |", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Compare the accuracy of DLRM as rows get staler.")
    parser.add_argument("--train", type=Path, default=DATA / "ctr-80k.train.tsv.gz")
    parser.add_argument("--test", type=Path, default=DATA / "ctr-80k.test.tsv.gz")
    parser.add_argument("--sweep", action="append", choices=SWEEPS, help="run this one (may be repeated; default all)")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 0 (default 3)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.seeds)
    rows: list[Row] = []
    for sweep in chosen.sweep or SWEEPS:
        print(f"\n{sweep}\n\n| AUC | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | from the first | staleness, mean | most |")
        print(f"|{' --- |' * (len(seeds) + 5)}")
        first = None
        for setting in SWEEPS[sweep]:
            known = [row for row in rows if row.setting == setting]
            row = replace(known[0], sweep=sweep) if known else run(chosen.train, chosen.test, sweep, setting, seeds)
            rows.append(row)
            first = first or row
            print_row(row, first)
    if chosen.json is not None:
        about = {"machine": describe_machine(), "commit": commit(), "seeds": [*seeds]}
        chosen.json.write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measure the data path beside the machine's floors; print a table, and write JSON.

    python -m benchmarks                                       everything, some minutes
    python -m benchmarks --case W1 --transport arena           one case
    python -m benchmarks --quick --json bench.json             small sizes: whether it runs and answers right, not how fast

Exit code 0 where every answer was right, reached or not; 1 after a wrong one.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from benchmarks.bed import TRANSPORTS, Bed, bed
from benchmarks.case import Case, WrongAnswer
from benchmarks.checkpointing import CASES, checkpoint_bed, checkpoint_case
from benchmarks.dense import dense_case
from benchmarks.growth import growth_case
from benchmarks.harness import Result, measure
from benchmarks.latency import latency_case
from benchmarks.machine import commit, describe_machine
from benchmarks.pulling import pull_case
from benchmarks.pushing import push_after_pull_case, push_case
from benchmarks.recovering import CASES as RECOVERIES
from benchmarks.recovering import recovery_case, recovery_jobs
from benchmarks.report import HEAD, as_json, line
from benchmarks.sizes import FULL, QUICK, Sizes
from benchmarks.start_up import start_up_case
from benchmarks.training import training_case

# The cases of one cluster, with the transports that they are for unless others are asked for.
SHARED = {
    "W1": (pull_case, TRANSPORTS),
    "W2": (push_case, ("arena",)),
    "W2-pulled": (push_after_pull_case, ("arena",)),
    "W3": (dense_case, ("arena",)),
    "W4": (latency_case, ("arena",)),
}
ALL = (*SHARED, "W5", "W6", "checkpoint", "recover", "start-up")

Opened = AbstractContextManager[Case]


def run_case(opened: Opened, rounds: int, warm_ups: int) -> list[Result]:
    """Measure a case and print its lines."""
    with opened as case:
        results = measure(case, rounds, warm_ups)
    for result in results:
        print(line(result), flush=True)
    for remark in case.remarks():
        print(f"    {remark}", flush=True)
    return results


def run_shared(shared: Bed, names: Sequence[str], transports: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    for name in names:
        open_case, usual = SHARED[name]
        for transport in transports or usual:
            yield from run_case(open_case(shared, transport), sizes.rounds, sizes.warm_ups)


def run(names: Sequence[str], transports: Sequence[str], sizes: Sizes, seed: int) -> Iterator[Result]:
    """Yield the results of these cases; raises WrongAnswer."""
    shared = [name for name in names if name in SHARED]
    if shared:
        with bed(sizes, seed) as made:
            yield from run_shared(made, shared, transports, sizes)
    if "W5" in names:
        yield from run_case(training_case(sizes, seed), sizes.slow_rounds, 0)
    if "W6" in names:
        yield from run_case(growth_case(sizes, np.random.default_rng(seed)), 1, 0)
    if "checkpoint" in names:
        with checkpoint_bed(sizes, seed) as filled:
            for case in CASES:
                yield from run_case(checkpoint_case(case, filled), sizes.slow_rounds, 1)
    if "recover" in names:
        with recovery_jobs(sizes, seed) as jobs:
            for recovery in RECOVERIES:
                yield from run_case(recovery_case(recovery, jobs), sizes.slow_rounds, 0)
    if "start-up" in names:
        for kind in sizes.start_ups:
            yield from run_case(start_up_case(kind), sizes.slow_rounds, 0)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the data path beside the machine's floors.")
    parser.add_argument("--case", action="append", choices=ALL, help="measure this case (may be repeated; default all)")
    parser.add_argument(
        "--transport", action="append", choices=TRANSPORTS, help="over this transport (default: those that the case is for)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: to see whether it runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    chosen = parser.parse_args(arguments)
    about = {"machine": describe_machine(), "commit": commit(), "seed": chosen.seed, "quick": chosen.quick}
    note = "; small sizes: the ratios mean nothing" if chosen.quick else ""
    print(f"{about['machine']}\ncommit {about['commit']}, seed {chosen.seed}{note}\n\n{HEAD}", flush=True)
    results: list[Result] = []
    wrong = None
    try:
        results.extend(run(chosen.case or ALL, chosen.transport or (), QUICK if chosen.quick else FULL, chosen.seed))
    except WrongAnswer as error:
        wrong = str(error)
        print(f"Wrong answer: {wrong}.", file=sys.stderr)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(as_json(results, {**about, "wrong_answer": wrong}), indent=2) + "\n")
    return 0 if wrong is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

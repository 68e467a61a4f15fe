"""Measure how long a step takes in each mode, and how much of it workers wait for each other; print tables, and write JSON.

    python -m benchmarks.staleness                                  everything, some six minutes
    python -m benchmarks.staleness --mode sync --mode 4             some modes
    python -m benchmarks.staleness --quick --json staleness.json    small sizes: whether it runs and answers right, not how fast

Idle is what the workers measure: the time from asking for rows that are not there yet to having them. It includes what a pull itself takes
where it could not travel ahead; the asynchronous line shows how little that is where it could. Exit code 1 after a wrong answer.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.case import WrongAnswer
from benchmarks.emulated.delays import STRAGGLERS
from benchmarks.emulated.job import job
from benchmarks.machine import about_run, cores
from benchmarks.staleness.accuracy import read_auc
from benchmarks.staleness.finding import HEAD, SPOKEN, Finding
from benchmarks.staleness.modes import MODES, OSDI_14_IDLE, spoken
from benchmarks.staleness.sizes import FULL, QUICK, StalenessSizes


def findings(mode: str, sizes: StalenessSizes, seed: int) -> Iterator[Finding]:
    """Yield what is found of a mode with each kind of stragglers; raises WrongAnswer."""
    with job(sizes.workers, mode, sizes.samples, seed) as running:
        for stragglers in STRAGGLERS:
            ran = running.run(sizes.steps[stragglers], sizes.accelerator_s, stragglers, lead=sizes.lead_steps)
            yield Finding.of(mode, stragglers, ran)
        running.check()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staleness", description="Measure what bounded staleness saves.")
    parser.add_argument("--mode", action="append", choices=MODES, help="this mode: a number is a bound (may be repeated; default all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few steps: to see whether it runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--auc", type=Path, help="what benchmarks.accuracy_staleness wrote: the AUC of each mode is kept with the times")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    chosen = parser.parse_args(arguments)
    auc = None if chosen.auc is None else read_auc(chosen.auc)
    sizes = QUICK if chosen.quick else FULL
    about = {
        **about_run(chosen.seed, chosen.quick),
        "workers": sizes.workers,
        "samples": sizes.samples,
        "accelerator_ms": sizes.accelerator_s * 1e3,
        "osdi_14_idle": OSDI_14_IDLE,
        "auc": auc,
    }
    note = "; small sizes: the times mean nothing" if chosen.quick else ""
    print(f"{about['machine']}\ncommit {about['commit']}, {about['date']}, seed {chosen.seed}{note}")
    work = f"{sizes.workers} workers with batches of {sizes.samples} samples, one server, {cores()} processors for all"
    print(f"{work}; the accelerator is a sleep of {sizes.accelerator_s * 1e3:g} ms", flush=True)
    found: list[Finding] = []
    wrong = None
    try:
        for mode in chosen.mode or sizes.modes:
            print(f"{spoken(mode)} ...", file=sys.stderr, flush=True)  # the tables come in the end
            found.extend(findings(mode, sizes, chosen.seed))
    except WrongAnswer as error:
        wrong = str(error)
        print(f"Wrong answer: {wrong}.", file=sys.stderr)
    for stragglers, said in SPOKEN.items():
        print(f"\n{said}\n{HEAD}")
        for finding in [finding for finding in found if finding.stragglers == stragglers]:
            print(finding.line())
    if chosen.json is not None:
        written = {**about, "wrong_answer": wrong, "findings": [finding.as_json() for finding in found]}
        chosen.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0 if wrong is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

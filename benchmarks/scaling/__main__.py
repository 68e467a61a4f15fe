"""Measure how costs grow with the work; print the curves, and write JSON for `python -m benchmarks.plots`.

    python -m benchmarks.scaling                               everything, some eight minutes
    python -m benchmarks.scaling --case workers                one kind of curve
    python -m benchmarks.scaling --quick --json scaling.json   small sizes: whether it runs and answers right, not how fast

Exit code 0 where every answer was right; 1 after a wrong one.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.case import WrongAnswer
from benchmarks.curve import Curve, Point
from benchmarks.machine import about_run
from benchmarks.scaling.ids import ids_curve
from benchmarks.scaling.rows import rows_curve
from benchmarks.scaling.servers import servers_curve
from benchmarks.scaling.sizes import FULL, QUICK, ScalingSizes
from benchmarks.scaling.workers import goal, workers_curve

CASES = ("ids", "rows", "servers", "workers")


def curves(names: Sequence[str], sizes: ScalingSizes, seed: int) -> list[Curve]:
    """Return the curves of these cases, not yet measured."""
    made: list[Curve] = []
    for name in names:
        match name:
            case "ids":
                made.append(ids_curve(sizes, seed))
            case "rows":
                made.append(rows_curve(sizes, seed))
            case "servers":
                made.append(servers_curve(sizes, seed))
            case "workers":
                made.extend([workers_curve(sizes, samples, seed) for samples in sizes.samples])
    return made


def printed(curve: Curve) -> list[Point]:
    """Measure a curve and print its points as they come."""
    print(f"\n{curve.head()}", flush=True)
    points = []
    for point in curve.measure():
        print(curve.line(point), flush=True)
        points.append(point)
    return points


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="Measure how costs grow with the work.")
    parser.add_argument("--case", action="append", choices=CASES, help="this kind of curve (may be repeated; default all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: to see whether it runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    chosen = parser.parse_args(arguments)
    about = about_run(chosen.seed, chosen.quick)
    note = "; small sizes: the times mean nothing" if chosen.quick else ""
    print(f"{about['machine']}\ncommit {about['commit']}, {about['date']}, seed {chosen.seed}{note}", flush=True)
    results: list[dict[str, Any]] = []
    wrong = None
    try:
        for curve in curves(chosen.case or CASES, QUICK if chosen.quick else FULL, chosen.seed):
            points = printed(curve)
            results.append(curve.as_json(points))
            if (reached := goal(curve.case, points)) is not None:
                print(reached["said"], flush=True)
                results[-1]["goal"] = reached
    except WrongAnswer as error:
        wrong = str(error)
        print(f"Wrong answer: {wrong}.", file=sys.stderr)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({**about, "wrong_answer": wrong, "curves": results}, indent=2) + "\n")
    return 0 if wrong is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Draw what `benchmarks.scaling` and `benchmarks.staleness` wrote.

python -m benchmarks.plots scaling.json staleness.json                 to docs/plots/
python -m benchmarks.plots scaling.json --out plots
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.plots.plot import caption, settings
from benchmarks.plots.scaling import scaling_plots
from benchmarks.plots.staleness import staleness_plots


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description="Draw the curves of W7 and W8.")
    parser.add_argument("results", type=Path, nargs="+", help="a JSON file that benchmarks.scaling or benchmarks.staleness wrote")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "plots", help="the folder to write to (default docs/plots)")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    for results in chosen.results:
        run = json.loads(results.read_text())
        with settings():
            for name, plot in (scaling_plots if "curves" in run else staleness_plots)(run):
                path = chosen.out / f"{name}.svg"
                plot.save(path, caption(run))
                print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

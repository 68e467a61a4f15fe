"""What `make deep` saw of jobs some of whose processes were killed, as the table of docs/failures.md.

python tests/procs/failure_table.py build/failures
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

PROMISES = {"dlrm": "the checksum of the undisturbed run", "counting": "every push in the sums once"}


def table(folder: Path) -> str:
    """Return a row for each job and each kind of death, in markdown."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text())
        runs[run["job"], " + ".join(run["kinds"])].append(run)
    lines = [
        "| job | killed with -9 | runs | at steps | promised | kept | median seconds from the kill to the job's end |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (job, kinds), of_kind in runs.items():
        steps = [step for run in of_kind for kill in run["kills"] for step in kill["before"]]
        good = sum(run["is_good"] for run in of_kind)
        seconds = median(run["seconds"] for run in of_kind)
        at = f"{min(steps)} to {max(steps)} of {of_kind[0]['steps']}"
        lines.append(f"| {job} | {kinds} | {len(of_kind)} | {at} | {PROMISES[job]} | {good} | {seconds:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))

"""The table of what was killed and what was seen."""

import json
from pathlib import Path

from procs.failure_table import table


def write(folder: Path, seed: int, step: int, is_good: bool) -> None:
    kill = {"name": "server-1", "pid": 9, "before": [step, step + 1], "after": [step, step + 1]}
    run = {
        "job": "dlrm",
        "kinds": ["worker", "server"],
        "seed": seed,
        "steps": 60,
        "kills": [kill],
        "seconds": float(seed),
        "is_good": is_good,
    }
    (folder / f"{seed}.json").write_text(json.dumps(run))


def test_runs_of_a_kind_are_one_row(tmp_path: Path) -> None:
    for seed, step, is_good in ((1, 12, True), (2, 30, False), (3, 20, True)):
        write(tmp_path, seed, step, is_good)
    assert table(tmp_path).splitlines()[2:] == [
        "| dlrm | worker + server | 3 | 12 to 31 of 60 | the checksum of the undisturbed run | 2 | 2.0 |"
    ]

"""kill -9 of what a launched asynchronous job is made of: in the end each push is in the sums once."""

import json
from collections import Counter
from pathlib import Path

import pytest

from procs.counting_job import STEPS, TABLES, ids_of
from procs.crashing import WORKERS, crash, each_crash, recorded, seed

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).with_name("counting_job.py").read_text()


@pytest.fixture(scope="module")
def expected() -> Counter[str]:
    """How often each id was pushed."""
    counts: Counter[str] = Counter()
    for rank in range(WORKERS):
        for step in range(STEPS):
            for push in range(2):
                counts.update(map(str, ids_of(rank, step, push).tolist()))
    return counts


@each_crash
def test_each_push_counts_once_whatever_died(kinds: tuple[str, ...], number: int, expected: Counter[str], tmp_path: Path) -> None:
    run = crash(tmp_path, "counting", SCRIPT, kinds, seed() + number)
    with recorded(run):
        printed = [line.split(" ", 2)[1:] for line in run.out.replace("worker-0 | ", "").splitlines() if line.startswith("counts ")]
        counts = {table: json.loads(line) for table, line in printed}
        assert counts == {table: dict(expected) for table in TABLES}, str(run)

"""kill -9 of what a launched asynchronous job is made of: in the end each push is in the sums once."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from procs.counting_job import STEPS, TABLES, ids_of
from procs.crashing import WORKERS, crash, each_crash, launched_job, recorded, seed

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
        assert counts(run.out) == {table: dict(expected) for table in TABLES}, str(run)


def test_a_job_that_died_as_a_whole_goes_on_from_its_last_checkpoint(expected: Counter[str], tmp_path: Path) -> None:
    with launched_job(tmp_path, SCRIPT) as launch:
        launch.wait_for(f"step {STEPS // 2} of")
        launch.process.kill()
    with launched_job(tmp_path, SCRIPT, flags=(f"--restore={tmp_path / 'checkpoints'}",)) as launch:
        assert launch.wait() == 0, launch.err
        first = min(int(step) for step in re.findall(r"\| step (\d+) of", launch.out))
        assert 0 < first <= STEPS // 2
        assert counts(launch.out) == {table: dict(expected) for table in TABLES}


def counts(out: str) -> dict[str, dict[str, float]]:
    """Return by table how often each id was pushed, as rank 0 said."""
    printed = [line.split(" ", 2)[1:] for line in out.replace("worker-0 | ", "").splitlines() if line.startswith("counts ")]
    return {table: json.loads(line) for table, line in printed}

"""kill -9 of what a launched synchronous job is made of: it ends with the bits of the job that nothing happened to."""

import os
import re
import signal
from pathlib import Path

import pytest

from procs.crashing import RUN_TIMEOUT_S, crash, each_crash, launched_job, recorded, seed, undisturbed
from procs.hasty_script import hasty_environment

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).with_name("dlrm_job.py").read_text()
TORN_STEP = 30
TESTS = str(Path(__file__).parents[1])


def environment() -> dict[str, str]:
    """Return what the job's processes need to find the modules of these tests."""
    hasty = hasty_environment()
    return {**hasty, "PYTHONPATH": os.pathsep.join([hasty["PYTHONPATH"], TESTS])}


def checksums(out: str) -> list[str]:
    return re.findall(r"^worker-0 \| checksum (\w+)$", out, re.MULTILINE)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checksum of a run that nothing happens to."""
    (checksum,) = checksums(undisturbed(tmp_path_factory.mktemp("undisturbed"), SCRIPT, environment()))
    return checksum


@each_crash
def test_whatever_died_changes_no_bit(kinds: tuple[str, ...], number: int, reference: str, tmp_path: Path) -> None:
    run = crash(tmp_path, "dlrm", SCRIPT, kinds, seed() + number, environment())
    with recorded(run):
        assert checksums(run.out) == [reference], str(run)


@pytest.mark.parametrize("dies_too", [False, True], ids=["worker", "worker and the server that knew"])
def test_a_step_that_one_server_knows_to_be_finished_changes_no_bit(dies_too: bool, reference: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with launched_job(tmp_path, SCRIPT, environment(), str(TORN_STEP), str(told)) as launch:
        launch.wait_for("worker-1 was killed by SIGKILL")
        if dies_too:
            os.kill(launch.pids()[told.read_text()], signal.SIGKILL)
        assert launch.wait(RUN_TIMEOUT_S) == 0, launch.err
        assert checksums(launch.out) == [reference]
        assert ("the servers went back to a checkpoint" in launch.err) == dies_too

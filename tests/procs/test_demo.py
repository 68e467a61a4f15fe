"""The first real job, as a user starts it: examples/click_logistic.py in a process of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from planted_log import write_planted_log

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "click_logistic.py"
DATA = ROOT.parent / "shared" / "data"
MODES = ["sync", "async", "bounded"]
RUN_TIMEOUT_S = 100.0
END_TIMEOUT_S = 5.0

Scores = dict[str, dict[str, float]]


@contextmanager
def demo(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run the script; it is ended with the block, and what it started with it."""
    command = [sys.executable, "-u", str(SCRIPT), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def run_demo(*arguments: object) -> tuple[int, str, str]:
    """Run the script to its end; return its exit code, what it printed, and its errors."""
    with demo(*arguments) as process:
        printed, errors = process.communicate(timeout=RUN_TIMEOUT_S)
        return process.returncode, printed, errors


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that have not ended a while after the script has; one that nobody has reaped (a zombie) has ended."""
    _, alive = psutil.wait_procs(processes, timeout=END_TIMEOUT_S)
    return [process for process in alive if runs(process)]


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def read_scores(printed: str) -> Scores:
    """Return the lines of the table of scores by mode."""
    _, _, table = printed.partition("samples/s  rows held\n")
    rows = [line.split() for line in table.splitlines()]
    names = ("log_loss", "auc", "samples_per_s", "rows_held")
    scores = {row[0]: [float(number.replace(",", "")) for number in row[1:5] if number[0].isdigit()] for row in rows}
    return {mode: dict(zip(names, numbers, strict=False)) for mode, numbers in scores.items()}


def test_every_mode_learns_the_planted_model() -> None:
    code, printed, errors = run_demo("--rows", 20_000, "--seed", 1)
    assert code == 0, errors
    scores = read_scores(printed)
    assert list(scores) == [*MODES, "best"]
    for mode in MODES:
        assert scores["best"]["auc"] - 0.06 < scores[mode]["auc"] <= scores["best"]["auc"], printed
        assert scores["best"]["log_loss"] < scores[mode]["log_loss"] < 0.55, printed  # a model without an opinion has 0.693
        assert scores[mode]["samples_per_s"] > 0
    assert len({scores[mode]["rows_held"] for mode in MODES}) == 1  # they saw the same rows, whatever the order
    assert 1_000 < scores["sync"]["rows_held"] < 10_000


def test_another_number_of_servers_and_workers_and_a_log_of_ones_own(tmp_path: Path) -> None:
    write_planted_log(tmp_path / "train.tsv", rows=1_003, seed=2)
    write_planted_log(tmp_path / "test.tsv.gz", rows=500, seed=2)
    arguments = ["--train", tmp_path / "train.tsv", "--test", tmp_path / "test.tsv.gz", "--servers", 1, "--workers", 3, "--batch", 50]
    code, printed, errors = run_demo(*arguments, "--mode", "sync")
    assert code == 0, errors
    assert "1,003 rows to train on, 500 held out" in printed
    assert list(read_scores(printed)) == ["sync"]


@pytest.mark.timeout(240)
def test_a_real_log_reaches_the_auc_that_it_should_in_every_mode() -> None:
    train, test = DATA / "ctr-80k.train.tsv.gz", DATA / "ctr-80k.test.tsv.gz"
    if not train.exists() or not test.exists():
        pytest.skip(f"{DATA} has no ctr-80k on this machine")
    code, printed, errors = run_demo("--train", train, "--test", test)
    assert code == 0, errors
    scores = read_scores(printed)
    assert list(scores) == MODES
    for mode in MODES:
        assert scores[mode]["auc"] >= 0.66, printed  # one process with Adagrad: 0.667
        assert scores[mode]["rows_held"] == 167_018  # the distinct ids of the training rows: measuring creates none


def test_a_log_that_is_not_there_ends_with_2_and_its_name(tmp_path: Path) -> None:
    code, _, errors = run_demo("--train", tmp_path / "none.tsv")
    assert code == 2
    assert "No such file" in errors
    assert "none.tsv" in errors
    assert "Traceback" not in errors


def test_a_bad_line_ends_with_an_error_that_names_it(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    write_planted_log(log, rows=200, seed=0)
    lines = log.read_text().splitlines(keepends=True)
    lines[41] = "x" + lines[41]
    log.write_text("".join(lines))
    code, _, errors = run_demo("--train", log, "--mode", "async")
    assert code == 1
    assert f"{log}, line 42: field 1 of 40 is" in errors
    assert "Traceback" not in errors


def test_a_worker_that_is_killed_ends_the_run_and_is_named() -> None:
    with demo("--rows", 30_000, "--mode", "sync", "--batch", 1) as process:  # far longer than this test takes
        assert process.stdout is not None
        started = next(line for line in process.stdout if " servers, workers " in line)
        pid = re.search(r"1 \(pid (\d+)\)", started)
        assert pid is not None
        next(line for line in process.stdout if "samples/s" in line)  # training
        processes = psutil.Process(process.pid).children(recursive=True)
        os.kill(int(pid[1]), signal.SIGKILL)
        _, errors = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode == 1
        assert f"Worker 1 (pid {pid[1]}) ended with exit code -9" in errors
        assert still_running(processes) == []


def test_ctrl_c_ends_the_run_and_all_that_it_started() -> None:
    with demo("--rows", 30_000, "--mode", "async", "--batch", 1) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "samples/s" in line)
        started = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole process group
        _, errors = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode == 130
        assert errors.strip() == "Stopped."
        assert still_running(started) == []

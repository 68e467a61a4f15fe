"""From a process's two pipes to the console, a file, and the last lines of an error."""

import os
import threading
from pathlib import Path

import pytest

from ps_proto.errors import InvalidRequest
from ps_worker.launch.console import Console
from ps_worker.launch.piped_log import PipedLogs
from ps_worker.process_log import LAST_LINES

LINES = 20_000


def test_all_lines_are_out_once_the_pipes_are_closed(tmp_path: Path) -> None:
    shown = os.open(tmp_path / "shown", os.O_WRONLY | os.O_CREAT)
    logs = PipedLogs(Console({}, stdout=shown), tmp_path / "logs")
    log = logs.of("worker-0")
    stdout, stderr = log.open()
    os.close(stderr)
    with open(stdout, "wb") as pipe:
        pipe.write(b"".join(b"line %d\n" % number for number in range(LINES)))
    assert log.last_lines() == [f"line {number}" for number in range(LINES - LAST_LINES, LINES)]
    logs.close()
    os.close(shown)
    assert (tmp_path / "logs" / "worker-0.log").read_text().splitlines() == [f"line {number}" for number in range(LINES)]
    assert (tmp_path / "shown").read_text().splitlines() == [f"worker-0 | line {number}" for number in range(LINES)]


def test_a_pipe_that_stays_open_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    shown = os.open(tmp_path / "shown", os.O_WRONLY | os.O_CREAT)
    log = PipedLogs(Console({}, stderr=shown), None).of("worker-0")
    stdout, stderr = log.open()
    os.write(stderr, b"said\nhalf")
    assert log.last_lines() == ["said"]
    for descriptor in (stdout, stderr):
        os.close(descriptor)
    assert log.last_lines() == ["said", "half"]
    os.close(shown)


@pytest.mark.parametrize("starts", [0, 1])
def test_where_no_thread_can_be_started_no_pipe_is_left(starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = PipedLogs(Console({}), None).of("worker-0")
    before = os.listdir("/proc/self/fd")
    left, start = [None] * starts, threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(RuntimeError, match="new thread"):
        log.open()
    assert log.last_lines() == []  # which waits for the threads that read
    assert os.listdir("/proc/self/fd") == before


def test_a_full_disk_is_said_once_and_the_process_goes_on(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").symlink_to("/dev/full")
    shown = {name: os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("stdout", "stderr")}
    logs = PipedLogs(Console({}, **shown), tmp_path)
    stdout, stderr = logs.of("worker-0").open()
    os.close(stderr)
    with open(stdout, "wb") as pipe:
        pipe.write(b"".join(b"line %d\n" % number for number in range(LINES)))
    logs.close()
    for descriptor in shown.values():
        os.close(descriptor)
    assert (tmp_path / "stdout").read_text().splitlines() == [f"worker-0 | line {number}" for number in range(LINES)]
    said = "launch | worker-0.log takes no more lines (No space left on device); they are only shown from here on.\n"
    assert (tmp_path / "stderr").read_text() == said


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").mkdir()
    with pytest.raises(InvalidRequest, match=r"worker-0\.log: Is a directory"):
        PipedLogs(Console({}), tmp_path).of("worker-0")

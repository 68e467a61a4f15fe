"""From a process's two pipes to the console, a file, and the last lines of an error."""

import os
from pathlib import Path

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

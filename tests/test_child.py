"""A process that this one started, and its end."""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polling import poll_until
from ps_proto.errors import ClusterFailed
from ps_worker.child import Child, ProcessEnded
from ps_worker.process_log import FileLogs


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[FileLogs]:
    logs = FileLogs(tmp_path)
    yield logs
    logs.close()


def python(logs: FileLogs, code: str) -> Child:
    return Child("child", [sys.executable, "-c", code], {}, logs.of("child"))


def test_a_process_that_ended_is_named_with_its_exit_code(logs: FileLogs) -> None:
    child = python(logs, "raise SystemExit(3)")
    poll_until(lambda: child.poll() is not None)
    with pytest.raises(ProcessEnded, match="child ended with exit code 3") as ended:
        child.check()
    assert ended.value.exit_code == 3


def test_a_process_that_a_signal_ended_is_named_with_it(logs: FileLogs) -> None:
    child = python(logs, "import time; time.sleep(60)")
    child.signal(signal.SIGKILL)
    child.wait_or_kill(10.0)
    with pytest.raises(ProcessEnded, match="child was killed by SIGKILL"):
        child.check()


def test_a_process_that_cannot_be_started_is_named_with_the_reason(logs: FileLogs, tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ClusterFailed, match=r"^child could not be started: No such file or directory\.$"):
        Child("child", [str(tmp_path / "none")], {}, logs.of("child"))
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("error", [OSError(errno.EAGAIN, "Resource temporarily unavailable"), RuntimeError("can't start new thread")])
def test_a_process_that_the_system_has_no_room_for_is_named_with_the_reason(error: Exception) -> None:
    class NoRoom:
        def open(self) -> tuple[int, int]:
            raise error

        def last_lines(self) -> list[str]:
            raise AssertionError

    with pytest.raises(ClusterFailed, match=r"^child could not be started: (Resource temporarily unavailable|can't start new thread)\.$"):
        Child("child", [sys.executable], {}, NoRoom())


def test_where_sigchld_is_ignored_a_process_that_ended_has_ended(logs: FileLogs) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child = python(logs, "import time; time.sleep(60)")
        assert child.poll() is None
        child.signal(signal.SIGTERM)
        child.wait_or_kill(10.0)
        assert child.poll() == 0  # the system kept no exit code
        child.signal(signal.SIGTERM)
        child.kill()
    finally:
        signal.signal(signal.SIGCHLD, before)

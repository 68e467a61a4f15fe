"""A name under which one process runs after another."""

import os
import sys
from pathlib import Path

import pytest

from polling import poll_until
from ps_worker.child import Child, ProcessEnded
from ps_worker.post import Post
from ps_worker.process_log import FileLogs
from ps_worker.restarts import Restarts

# Ends with the exit code that a file has, one a line for each start.
SCRIPT = """
import sys
codes, starts = open(sys.argv[1]).read().split(), open(sys.argv[2], "a+")
starts.seek(0)
number = len(starts.read())
starts.write("x")
starts.close()
print("start", number)
sys.exit(int(codes[number]))
"""


class Posted:
    """A post whose processes end with `codes`, and what it said."""

    def __init__(self, folder: Path, codes: str, max_restarts: int) -> None:
        (folder / "codes").write_text(codes)
        self.said: list[str] = []
        self.logs = FileLogs(folder)
        log = self.logs.of("child")
        command = [sys.executable, "-c", SCRIPT, str(folder / "codes"), str(folder / "starts")]
        self.post = Post("child", lambda: Child("child", command, os.environ, log), Restarts(max_restarts), self.said.append)
        self.post.fill()

    def wait(self) -> None:
        """Wait for the end of the present process."""
        poll_until(lambda: self.post.child.poll() is not None)


def test_what_ended_is_started_again_once_its_pause_is_over(tmp_path: Path) -> None:
    posted = Posted(tmp_path, "3 4 5", max_restarts=2)
    posted.wait()
    first = posted.post.child.pid
    posted.post.tend(100.0)
    posted.post.tend(100.4)
    assert posted.post.child.pid == first
    posted.post.tend(100.5)
    second = posted.post.child.pid
    assert second != first
    posted.wait()
    posted.post.tend(200.0)
    posted.post.tend(200.9)
    assert posted.post.child.pid == second
    posted.post.tend(201.0)
    third = posted.post.child.pid
    posted.wait()
    with pytest.raises(ProcessEnded, match="child ended with exit code 5") as ended:
        posted.post.tend(300.0)
    assert (ended.value.exit_code, ended.value.last_lines) == (5, "start 2")  # those of the last process alone
    assert posted.said == [
        "child ended with exit code 3; it is started again in 0.5 s (1 of 2 restarts).",
        f"child runs again as process {second}.",
        "child ended with exit code 4; it is started again in 1 s (2 of 2 restarts).",
        f"child runs again as process {third}.",
    ]
    assert (tmp_path / "child.log").read_text() == "start 0\nstart 1\nstart 2\n"


def test_an_end_that_is_not_its_fault_is_said_with_its_reason_and_costs_nothing(tmp_path: Path) -> None:
    posted = Posted(tmp_path, "0 3 3", max_restarts=1)
    posted.wait()
    posted.post.tend(1.0, "the servers went back")
    posted.post.tend(1.5)
    posted.wait()
    posted.post.tend(2.0)
    assert posted.said[0] == "child ended with exit code 0; it is started again at once (the servers went back)."
    assert posted.said[2] == "child ended with exit code 3; it is started again in 0.5 s (1 of 1 restarts)."


def test_without_a_budget_the_first_end_is_an_error(tmp_path: Path) -> None:
    posted = Posted(tmp_path, "3", max_restarts=0)
    posted.wait()
    with pytest.raises(ProcessEnded, match="ended with exit code 3"):
        posted.post.tend(0.0)
    assert posted.said == []


def test_while_its_process_runs_nothing_is_done(tmp_path: Path) -> None:
    said: list[str] = []
    log = FileLogs(tmp_path).of("child")
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    post = Post("child", lambda: Child("child", command, os.environ, log), Restarts(3), said.append)
    for act in (post.kill, lambda: post.signal(15), lambda: post.wait_or_kill(0.0)):
        act()  # before there is a process
    post.fill()
    pid = post.child.pid
    post.tend(0.0)
    assert (post.child.pid, said) == (pid, [])
    post.wait_or_kill(0.0)
    assert post.child.poll() == -9

"""Backup workers with real processes: a worker that is held up holds nobody up, is late, and goes on."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

import ps_worker as ps

STEPS, TOGETHER = 20, 5
SCRIPT = f"""
import logging, sys
import numpy as np
import ps_worker as ps

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
rank, address = int(sys.argv[1]), sys.argv[2]
ids, ones = np.arange(100), np.ones((100, 1), np.float32)


def meet(word):
    print(word, flush=True)
    sys.stdin.readline()


def take_steps(count):
    for _ in range(count):
        client.pull("rows", ids)
        client.push("rows", ids, ones)
        client.end_step()


with ps.connect(address, rank=rank, world_size=3, mode=ps.Sync(backup_workers=1)) as client:
    client.create_table(ps.TableSpec("rows", dim=1, optimizer=ps.SGD(lr=1.0)))
    if rank == 2:
        client.pull("rows", ids)
        meet("held up")
        client.push("rows", ids, 1000 * ones)
        client.end_step()
        meet(f"late {{client.late_steps}} at {{client.clock}}")
    else:
        meet("ready")
        take_steps({STEPS})
        client.flush()
        meet("done")
    take_steps({TOGETHER})
print(f"closed after {{client.turn}}", flush=True)
"""


class Ranked:
    """A worker's process; it goes on when it is told."""

    def __init__(self, rank: int, address: str) -> None:
        command = [sys.executable, "-c", SCRIPT, str(rank), address]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        self.lines: list[str] = []

    def hear(self, word: str) -> str:
        """Wait for a line that begins with `word`; return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith(word):
                return line.strip()
        raise AssertionError(f"it never said {word!r}: {self.lines}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def ranked(address: str, count: int) -> Iterator[list[Ranked]]:
    with ExitStack() as stack:
        ranks = [Ranked(rank, address) for rank in range(count)]
        for rank in ranks:
            stack.enter_context(rank.process)
            stack.callback(rank.process.kill)
        yield ranks


def test_a_worker_that_is_held_up_holds_nobody_up_is_late_and_goes_on() -> None:
    with ps.local_cluster(servers=2) as cluster, ranked(cluster.address, 3) as (first, second, third):
        third.hear("held up")
        for rank in (first, second):
            rank.hear("ready")
        for rank in (first, second):
            rank.go_on()
        for rank in (first, second):
            rank.hear("done")
        third.go_on()
        assert third.hear("late") == f"late 1 at {STEPS}"
        assert "Rank 2 joined a job of backup_workers=1: from step 0 on, the weights depend on which ranks are first." in third.lines
        assert any(line.startswith("Rank 2 was late, for the 1. time") for line in third.lines)
        for rank in (first, second, third):
            rank.go_on()
        assert [rank.hear("closed") for rank in (first, second, third)] == [
            f"closed after {turns}" for turns in (STEPS + TOGETHER, STEPS + TOGETHER, 1 + TOGETHER)
        ]
        with ps.connect(cluster.address) as observer:
            rows = observer.pull("rows", np.arange(100))
            stats = [server.server for server in observer.stats().values()]
        assert {rank.process.wait(20) for rank in (first, second, third)} == {0}
        (steps,) = {numbers["step"] for numbers in stats}
        assert rows.tolist() == [[-steps]] * 100, "each step took the mean of ones, and nothing of the late push"
        assert steps >= STEPS + TOGETHER
        assert sum(numbers["pushes_late"] for numbers in stats) >= 1
        assert sorted(numbers["steps_decided"] for numbers in stats) == [0.0, steps]

"""W5: what a sample of a DLRM's training costs, beside plain torch in one process with everything in its own memory."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

import ps_worker as ps
from benchmarks.case import Case, Figure, Goal, WrongAnswer
from benchmarks.click_model import batches
from benchmarks.sizes import Sizes
from benchmarks.trainer import TABLE

WARM_UP_STEPS = 12
CPU_CLOCK = 2  # Linux's CPUCLOCK_SCHED: with the complement of a pid above it, the clock of what that process has used, in nanoseconds


class Trainer:
    """A process that takes steps (trainer.py), for the length of a `with` block."""

    def __init__(self, role: str, size: int, seed: int, *job: str) -> None:
        self._command = [sys.executable, "-W", "ignore", "-m", "benchmarks.trainer", role, str(size), str(seed), *job]

    def __enter__(self) -> Self:
        folder = Path(__file__).parents[1]
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.communicate(timeout=60.0)

    def hear(self) -> str:
        """Return the next line that it prints; RuntimeError where it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"A trainer has ended: {' '.join(self._command)}")
        return line

    def begin(self, steps: int) -> None:
        """Let it take so many steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()


def take(trainers: Sequence[Trainer], steps: int) -> float:
    """Let all take so many steps at once; return the seconds of the slowest."""
    for trainer in trainers:
        trainer.begin(steps)
    return max([float(trainer.hear()) for trainer in trainers])


def cpu_s(pids: Sequence[int]) -> float:
    """Return the processor time that processes have used so far."""
    return sum([_cpu_s(pid) for pid in pids])


def _cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | CPU_CLOCK)


class Training(Case):
    """A round lets each kind of trainer take so many steps, one kind after another; only ours with 2 workers has both processors."""

    name = "W5 DLRM"
    figures = (
        Figure("plain / compute", "µs", Goal("at least", 0.55)),
        Figure("1 worker", "µs", Goal("at least", 1.2)),
        Figure("2 workers", "µs", Goal("at least", 1.6)),
        Figure("1 worker, CPU", "µs", Goal("at most", 18.6, of="ours")),
        Figure("2 workers, CPU", "µs", Goal("at most", 18.6, of="ours")),
    )

    def __init__(self, sizes: Sizes, seed: int, stack: ExitStack) -> None:
        self._sizes, self._seed, self._stack = sizes, seed, stack
        self._compute, self._plain = self._start("compute"), self._start("plain")
        self._jobs = {workers: self._job(workers) for workers in (1, 2)}
        self._steps = dict.fromkeys(self._jobs, 0)
        for trainers in ([self._compute], [self._plain]):
            take(trainers, WARM_UP_STEPS)
        for workers in self._jobs:
            self._train(workers, WARM_UP_STEPS)

    def _start(self, role: str, seed_offset: int = 0, *job: str) -> Trainer:
        trainer = self._stack.enter_context(Trainer(role, self._sizes.training_batch, self._seed + seed_offset, *job))
        if not job:
            trainer.hear()
        return trainer

    def _job(self, workers: int) -> tuple[ps.LocalCluster, list[Trainer]]:
        cluster = self._stack.enter_context(ps.local_cluster(servers=1, log_level="warning"))
        trainers = [self._start("worker", rank, cluster.address, str(rank), str(workers)) for rank in range(workers)]
        for trainer in trainers:
            trainer.hear()
        return cluster, trainers

    def _train(self, workers: int, steps: int) -> tuple[float, float]:
        """Return microseconds for each sample: of time, and of the processors."""
        cluster, trainers = self._jobs[workers]
        pids = [cluster.pids["server-0"], *[trainer.process.pid for trainer in trainers]]
        before_s = cpu_s(pids)
        seconds = take(trainers, steps)
        self._steps[workers] += steps
        samples = steps * self._sizes.training_batch * workers
        return seconds / samples * 1e6, (cpu_s(pids) - before_s) / samples * 1e6

    def prepare(self) -> None:
        steps, pid = self._sizes.training_steps, self._plain.process.pid
        samples = steps * self._sizes.training_batch
        self._alone = take([self._compute], steps) / samples * 1e6
        before_s = cpu_s([pid])
        self._torch = take([self._plain], steps) / samples * 1e6
        self._torch_cpu = (cpu_s([pid]) - before_s) / samples * 1e6

    def floor(self) -> tuple[float, ...]:
        return self._alone, self._torch, self._torch, self._torch_cpu, self._torch_cpu

    def ours(self) -> tuple[float, ...]:
        trained = [self._train(workers, self._sizes.training_steps) for workers in self._jobs]
        return self._torch, *[passed for passed, _ in trained], *[cpu for _, cpu in trained]

    def check(self) -> None:
        """Every step was pushed once, and there is a row for each id that was in a batch."""
        for workers, (cluster, _) in self._jobs.items():
            with ps.connect(cluster.address) as observer:
                (stats,) = observer.stats().values()
            steps = self._steps[workers]
            pools = [batches(self._sizes.training_batch, self._seed + rank)[:steps] for rank in range(workers)]
            distinct = np.unique(np.concatenate([batch.ids.numpy().reshape(-1) for pool in pools for batch in pool])).size
            if (stats.server["pushes"], stats.tables[TABLE]["rows"]) != (steps * workers, distinct):
                got = f"{stats.server['pushes']} pushes and {stats.tables[TABLE]['rows']} rows"
                raise WrongAnswer(f"the server has {got} where {steps * workers} and {distinct} were due")


@contextmanager
def training_case(sizes: Sizes, seed: int) -> Iterator[Case]:
    with ExitStack() as stack:
        yield Training(sizes, seed, stack)

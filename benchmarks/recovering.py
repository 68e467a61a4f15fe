"""How long a launched job of 2 servers and 2 workers stands after kill -9: of a worker, a server, the coordinator.

Nobody is killed twice in the same job, so that each restart comes after the first pause (0.5 s) and not after one that has doubled.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import recovering_job
from benchmarks.case import Case, Figure, Goal, WrongAnswer
from benchmarks.sizes import Sizes

WORKERS = ("worker-0", "worker-1")
VICTIMS = {"worker": WORKERS, "server": ("server-0", "server-1"), "coordinator": ("coordinator",)}
FLAGS = ("--servers=2", "--workers=2", "--checkpoint-full-every=4")
CALM_S, AFTER_S = 2.0, 1.0  # what is looked at before the coordinator's end, and once it is back
POLL_S = 0.005
TIMEOUT_S = 120.0
IMPORTS = {
    "torch": "import ps_worker as ps, torch; ps.nn.EmbeddingBag, ps.optim.ServerOptimizer",
    "numpy": "import ps_worker",
    "server": "import ps_server.edge.process",
    "coordinator": "import ps_server.coordinator.process",
}


class Note(NamedTuple):
    """One line of a worker's, as recovering_job.py writes it. `at_s`: monotonic."""

    at_s: float
    pid: int
    what: str
    step: int


class Job:
    """A running `rowstead launch`. `unharmed`: the names of those that nobody has killed."""

    def __init__(self, folder: Path, kind: str, every_steps: int) -> None:
        self.folder = folder
        self.unharmed = [name for names in VICTIMS.values() for name in names]
        self._every_steps = every_steps
        self._pids: dict[str, int] = {}
        self._lines: list[tuple[float, str]] = []  # what it said, and when
        flags = (*FLAGS, f"--checkpoints={folder / 'checkpoints'}", f"--checkpoint-every-steps={every_steps}")
        command = [sys.executable, "-m", "ps_worker.cli", "launch", *flags, recovering_job.__file__, str(folder), kind]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def close(self) -> None:
        """End it as Ctrl-C does."""
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def notes(self, worker: str) -> list[Note]:
        """Return what a worker has written down so far."""
        path = self.folder / worker
        if not path.exists():
            return []
        lines = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [Note(float(at_s), int(pid), what, int(step)) for at_s, pid, what, step in lines]

    def kill(self, name: str, rng: np.random.Generator) -> "Killed":
        """Send a process SIGKILL some steps after a checkpoint; return when, and at which step."""
        manifests = len(self._manifests())
        self.until(lambda: len(self._manifests()) > manifests, "no checkpoint was taken")
        step = self._step() + int(rng.integers(self._every_steps // 4, self._every_steps // 2))
        self.until(lambda: self._step() >= step, "training does not go on")
        pid = self._pids[name]
        self.unharmed.remove(name)
        killed_s = time.monotonic()
        subprocess.run(["kill", "-9", str(pid)], check=True)
        return Killed(name, killed_s, self._step())

    def said(self, pattern: str, after_s: float) -> float:
        """Wait for a line since then that matches; return when it came."""
        found: list[float] = []

        def look() -> bool:
            found.extend([at_s for at_s, line in self._lines if at_s > after_s and re.match(pattern, line)][:1])
            return bool(found)

        self.until(look, f"nobody said {pattern!r}")
        return found[0]

    def noted(self, worker: str, what: str, after_s: float) -> Note:
        """Wait for the first note of that kind that a worker makes since then."""
        found: list[Note] = []

        def look() -> bool:
            found.extend([note for note in self.notes(worker) if note.at_s > after_s and note.what == what][:1])
            return bool(found)

        self.until(look, f"{worker} has not come to where it {what}")
        return found[0]

    def until(self, condition: Callable[[], bool], or_else: str) -> None:
        """Wait for it; raise WrongAnswer where it does not come, or where the job ends."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise WrongAnswer(f"{or_else}; the job's last lines: {[line for _, line in self._lines[-20:]]}")
            time.sleep(POLL_S)

    def _manifests(self) -> list[Path]:
        return list(self.folder.glob("checkpoints/*/manifest.json"))

    def _step(self) -> int:
        """Return the step that ranks read at last."""
        return max([note.step for worker in WORKERS for note in self.notes(worker)[-1:]], default=-1)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if named := re.match(r"launch \| .*Process ids: (.*)\.", line):
                self._pids |= {name: int(pid) for name, pid in (entry.split() for entry in named[1].split(", "))}
            if again := re.match(r"launch \| (\S+) runs again as process (\d+)", line):
                self._pids[again[1]] = int(again[2])
            self._lines.append((time.monotonic(), line.rstrip()))


class Killed(NamedTuple):
    """Who was killed, when, and at which step ranks were."""

    name: str
    at_s: float
    step: int


class Jobs:
    """Has a job in which somebody of a kind is unharmed: the same for as long as it will do."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.script = "torch" if sizes.recovers_torch else "numpy"
        self.every_steps = sizes.checkpoint_steps
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._job: Job | None = None

    def with_victim(self, kind: str) -> tuple[Job, str]:
        """Return a job, and the name of its next process of that kind."""
        if self._job is None or not any([name in self._job.unharmed for name in VICTIMS[kind]]):
            self.close()
            self._folder = tempfile.TemporaryDirectory(prefix="rowstead-bench-")
            self._job = Job(Path(self._folder.name), self.script, self.every_steps)
        return self._job, next(name for name in VICTIMS[kind] if name in self._job.unharmed)

    def close(self) -> None:
        """End the job at work."""
        if self._job is not None and self._folder is not None:
            self._job.close()
            self._folder.cleanup()
        self._job = None


class Recovery(Case):
    """Kill a process of one kind; each phase of what follows begins where the one before it ended, and their sum is what counts."""

    kind: str

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self._phases: list[dict[str, float]] = []
        self._done_again: list[int] = []

    def prepare(self) -> None:
        self.job, self.victim = self.jobs.with_victim(self.kind)

    def ours(self) -> tuple[float, ...]:
        killed = self.job.kill(self.victim, self.jobs.rng)
        instants, self.resumed = self.follow(killed)
        names, times_s = zip(*instants, strict=True)
        self._phases.append(dict(zip(names, np.diff([killed.at_s, *times_s]).tolist(), strict=True)))
        self._done_again.append(killed.step - self.resumed)
        self.killed = killed
        return (times_s[-1] - killed.at_s,)

    @abstractmethod
    def follow(self, killed: Killed) -> tuple[list[tuple[str, float]], int]:
        """Return the end of each phase, by name and in order, and the step with which ranks went on."""

    def remarks(self) -> Sequence[str]:
        """Say where the time went, and what was done again."""
        parts = [f"{name} {statistics.median([phases[name] for phases in self._phases]):.2f}" for name in self._phases[0]]
        return (f"seconds: {', '.join(parts)}; steps done again: {', '.join(map(str, self._done_again))}",)

    def restarted(self, killed: Killed) -> list[tuple[str, float]]:
        """Return the phases until the process of that name runs again."""
        noticed_s = self.job.said(rf"launch \| {killed.name} was killed", killed.at_s)
        return [("noticed", noticed_s), ("started again", self.job.said(rf"launch \| {killed.name} runs again", noticed_s))]

    def resumed_since(self, worker: str, started_s: float) -> tuple[list[tuple[str, float]], int]:
        """Return the phases of a worker that was started since then, until the step that it goes on with is folded, and that step."""
        imported, joined = [self.job.noted(worker, what, started_s) for what in ("imported", "joined")]
        first = self.job.noted(worker, "reads", joined.at_s)
        next_one = self.job.noted(worker, "reads", first.at_s)
        phases = [("imported", imported.at_s), ("joined", joined.at_s), ("at its step", first.at_s), ("next step folded", next_one.at_s)]
        return phases, first.step


class WorkerRecovery(Recovery):
    """Until the next step is folded; the floor imports what the script does."""

    name = "recover, worker"
    kind = "worker"
    figures = (Figure("until the next step", "s", Goal("at most", 10.0, of="ours")),)

    def floor(self) -> tuple[float, ...]:
        return (_import_s(self.jobs.script),)

    def follow(self, killed: Killed) -> tuple[list[tuple[str, float]], int]:
        phases = self.restarted(killed)
        of_worker, step = self.resumed_since(killed.name, killed.at_s)
        return [*phases, *of_worker], step

    def check(self) -> None:
        if not 0 <= self.killed.step - self.resumed + 1 <= 2:
            raise WrongAnswer(f"{self.killed} went on with step {self.resumed}")


class ServerRecovery(Recovery):
    """The same; the floor imports what a server does, and then what the script does."""

    name = "recover, server"
    kind = "server"
    figures = (Figure("until the next step", "s", Goal("at most", 20.0, of="ours")),)

    def floor(self) -> tuple[float, ...]:
        return (_import_s("server") + _import_s(self.jobs.script),)

    def follow(self, killed: Killed) -> tuple[list[tuple[str, float]], int]:
        phases = self.restarted(killed)
        registered_s = self.job.said(rf"{killed.name} \| .*registered", killed.at_s)
        told_s = self.job.said(r"coordinator \| .*Timeline \d+ begins", killed.at_s)
        ended_s = max([self.job.said(rf"launch \| {worker} ended", killed.at_s) for worker in WORKERS])
        started_s = {worker: self.job.said(rf"launch \| {worker} runs again", killed.at_s) for worker in WORKERS}
        phases += [("registered", registered_s), ("timeline begun", told_s), ("workers told", ended_s)]
        phases += [("started again too", max(started_s.values()))]
        last, step = max([self.resumed_since(worker, started_s[worker]) for worker in WORKERS], key=lambda found: found[0][1])
        return [*phases, *last], step

    def check(self) -> None:
        if self.resumed % self.jobs.every_steps or not 0 < self.resumed <= self.killed.step:
            raise WrongAnswer(f"{self.killed} went on with step {self.resumed}")


class CoordinatorRecovery(Recovery):
    """Training goes on.

    until it is back  the floor imports what a coordinator does
    longest step      of any rank, from the kill until a while after it is back; the floor is that of the seconds before
    """

    name = "recover, coordinator"
    kind = "coordinator"
    figures = (
        Figure("until it is back", "s", Goal("at most", 10.0, of="ours")),
        Figure("longest step", "ms", Goal("at most", 1000.0, of="ours")),
    )

    def floor(self) -> tuple[float, ...]:
        begin_s = time.monotonic()
        self.job.until(lambda: bool(self.job.notes(WORKERS[0])), "no worker began")
        begin_s = self.job.noted(WORKERS[0], "reads", begin_s).at_s
        self.job.until(lambda: time.monotonic() > begin_s + CALM_S, "it ended")
        return _import_s("coordinator"), self._longest_step_ms(begin_s, begin_s + CALM_S)

    def ours(self) -> tuple[float, ...]:
        (took_s,) = super().ours()
        end_s = self.killed.at_s + took_s + AFTER_S
        self.job.until(lambda: time.monotonic() > end_s, "it ended")
        return took_s, self._longest_step_ms(self.killed.at_s, end_s)

    def follow(self, killed: Killed) -> tuple[list[tuple[str, float]], int]:
        phases = [*self.restarted(killed), ("serving", self.job.said(r"coordinator \| .* serving ", killed.at_s))]
        return phases, killed.step

    def check(self) -> None:
        anew = [note for worker in WORKERS for note in self.job.notes(worker) if note.what == "started" and note.at_s > self.killed.at_s]
        if anew:
            raise WrongAnswer(f"a worker was started again, although only the coordinator was killed: {anew}")

    def _longest_step_ms(self, begin_s: float, end_s: float) -> float:
        def longest_s(worker: str) -> float:
            reads_s = [note.at_s for note in self.job.notes(worker) if note.what == "reads" and begin_s <= note.at_s <= end_s]
            return float(np.diff([begin_s, *reads_s, end_s]).max())

        return 1e3 * max([longest_s(worker) for worker in WORKERS])


CASES = (WorkerRecovery, ServerRecovery, CoordinatorRecovery)


def _import_s(what: str) -> float:
    """Return the seconds that a new Python takes to import what somebody needs."""
    begin_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS[what]], check=True)
    return time.perf_counter() - begin_s


@contextmanager
def recovery_jobs(sizes: Sizes, seed: int) -> Iterator[Jobs]:
    """Have jobs for the length of the block."""
    jobs = Jobs(sizes, seed)
    try:
        yield jobs
    finally:
        jobs.close()


@contextmanager
def recovery_case(case: type[Recovery], jobs: Jobs) -> Iterator[Case]:
    """Open one of CASES."""
    yield case(jobs)

"""A launched job some of whose processes get kill -9 at seeded moments, and what came of it.

Which process, at which step, and for a pair how long after the first the second, follow from the seed. Each run has a seed of its own and
prints it; ROWSTEAD_SEED sets it. When exactly a process dies depends on the machine all the same: what is seen must hold at every moment.
"""

import json
import os
import random
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import pytest

from polling import POLL_S, poll_until
from procs.launched import Launched, launched

SERVERS, WORKERS = 3, 2
CHECKPOINT_EVERY_STEPS = 8
MAX_RESTARTS = 6
FIRST_AT, ALONE_AT_MOST, PAIR_AT_MOST = 0.15, 0.8, 0.6  # of all steps; the second of a pair comes later
SOON_S_MAX = 0.3
RUN_TIMEOUT_S = 100.0
KINDS = (("worker",), ("server",), ("coordinator",), ("worker", "worker"), ("worker", "server"), ("coordinator", "any"))
DEEP_RUNS = 20
RECORDS = "ROWSTEAD_FAILURES"  # the folder that takes a file for each run, for procs/failure_table.py

# One run of each kind, and in `make deep` 20.
each_crash = pytest.mark.parametrize(
    ("kinds", "number"),
    [
        pytest.param(kinds, number, id=f"{'+'.join(kinds)}-{number}", marks=[pytest.mark.deep] if number else [])
        for kinds in KINDS
        for number in range(DEEP_RUNS)
    ],
)

_STEP = re.compile(r"^worker-(\d+) \| step (\d+) of (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Kill:
    """A process that was killed; `before`, `after`: the step that each rank was at, as seen right before and right after."""

    name: str
    pid: int
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass
class Run:
    """One run. `seconds`: from the first kill to the end of the job."""

    job: str
    kinds: tuple[str, ...]
    seed: int
    steps: int = 0
    kills: list[Kill] = field(default_factory=list)
    exit_code: int | None = None  # None: it did not end
    seconds: float = 0.0
    out: str = ""
    err: str = ""
    pids: dict[str, int] = field(default_factory=dict)  # in the end

    def check(self) -> None:
        """Fail where a kill fell outside the training, a process that was killed did not run again, or the job did not end well."""
        assert self.exit_code == 0, f"{self}\n{self.err}\n{self.out}"
        assert len(self.kills) == len(self.kinds)
        for kill in self.kills:
            inside = [0.1 * self.steps <= step <= 0.9 * self.steps for step in (*kill.before, *kill.after)]
            assert all(inside), f"{self}: outside of 10 % to 90 % of the steps"
            assert kill.pid != self.pids[kill.name], f"{self}: {kill.name} was not started again"
            assert f"{kill.name} was killed by SIGKILL; it is started again" in self.err, str(self)

    def __str__(self) -> str:
        return f"{self.job} with ROWSTEAD_SEED={self.seed}, {'+'.join(self.kinds)}: {self.kills} of {self.steps} steps"


def seed() -> int:
    """Return what ROWSTEAD_SEED says, else a new one."""
    said = os.environ.get("ROWSTEAD_SEED")
    return secrets.randbits(32) if said is None else int(said)


def crash(folder: Path, job: str, script: str, kinds: tuple[str, ...], seed: int, environment: Mapping[str, str] | None = None) -> Run:
    """Run the script, kill what `kinds` and the seed say, and return what came of it once the job has ended.

    The job has to say `step K of N`, for each rank, as it begins step K.
    """
    run, rng = Run(job, kinds, seed), random.Random(seed)
    print(f"{job} {'+'.join(kinds)}: ROWSTEAD_SEED={seed}")
    with launched_job(folder, script, environment) as launch:
        _wait_for_step(launch, 0.0)
        run.steps = int(_STEP.findall(launch.out)[0][2])
        share = rng.uniform(FIRST_AT, ALONE_AT_MOST if len(kinds) == 1 else PAIR_AT_MOST)
        _wait_for_step(launch, share * run.steps)
        begin_s = time.monotonic()
        for name in _victims(kinds, rng):
            if run.kills:
                _wait_for_second(launch, run.kills[0].name, rng)
            run.kills.append(_kill(launch, name))
        with suppress(subprocess.TimeoutExpired):  # which check() tells with all that was printed
            run.exit_code = launch.wait(RUN_TIMEOUT_S)
        run.seconds = time.monotonic() - begin_s
        run.out, run.err, run.pids = launch.out, launch.err, launch.pids()
    return run


def undisturbed(folder: Path, script: str, environment: Mapping[str, str] | None = None) -> str:
    """Run the same script to its end and return what it printed."""
    with launched_job(folder, script, environment) as launch:
        assert launch.wait(RUN_TIMEOUT_S) == 0, launch.err
        return launch.out


def launched_job(
    folder: Path, script: str, environment: Mapping[str, str] | None = None, *arguments: str, flags: tuple[str, ...] = ()
) -> AbstractContextManager[Launched]:
    """Return the job for a `with` block; its checkpoints are in `folder`/checkpoints."""
    flags = (f"--checkpoints={folder / 'checkpoints'}", f"--checkpoint-every-steps={CHECKPOINT_EVERY_STEPS}", *flags)
    return launched(
        folder, script, *arguments, servers=SERVERS, workers=WORKERS, max_restarts=MAX_RESTARTS, flags=flags, environment=environment
    )


@contextmanager
def recorded(run: Run) -> Iterator[None]:
    """Check the run and what the block checks of it; write down what came of it where RECORDS names a folder."""
    is_good = False
    try:
        run.check()
        yield
        is_good = True
    finally:
        folder = os.environ.get(RECORDS)
        if folder is not None:
            kept = {name: value for name, value in asdict(run).items() if name not in ("out", "err", "pids")}
            path = Path(folder) / f"{run.job}-{'-'.join(run.kinds)}-{run.seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({**kept, "is_good": is_good}))


def _victims(kinds: tuple[str, ...], rng: random.Random) -> list[str]:
    """Return names, no two the same."""
    by_kind = {
        "worker": [f"worker-{rank}" for rank in range(WORKERS)],
        "server": [f"server-{number}" for number in range(SERVERS)],
        "coordinator": ["coordinator"],
    }
    by_kind["any"] = [name for names in by_kind.values() for name in names]
    chosen: list[str] = []
    for kind in kinds:
        chosen.append(rng.choice([name for name in by_kind[kind] if name not in chosen]))
    return chosen


def _wait_for_second(launch: Launched, first: str, rng: random.Random) -> None:
    """Wait until the second of a pair is due: a moment later, or once the first one's end was seen and it has not begun again."""
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.0, SOON_S_MAX))
    else:
        launch.wait_for(f"{first} was killed by SIGKILL")


def _kill(launch: Launched, name: str) -> Kill:
    """Kill the process of that name, the next one where the last has just ended by itself, as a worker does that was told RolledBack."""
    deadline_s = time.monotonic() + RUN_TIMEOUT_S
    while True:
        assert time.monotonic() < deadline_s, f"{name} does not run: {launch.err}"
        assert launch.process.poll() is None, launch.err
        pid, before = launch.pids()[name], _steps(launch)
        try:
            process = psutil.Process(pid)
            if process.ppid() == launch.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                process.send_signal(signal.SIGKILL)
                return Kill(name, pid, before, _steps(launch))
        except psutil.NoSuchProcess:
            pass
        time.sleep(POLL_S)


def _steps(launch: Launched) -> tuple[int, ...]:
    """Return the step that each rank said last."""
    steps = {int(rank): int(step) for rank, step, _ in _STEP.findall(launch.out)}
    return tuple(steps[rank] for rank in sorted(steps))


def _wait_for_step(launch: Launched, step: float) -> None:
    def is_there() -> bool:
        assert launch.process.poll() is None, launch.err
        steps = _steps(launch)
        return len(steps) == WORKERS and min(steps) >= step

    poll_until(is_there, RUN_TIMEOUT_S)

"""A counting job whose every push is a function of (seed, rank, step): a step that is redone is the same, and all of it can be checked.

Each rank pushes ones to ids of its own, so a row is minus the number of its rank's pushes in it; they arrive in their order, so those are
the first so many.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from jobs import Ids, Rows, counting_table
from ps_proto.requests import push_name
from ps_proto.values import Async, BoundedStaleness, Mode
from ps_worker.asking import Pause
from ps_worker.protocol import BarriersAsked, Worker
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sim.cluster import Simulation
from sim.found_checkpoints import Loaded, rows_of
from sim.nodes import Script
from sim.scripts import state_after

OWN_IDS = 40  # ids of each rank: over several servers, each owns some
TABLES = ("a", "b")
BARRIER_EVERY = 4  # steps


@cache
def pushes_of(seed: int, rank: int, step: int) -> tuple[tuple[tuple[str, Ids], ...], ...]:
    """Return the ids of each table in each push of the rank's step, ascending, each once."""
    rng = np.random.default_rng([seed, rank, step])
    return tuple([tuple([(name, some(rng, OWN_IDS, rank * OWN_IDS)) for name in TABLES]) for _ in range(int(rng.integers(0, 3)))])


def some(rng: np.random.Generator, count: int, first: int) -> Ids:
    """Return some ids of first..first+count, each once, ascending."""
    return np.flatnonzero(rng.random(count) < rng.random()).astype(np.uint64) + np.uint64(first)


def _start_values(rank: int) -> list[tuple[str, Ids, Rows]]:
    """Return zeros for half of the rank's rows: those are the initial values, so that nothing that is counted depends on them."""
    ids = np.arange(OWN_IDS // 2, dtype=np.uint64) + np.uint64(rank * OWN_IDS)
    return [(name, ids, np.zeros((ids.size, 2), np.float32)) for name in TABLES]


@dataclass
class Counting:
    """The job, and what is wrong with what its ranks saw. `pause_s`: what a step takes at most."""

    seed: int
    world_size: int
    steps: int
    mode: Mode = field(default_factory=Async)
    pause_s: float = 0.0
    torn: list[str] = field(default_factory=list)

    def script(self, rank: int, nonce: int, resumes: bool = False) -> Callable[[Worker], Script]:
        """Do the rank's steps; one that `resumes` goes on where the rank was, and looks at what its predecessor left (R15)."""

        def script(worker: Worker) -> Script:
            yield from worker.join(rank, self.world_size, self.mode, nonce, resumes)
            self._look_at_resume(worker)
            for name in TABLES:
                yield from worker.create_table(counting_table(name))
            yield from worker.assign(_start_values(rank), only_absent=True)  # a script begins at its top, also one that resumes
            passed = worker.clock // BARRIER_EVERY
            yield from worker.resume_barriers(BarriersAsked(passed, passed))
            while worker.clock < self.steps:
                yield from self._step(worker)
            yield from worker.leave()

        return script

    def _look_at_resume(self, worker: Worker) -> None:
        left = state_after(worker.clock - 1) if worker.is_resumed else b""
        if worker.resume != left:
            self.torn.append(f"rank {worker.rank} begins step {worker.clock} with {worker.resume!r}, not {left!r}")

    def _step(self, worker: Worker) -> Script:
        rank, step = worker.rank, worker.clock
        rng = np.random.default_rng([self.seed, rank, step, 1])
        wanted = [(name, some(rng, self.world_size * OWN_IDS, 0)) for name in TABLES]
        rows = yield from worker.pull(wanted)
        for (name, ids), read in zip(wanted, rows, strict=True):
            self._saw(rank, name, step, ids, read)
        if self.pause_s:
            yield Pause(self.pause_s * float(rng.random()))
        for push in pushes_of(self.seed, rank, step):
            yield from worker.push([(name, ids, np.ones((ids.size, 2), np.float32)) for name, ids in push])
        if step % BARRIER_EVERY == BARRIER_EVERY - 1:
            minimum = yield from worker.barrier(step + rank)
            if minimum != step:
                self.torn.append(f"rank {rank} passed the barrier of step {step} with {minimum}")
        yield from worker.end_step(state_after(step))

    # --- what must be ------------------------------------------------------------------------------------------------------------

    def _saw(self, reader: int, table: str, clock: int, ids: Ids, rows: Rows) -> None:
        """Check a pull for step `clock`: it holds every push of its own steps before, and of every rank's steps < clock - bound."""
        need_of_others = clock - self.mode.bound if isinstance(self.mode, BoundedStaleness) else 0
        for id, row in zip(ids.tolist(), rows.tolist(), strict=True):
            rank = id // OWN_IDS
            need = self._counts(rank, clock if rank == reader else need_of_others)[table, id]
            if not need <= -row[0] or row[0] != row[1]:
                self.torn.append(f"rank {reader} at step {clock} read {row} of {table} {id}, where {need} pushes were due")

    def _counts(self, rank: int, steps: int) -> Counter[tuple[str, int]]:
        """Return how often the rank pushes to each of its ids in the steps before `steps`."""
        return _counts(self.seed, rank, max(0, min(steps, self.steps)))

    def missing_or_double(self, sim: Simulation) -> Iterator[str]:
        """Yield every row that is not exactly what all steps push to it."""
        for rank in range(self.world_size):
            for (table, id), times in sorted(self._counts(rank, self.steps).items()):
                row = sim.row(table, id)
                if row != [-float(times)] * 2:
                    yield f"{table} {id} is {row} after {times} pushes of one"

    def faults_in(self, loaded: Sequence[Loaded]) -> Iterator[str]:
        """Yield every row of a checkpoint that is not what the pushes up to its bucket's name make it (R2, R19)."""
        held = {name: dict(zip(ids.tolist(), rows[:, 0].tolist(), strict=True)) for name, (ids, rows) in rows_of(loaded).items()}
        for rank in range(self.world_size):
            for table in held:
                ids = np.arange(OWN_IDS, dtype=np.uint64) + np.uint64(rank * OWN_IDS)
                last = _names_of(loaded, rank)[buckets_of(table_salt(table), ids)]
                for id, name in zip(ids.tolist(), last.tolist(), strict=True):
                    times = self._times_up_to(rank, table, id, name)
                    if held[table].get(id, 0.0) != -times:
                        yield f"{table} {id} is {held[table].get(id)} although {times} pushes are named up to {name:x}"

    def _times_up_to(self, rank: int, table: str, id: int, last: int) -> int:
        return sum([name <= last for name in _names(self.seed, rank, self.steps).get((table, id), ())])


def _names_of(loaded: Sequence[Loaded], rank: int) -> NDArray[np.uint64]:
    """Return uint64[16384], the rank's names as servers were told them together."""
    names = np.zeros(NUM_BUCKETS, np.uint64)
    for shard in loaded:
        np.maximum(names, shard.names.get(rank, names), out=names)
    return names


@cache
def _counts(seed: int, rank: int, steps: int) -> Counter[tuple[str, int]]:
    return Counter({key: sum([name < push_name(steps, 0) for name in names]) for key, names in _names(seed, rank, steps).items()})


@cache
def _names(seed: int, rank: int, steps: int) -> dict[tuple[str, int], list[int]]:
    """Return the name of each push to each id, ascending."""
    names: dict[tuple[str, int], list[int]] = {}
    for step in range(steps):
        for seq, push in enumerate(pushes_of(seed, rank, step), start=1):
            for table, ids in push:
                for id in ids.tolist():
                    names.setdefault((table, id), []).append(push_name(step, seq))
    return names

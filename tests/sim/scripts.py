"""What workers do in the simulator: scripts, and the ledgers by which their effect is checked."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jobs import TABLES, Ids, Rows, counting_table, gradients_of, halves, ids_of
from ps_proto.values import Mode, Sync
from ps_worker.asking import Operation, Pause
from ps_worker.exporting import open_export
from ps_worker.protocol import Worker
from sim.cluster import Simulation
from sim.nodes import Script


def exported(worker: Worker, table: str) -> Operation[tuple[Ids, Rows]]:
    """Read a whole table."""
    export = yield from open_export(worker, table)
    parts = []
    while (part := (yield from export.next_part())) is not None:
        parts.append(part)
    yield from export.close()
    dim = worker.tables[table].dim
    ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _ in parts)])
    return ids, np.concatenate([np.empty((0, dim), np.float32), *(rows for _, rows in parts)])


Batches = dict[tuple[int, int], int]  # (rank, step) -> which batch of its own the rank had in that step


def train(
    rank: int,
    world_size: int,
    steps: int,
    mode: Mode | None = None,
    batches: Batches | None = None,
    pause_s: float = 0.0,
    pulls_halves: bool = False,
) -> Callable[[Worker], Script]:
    """The job of jobs.py, synchronous unless said otherwise; two pushes a step. `pause_s`: what a gradient takes; `batches` is filled.

    `pulls_halves`: it pulls the ids of each push by themselves, so that the push may name that pull.
    """

    def script(worker: Worker) -> Script:
        yield from worker.join(rank, world_size, mode or Sync(), 1 + rank)
        for spec in TABLES:
            yield from worker.create_table(spec)
        for step in range(steps):
            ids = {spec.name: ids_of(rank, step, spec.name) for spec in TABLES}
            rows = yield from (_pull_halves(worker, ids) if pulls_halves else worker.pull(list(ids.items())))
            gradients = {name: gradients_of(rank, step, ids[name], read) for name, read in zip(ids, rows, strict=True)}
            if batches is not None:
                batches[rank, worker.clock] = step
            if pause_s:
                yield Pause(pause_s)
            for half in (0, 1):
                yield from worker.push([half_of(name, ids[name], gradients[name], half) for name in ids])
            yield from worker.end_step()
        yield from worker.leave()

    return script


def train_on(rank: int, world_size: int, steps: int, nonce: int, pause_s: float = 0.0) -> Callable[[Worker], Script]:
    """Do the same from where the rank was, and look at what its predecessor left (R15)."""

    def script(worker: Worker) -> Script:
        yield from worker.join(rank, world_size, Sync(), nonce, resume=True)
        assert worker.resume == (state_after(worker.clock - 1) if worker.is_resumed else b""), worker.resume
        for spec in TABLES:
            yield from worker.create_table(spec)
        while worker.clock < steps:
            step = worker.clock
            ids = {spec.name: ids_of(rank, step, spec.name) for spec in TABLES}
            rows = yield from worker.pull(list(ids.items()))
            gradients = {name: gradients_of(rank, step, ids[name], read) for name, read in zip(ids, rows, strict=True)}
            if pause_s:
                yield Pause(pause_s)
            for half in (0, 1):
                yield from worker.push([half_of(name, ids[name], gradients[name], half) for name in ids])
            yield from worker.end_step(state_after(step))
        yield from worker.leave()

    return script


def state_after(step: int) -> bytes:
    """Return the resume state that a rank leaves with a step."""
    return f"step {step} is done".encode()


def _pull_halves(worker: Worker, ids: dict[str, Ids]) -> Operation[list[Rows]]:
    first = yield from worker.pull([(name, its[halves(its.size)[0]]) for name, its in ids.items()])
    second = yield from worker.pull([(name, its[halves(its.size)[1]]) for name, its in ids.items()])
    return [np.concatenate(parts) for parts in zip(first, second, strict=True)]


def half_of(name: str, ids: Ids, gradients: Rows, half: int) -> tuple[str, Ids, Rows]:
    """Return the part of a step's gradients that its first push has, or its second."""
    part = halves(ids.size)[half]
    return name, ids[part], gradients[part]


def trained(sim: Simulation) -> dict[str, tuple[Ids, Rows]]:
    """Return all rows of the job, read by an observer."""
    names = [spec.name for spec in TABLES]

    def script(worker: Worker) -> Script:
        yield from worker.observe()
        tables = {}
        for name in names:
            tables[name] = yield from exported(worker, name)
        return tables

    node = sim.worker("observer", script)
    sim.run(until=lambda: node.is_done)
    assert node.error is None, node.error
    result: dict[str, tuple[Ids, Rows]] = node.result
    return result


@dataclass
class Ledger:
    """Every push of a counting job, and every pull with what it must have seen.

    Each rank pushes ones to ids of its own, so a row is minus the number of its pushes in it, and since a rank's pushes arrive in
    their order, minus the number of the first so many.
    """

    bound: int | None  # of bounded staleness; None: nothing is promised but one's own pushes
    seed: int
    pushed: Counter[tuple[str, int]] = field(default_factory=Counter)  # (table, id) -> times
    by_step: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # (table, id) -> the step of each push, ascending
    torn: list[str] = field(default_factory=list)

    def push(self, table: str, step: int, ids: Ids) -> None:
        for id in ids.tolist():
            self.pushed[table, id] += 1
            self.by_step.setdefault((table, id), []).append(step)

    def clear(self, table: str) -> None:
        """Count the table's pushes anew."""
        for key in [key for key in self.pushed if key[0] == table]:
            self.pushed[key] = 0

    def saw(self, rank: int, table: str, clock: int, ids: Ids, rows: Rows) -> None:
        """Check a pull for step `clock`: it holds every push of steps < clock - bound of every rank, and no push that nobody made."""
        if self.bound is None:
            return
        for id, row in zip(ids.tolist(), rows.tolist(), strict=True):
            steps = self.by_step.get((table, id), [])
            need = sum(1 for step in steps if step < clock - self.bound)
            if not need <= -row[0] or row[0] != row[1]:
                self.torn.append(f"rank {rank} at step {clock} read {row} of {table} {id}, where {need} pushes were due of steps {steps}")


OWN_IDS = 40  # ids of each rank: over several servers, each owns some


COUNTED = ("a", "b")


def count(rank: int, world_size: int, steps: int, mode: Mode, ledger: Ledger) -> Callable[[Worker], Script]:
    """Push ones to some of the rank's own ids each step, and read ids of every rank."""

    def script(worker: Worker) -> Script:
        rng = np.random.default_rng([ledger.seed, rank])
        yield from worker.join(rank, world_size, mode, 1 + rank)
        for name in COUNTED:
            yield from worker.create_table(counting_table(name))
        for step in range(steps):
            if rng.random() < 0.8:
                wanted = [(name, _some(rng, world_size * OWN_IDS, 0)) for name in COUNTED]
                rows = yield from worker.pull(wanted)
                for (name, ids), read in zip(wanted, rows, strict=True):
                    ledger.saw(rank, name, step, ids, read)
            for _ in range(int(rng.integers(0, 3))):
                given = [(name, _some(rng, OWN_IDS, rank * OWN_IDS)) for name in COUNTED]
                for name, ids in given:
                    ledger.push(name, step, ids)
                yield from worker.push([(name, ids, np.ones((ids.size, 2), np.float32)) for name, ids in given])
            yield from worker.end_step()
        yield from worker.leave()

    return script


def _some(rng: Any, count: int, first: int) -> Ids:
    """Return some ids of first..first+count, each once, ascending."""
    return np.flatnonzero(rng.random(count) < rng.random()).astype(np.uint64) + np.uint64(first)


def missing_or_double(sim: Simulation, ledger: Ledger) -> Iterator[str]:
    """Yield every row that is not exactly what was pushed to it."""
    for (table, id), times in sorted(ledger.pushed.items()):
        row = sim.row(table, id)
        if row != [-float(times)] * 2:
            yield f"{table} {id} is {row} after {times} pushes of one"

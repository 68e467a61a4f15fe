"""Workers that push the ids that they have pulled, a batch or two later, on servers that forget: what key lists must not change (R19)."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from jobs import Ids, counting_table
from ps_proto.values import Mode, Sync
from ps_server.events import Effect, Event
from ps_server.shard.shard import Shard
from ps_worker.protocol import Worker
from sim.cluster import Simulation
from sim.network import Chances
from sim.nodes import Script
from sim.scripts import OWN_IDS, Ledger

WORKERS = 2  # a mean over two is exact
SHARED = "shared"
ROUGH = Chances(drop=0.03, double=0.03, delay=0.05)


def own_table(rank: int) -> str:
    """Return the name of the table that this rank alone pushes to, and clears."""
    return f"own-{rank}"


class Forgetful(Shard):
    """Forgets all key lists before some of its turns, as one that was started again, or has too many of them."""

    def __init__(self, server: str, rows_max: int | None = None) -> None:
        super().__init__(server, rows_max)
        self._rng = random.Random(server)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self._rng.random() < 0.05:
            self.key_lists.clear()
        return super().handle(event, now_s)


def relearn(rank: int, steps: int, mode: Mode, ledger: Ledger) -> Callable[[Worker], Script]:
    """Pull a batch of the rank's own ids of two tables, some steps ahead; push ones to exactly them, or to almost; clear one sometimes."""
    tables = (SHARED, own_table(rank))

    def batch(rng: Any) -> dict[str, Ids]:
        chosen = {}
        for table in tables:
            ids = np.flatnonzero(rng.random(OWN_IDS) < 0.3).astype(np.uint64)
            chosen[table] = rng.permutation(ids) + np.uint64(rank * OWN_IDS)
        return chosen

    def script(worker: Worker) -> Script:
        rng = np.random.default_rng([ledger.seed, rank])
        yield from worker.join(rank, WORKERS, mode, 1 + rank)
        for table in tables:
            yield from worker.create_table(counting_table(table))
        ahead: deque[dict[str, Ids]] = deque()
        for step in range(steps):
            while len(ahead) <= rng.integers(0, 3):
                ahead.append(batch(rng))
                yield from worker.pull(list(ahead[-1].items()))
            if rng.random() < 0.15 and not isinstance(mode, Sync):
                yield from worker.clear(own_table(rank))
                ledger.clear(own_table(rank))
            given = [(table, _changed(rng, ids)) for table, ids in ahead.popleft().items()]
            for table, ids in given:
                ledger.push(table, step, ids)
            yield from worker.push([(table, ids, np.ones((ids.size, 2), np.float32)) for table, ids in given])
            yield from worker.end_step()
        yield from worker.leave()

    return script


def _changed(rng: Any, ids: Ids) -> Ids:
    """Return the ids, sometimes with one id less, or in another order."""
    draw = rng.random()
    if draw < 0.8 or not ids.size:
        return ids
    return np.delete(ids, rng.integers(ids.size)) if draw < 0.9 else ids[::-1].copy()


def relearned(sim: Simulation, steps: int, mode: Mode) -> Ledger:
    """Run such a job under faults; buckets of tables that are applied on arrival move meanwhile."""
    ledger = Ledger(None, sim.seed)
    for rank in range(WORKERS):
        sim.worker(f"worker-{rank}", relearn(rank, steps, mode, ledger), start_s=sim.rng.random() * 2)
    sim.disturb(until_s=20.0, with_moves=not isinstance(mode, Sync))
    sim.run()
    return ledger


def wrong_rows(sim: Simulation, ledger: Ledger, mode: Mode) -> list[str]:
    """Return every row that is not exactly what was pushed to it since its table was cleared, in synchronous mode the mean."""
    share = 1.0 / WORKERS if isinstance(mode, Sync) else 1.0
    wanted = {(table, id): -share * times for (table, id), times in sorted(ledger.pushed.items())}
    rows = {key: sim.row(*key) for key in wanted}
    return [f"{key} is {row}, not {wanted[key]}" for key, row in rows.items() if row != [wanted[key]] * 2]


def counted(sim: Simulation, name: str) -> int:
    """Return what the servers have counted of their tables under this name."""
    return sum(getattr(table, name) for shard in sim.shards.values() for table in shard.counters.tables.values())

"""What each step of a pull and of a push costs in Python and kernels, all in this process and without a socket.

    python benchmarks/steps.py [--rows 1000000] [--seed 0]

Prints microseconds, the median and the least of some rounds, for 16 ids and for 100,000, uniform over a table of 64 floats with Adagrad.
Steps that are indented are part of the one above. NOTES.md has what it printed and what came of it.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ps_worker.inputs as inputs
from ps_proto.methods import Reader, to_bytes
from ps_proto.orders import FenceRank, InstallMap, InstallTable, ResolveRank, StartJob
from ps_proto.requests import Fence, Ids, Pull, Push, Rows, TableIds, TableRows
from ps_proto.values import Adagrad, Async, TableSpec
from ps_server.events import Asked, Reply
from ps_server.shard.shard import Shard
from ps_server.shard.window import Window
from ps_worker.asking import Operation, Patience, World
from ps_worker.protocol.merged import Merged
from ps_worker.protocol.worker import Worker
from ps_worker.router import Wanted, route
from sharding.finite import all_finite, copy_finite
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sharding.shard_map import Server, ShardMap

SPEC = TableSpec("embeddings", 64, Adagrad(lr=0.05))
MAP = ShardMap(1, (Server("server-0", "host:1"),), np.zeros(NUM_BUCKETS, np.int32))
FENCE = Fence(1, rank=0, incarnation=1)
BYTES_MAX = 1 << 30


def serving() -> Shard:
    """Return the only server of a job with one rank."""
    shard = Shard("server-0")
    orders = (
        InstallMap(MAP),
        InstallTable(1, SPEC),
        StartJob(1, job=1, world_size=1, mode=Async(), first_clock=0),
        FenceRank(1, rank=0, incarnation=1),
        ResolveRank(1, rank=0, incarnation=1, fact=None, start=0),
    )
    for order in orders:
        answer(shard, order)
    return shard


def answer(shard: Shard, body: Any) -> Any:
    (effect,) = shard.handle(Asked(1, body), 0.0)
    assert isinstance(effect, Reply), effect
    return effect.body


def worker_of(shard: Shard) -> Worker:
    """Return a worker that has joined."""
    worker = Worker("coordinator:1", World(time.monotonic, lambda: 0.5, lambda error: None), Patience())
    view = worker._view
    view.rank, view.incarnation, view.world_size, view.mode, view.shard_map = 0, 1, 1, Async(), MAP
    view.tables = {SPEC.name: SPEC}
    return worker


def run(operation: Operation[Any], call: Callable[[Any], Any]) -> Any:
    """Run an operation of one server at a time."""
    outcome: Any = None
    try:
        while True:
            outcome = [call(one.body) for one in operation.send(outcome).calls]  # type: ignore[union-attr]  # nothing fails, so nothing pauses
    except StopIteration as stop:
        return stop.value


@dataclass
class Steps:
    """Times one step after another, on other ids in each round."""

    shard: Shard
    ids: Ids
    count: int
    rounds: int
    rng: np.random.Generator

    def draw(self) -> Ids:
        return self.ids[self.rng.permutation(self.ids.size)[: self.count]]

    def time(self, name: str, step: Callable[[Ids], Any]) -> None:
        drawn = [self.draw() for _ in range(min(self.rounds, 40))]
        times = []
        for number in range(self.rounds):
            given = drawn[number % len(drawn)]
            begin_ns = time.perf_counter_ns()
            step(given)
            times.append((time.perf_counter_ns() - begin_ns) / 1e3)
        print(f"{name:<44} {statistics.median(times):>10,.1f} {min(times):>10,.1f}", flush=True)

    def all(self) -> None:
        """Print a line for each step."""
        table, window, seq = self.shard.tables[SPEC.name], Window(), iter(range(1, 1 << 30))
        salt, owned = table_salt(SPEC.name), self.shard.membership
        gradients: Rows = np.ones((self.count, SPEC.dim), np.float32)
        target = np.zeros_like(gradients)
        worker, parameters = worker_of(self.shard), SPEC.optimizer.parameters()
        pulled = answer(self.shard, Pull(FENCE, (TableIds(SPEC.name, self.draw()),)))
        buckets = buckets_of(salt, self.draw())

        def note(given: Ids) -> None:
            name = next(seq)
            window.fresh(0, buckets, name)
            window.record(0, buckets, name)

        def over(value: Any) -> None:
            reader = Reader(type(value), "it", BYTES_MAX)
            for message in to_bytes(value):
                reader.take(message)
            reader.value()

        print(f"\n{self.count:,} ids{'':<34} {'median µs':>12} {'least':>8}")
        self.time("client, pull: all but the call", lambda given: run(worker.pull([(SPEC.name, given)]), lambda body: pulled))
        self.time("  check the ids", lambda given: inputs.as_ids("ids", given))
        self.time("  look for repeats", lambda given: Wanted.to_read(SPEC.name, given))
        self.time("  route", lambda given: route([Wanted(SPEC.name, given, None)], MAP))
        self.time("client, push: merge and check", lambda given: Merged.of(SPEC.name, given, gradients, repeats=True).checked())
        self.time("  take each id once", lambda given: Wanted.to_write(SPEC.name, given))
        self.time("  all finite", lambda given: all_finite(gradients))
        self.time("  copy where all is finite, as to an arena", lambda given: copy_finite(gradients, target))
        self.time("server, pull: a turn", lambda given: answer(self.shard, Pull(FENCE, (TableIds(SPEC.name, given),))))
        self.time("  owned", lambda given: owned.check_owned(SPEC.name, given))
        self.time("  find", table.count_absent)
        self.time("  find, gather", table.pull)
        self.time(
            "server, push: a turn", lambda given: answer(self.shard, Push(FENCE, next(seq), (TableRows(SPEC.name, given, gradients),)))
        )
        self.time("  all finite", lambda given: all_finite(gradients))
        self.time("  buckets", lambda given: buckets_of(salt, given))
        self.time("  names by bucket", note)
        self.time("  find, apply", lambda given: table.update(given, gradients, parameters))
        self.time("gRPC's messages: a pull, both ends", lambda given: over(Pull(FENCE, (TableIds(SPEC.name, given),))))
        self.time("gRPC's messages: its answer, both ends", lambda given: over(pulled))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    ids = rng.permutation(np.unique(rng.integers(0, 2**62, chosen.rows, dtype=np.uint64)))
    shard = serving()
    for begin in range(0, ids.size, 100_000):
        part = ids[begin : begin + 100_000]
        shard.tables[SPEC.name].assign(part, np.ones((part.size, SPEC.dim), np.float32))
    for count, rounds in ((16, 4_000), (min(100_000, ids.size), 40)):
        Steps(shard, ids, count, rounds, rng).all()


if __name__ == "__main__":
    main()

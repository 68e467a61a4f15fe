"""A coordinator and servers that answer a worker's operations by a script, and note what each of them heard; no core takes part."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ps_proto.errors import ParameterServerError, StepPassed
from ps_proto.requests import (
    Barrier,
    BarrierPassed,
    Cluster,
    CreateTable,
    Done,
    ExportOpened,
    GetCluster,
    GetStats,
    JobJoined,
    JoinJob,
    OpenExport,
    Pull,
    Pulled,
    Stats,
    TableCreated,
)
from ps_proto.values import SGD, Async, Mode, Sync, TableSpec
from ps_worker.asking import Call, Patience
from ps_worker.protocol import Worker
from ps_worker.retry import Backoff
from ps_worker.rooms import Lend, lends_nothing
from scripted import Scripted
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sharding.shard_map import Server, ShardMap

SYNC = TableSpec("dense", 1, SGD(0.5), mode=Sync())
ASYNC = TableSpec("sparse", 1, SGD(0.5), mode=Async())
NAMES = ("server-0", "server-1", "server-2")
PATIENCE = Patience(rpc_timeout_s=1.0, retry_timeout_s=5.0, wait_timeout_s=25.0, backoff=Backoff(0.5, 0.5))


def ids_of(*given: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array(given, np.uint64)


def rows_of(*given: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(given, np.float32).reshape(-1, 1)


def shard_map(version: int = 1, servers: int = 3, **owner_of: int) -> ShardMap:
    """A map in which id k of either table belongs to server k, but for `id_7=0` and the like."""
    owners = np.zeros(NUM_BUCKETS, np.int32)
    for table in (SYNC.name, ASYNC.name):
        for id in range(10):
            owners[buckets_of(table_salt(table), ids_of(id))] = owner_of.get(f"id_{id}", id if id < servers else 0)
    return ShardMap(version, tuple(Server(name, f"{name}:1") for name in NAMES[:servers]), owners)


class Peers:
    """A coordinator and servers that say yes to everything, unless `hooks` say otherwise: a hook returns an outcome or None."""

    def __init__(
        self,
        mode: Mode | None,
        tables: tuple[TableSpec, ...] = (SYNC, ASYNC),
        clock: int = 0,
        servers: int = 3,
        lend: Lend = lends_nothing,
        list_ids_min: int = 4_096,
    ) -> None:
        self.map = shard_map(servers=servers)
        self.mode = mode
        self.tables = tables
        self.clock = clock
        self.hooks: list[Callable[[Call], Any]] = []
        self.script = Scripted(self.answer, lend=lend)
        self.worker = Worker("coordinator:1", self.script.world, PATIENCE, list_ids_min)

    def answer(self, call: Call) -> Any:
        for hook in self.hooks:
            if (outcome := hook(call)) is not None:
                return outcome
        match call.body:
            case GetCluster():
                return Cluster(3, self.map, self.tables, 0, 2 if self.mode else 0, self.mode)
            case JoinJob():
                assert self.mode is not None
                return JobJoined(4, self.clock, 6, 2, self.mode, 0, self.map, self.tables, rank=call.body.rank)
            case CreateTable(spec):
                return TableCreated(next((have for have in self.tables if have.name == spec.name), spec))
            case Pull(_, tables):
                rows = tuple([np.array([[10 * int(id)] for id in part.ids], np.float32).reshape(-1, 1) for part in tables])
                return Pulled(rows, call.body.fence.clock)
            case OpenExport():
                return ExportOpened(1, 0, 0)
            case GetStats():
                return Stats({"pulls": 1.0}, {})
            case Barrier():
                return BarrierPassed(call.body.value, call.body.generation)
        return Done()

    def joined(self) -> "Peers":
        self.script.run(self.worker.join(0, 2, self.mode, 99))
        self.script.calls.clear()
        return self

    def run(self, operation: Any) -> Any:
        return self.script.run(operation)

    def heard(self) -> list[tuple[str, Any]]:
        """What was said since the last time, to whom."""
        calls = [(call.peer, call.body) for call in self.script.calls]
        self.script.calls.clear()
        return calls

    def on(self, kind: type, *outcomes: Any, peer: str | None = None) -> None:
        """Give these outcomes to the next requests of a kind."""
        left: Iterator[Any] = iter(outcomes)

        def hook(call: Call) -> Any:
            if isinstance(call.body, kind) and peer in (None, call.peer):
                outcome = next(left, None)
                return outcome(call) if callable(outcome) else outcome
            return None

        self.hooks.append(hook)

    def push(self, *ids: int, table: str = "dense") -> None:
        self.run(self.worker.push([(table, ids_of(*ids), rows_of(*[1.0] * len(ids)))]))

    def pull(self, *ids: int, table: str = "dense") -> list[list[float]]:
        (rows,) = self.run(self.worker.pull([(table, ids_of(*ids))]))
        return [[float(value) for value in row] for row in rows]


class PeersTransport:
    """A transport for a client, on which the peers answer by their script."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.is_closed = threading.Event()

    def call(self, address: str, body: Any, timeout_s: float, peer: str = "The peer") -> Any:
        outcome = self._peers.answer(Call(peer, address, body, timeout_s))
        if isinstance(outcome, ParameterServerError):
            raise outcome
        return outcome

    def lend(self, nbytes: int) -> None:
        return None

    def close(self) -> None:
        self.is_closed.set()


def kinds(heard: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(peer, type(body).__name__) for peer, body in heard]


def observer(mode: Mode | None = None) -> Peers:
    peers = Peers(mode or Sync())
    peers.run(peers.worker.observe())
    peers.heard()
    return peers


def at_steps(peers: Peers, steps: dict[str, list[Any]]) -> None:
    """Let a server answer pulls (and open exports) as of these steps, one after another."""

    def hook(call: Call) -> Any:
        if call.peer not in steps or not isinstance(call.body, Pull | OpenExport):
            return None
        step = steps[call.peer].pop(0)
        if isinstance(step, StepPassed):
            return step
        return ExportOpened(1, 0, step) if isinstance(call.body, OpenExport) else Pulled((rows_of(step),), step)

    peers.hooks.append(hook)

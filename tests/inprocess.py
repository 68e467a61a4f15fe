"""A whole cluster of the real cores in this process, and transports to it: no socket, but real bytes and real threads.

cluster = InProcess(servers=2)
client = cluster.connect(0, 1, Sync())        # the public Client

A call hands its request to the core at once, under one lock; where the core parks it, the calling thread waits on a condition and gives
the core its ticks. Requests and replies travel as bytes, so nobody shares an array.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dict_store import DictStore
from ps_proto.errors import ClientClosed, ParameterServerError, Unreachable
from ps_proto.methods import Reader, to_bytes
from ps_proto.orders import AskProcess, ProcessNamed
from ps_proto.requests import RegisterServer
from ps_proto.values import Mode
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.edge.timed_core import TimedCore
from ps_server.events import Answered, Asked, Core, Dropped, Event, Persist, Refuse, Reply, Tell, Ticked, Work, Worked
from ps_server.shard.shard import Shard
from ps_server.storage.program import run
from ps_server.storage.programs import PROGRAMS
from ps_worker.asking import Patience
from ps_worker.client import Client
from ps_worker.retry import Backoff
from sharding.arrays import empty_aligned
from stored import store

COORDINATOR = "the-coordinator:0"
PATIENCE = Patience(rpc_timeout_s=10.0, retry_timeout_s=0.05, wait_timeout_s=20.0, backoff=Backoff(0.001, 0.01))  # gives up at once
PATIENT = replace(PATIENCE, retry_timeout_s=20.0)  # for calls that get through at last, however slow the machine is
BYTES_MAX = 1 << 30

TaskDoers = dict[type, Callable[[str, Any], Any]]  # class of a task -> (the core that orders it, the task) -> its outcome


def carried(value: Any, part_size_bytes: int) -> Any:
    """Return what arrives of a value that travels."""
    reader = Reader(type(value), "the test", BYTES_MAX)
    for data in to_bytes(value, part_size_bytes):
        reader.take(data)
    return reader.value()


@dataclass
class Fault:
    """What befalls the next calls whose body is a `body` and whose address fits: the request (`is_lost`) or its answer never arrives."""

    body: type
    address: str | None = None
    is_lost: bool = False
    count: int = 1
    fired: int = 0

    def hits(self, address: str, body: Any) -> bool:
        if self.fired < self.count and isinstance(body, self.body) and self.address in (None, address):
            self.fired += 1
            return True
        return False


@dataclass
class InProcess:
    """The cluster. `calls` lists every request that was carried, as (address, body); `before` is called ahead of each, without the lock.

    `tasks`: what does a core's task, by its class; the others' programs run at once, on `kept`, whatever root they name. `stored`: what the
    coordinator made durable.
    """

    servers: int = 2
    part_size_bytes: int = 1 << 20
    rows_max: int | None = None
    lease_s: float = 0.0
    patience: Patience = PATIENCE
    down: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    before: Callable[[str, Any], None] = lambda address, body: None
    tasks: TaskDoers = field(default_factory=dict)
    kept: DictStore = field(default_factory=DictStore)
    stored: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._outcomes: dict[int, Any] = {}
        self._requests = 0
        self._restarts = 0
        self._nonces: dict[str, int] = {}  # address -> of its process, where that is not the first one there
        self.coordinator = CoordinatorCore(CoreSettings(self.servers, lease_s=self.lease_s))
        self.shards = {f"server-{index}": Shard(f"server-{index}", self.rows_max) for index in range(self.servers)}
        self._cores: dict[str, Core] = {COORDINATOR: self.coordinator} | {
            f"{name}:0": TimedCore(shard) for name, shard in self.shards.items()
        }
        for name in self.shards:
            self.ask(COORDINATOR, RegisterServer(name, f"{name}:0"), 1.0, "the coordinator", lambda: False)

    def restart(self, name: str) -> None:
        """Start a server again: all that it knew is gone."""
        self._restarts += 1
        self.shards[name] = Shard(name, self.rows_max)
        with self._changed:
            self._cores[f"{name}:0"] = TimedCore(self.shards[name])
        self._nonces[f"{name}:0"] = self._restarts
        again = RegisterServer(name, f"{name}:0", nonce=self._restarts)
        assert self.ask(COORDINATOR, again, 1.0, "the coordinator", lambda: False).must_recover

    def connect(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        mode: Mode | None = None,
        patience: Patience | None = None,
        **options: Any,
    ) -> Client:
        """Connect the public client; `options` are its further ones."""
        return Client(COORDINATOR, Transport(self), patience or self.patience, rank, world_size, mode, **options)

    def ask(self, address: str, body: Any, timeout_s: float, peer: str, is_closed: Callable[[], bool]) -> Any:
        """Carry a request to its core; return what came of it, once there is something."""
        self.before(address, body)
        fault = next((fault for fault in self.faults if fault.hits(address, body)), None)
        if address in self.down or (fault is not None and fault.is_lost):
            return Unreachable(peer, address, 0.0, "connection refused")
        with self._changed:
            self.calls.append((address, body))
            self._requests += 1
            request = self._requests
            self._turn(address, Asked(request, carried(body, self.part_size_bytes)))
            deadline_s = time.monotonic() + timeout_s
            while request not in self._outcomes and time.monotonic() < deadline_s and not is_closed():
                self._wait(deadline_s)
            outcome = self._outcomes.pop(request, None)
            if outcome is None:
                self._turn(address, Dropped(request))
        if is_closed():
            return ClientClosed(f"call {type(body).__name__}")
        if outcome is None or fault is not None:
            return Unreachable(peer, address, timeout_s, "timed out")
        return outcome if isinstance(outcome, ParameterServerError) else carried(outcome, self.part_size_bytes)

    def wake(self) -> None:
        """Let calls that wait look again."""
        with self._changed:
            self._changed.notify_all()

    def _wait(self, deadline_s: float) -> None:
        due = {address: due_s for address, core in self._cores.items() if (due_s := core.deadline_s()) is not None}
        self._changed.wait(max(0.0, min([deadline_s, *due.values()]) - time.monotonic()))
        for address, due_s in due.items():
            if due_s <= time.monotonic():
                self._turn(address, Ticked())

    def _turn(self, address: str, event: Event) -> None:
        for effect in self._cores[address].handle(event, time.monotonic()):
            match effect:
                case Reply(request, outcome) | Refuse(request, outcome):
                    self._outcomes[request] = outcome
                    self._changed.notify_all()
                case Tell():
                    self._turn(address, Answered(effect.order, self._obey(effect)))
                case Work(number, task):
                    self._turn(address, Worked(number, self._work(address, task)))
                case Persist():
                    store(self.stored, effect)

    def _work(self, address: str, task: Any) -> Any:
        """Do a core's task; return what came of it."""
        if type(task) in self.tasks:
            return self.tasks[type(task)](address, task)
        try:
            return run(PROGRAMS[type(task)](task), lambda root: self.kept, lambda body: self._hear(address, body))
        except ParameterServerError as error:
            return error

    def _hear(self, address: str, body: Any) -> Any:
        """Ask a core something of its own process; return the reply or raise the error."""
        self._requests += 1
        request = self._requests
        self._turn(address, Asked(request, body))
        outcome = self._outcomes.pop(request)
        if isinstance(outcome, ParameterServerError):
            raise outcome
        return outcome

    def _obey(self, tell: Tell) -> Any:
        if tell.address in self.down:
            return Unreachable(tell.server, tell.address, 0.0, "connection refused")
        if isinstance(tell.body, AskProcess):
            return ProcessNamed(self._nonces.get(tell.address, 0))
        self._requests += 1
        request = self._requests
        self._turn(tell.address, Asked(request, carried(tell.body, self.part_size_bytes)))
        return self._outcomes.pop(request)


class Transport:
    """One client's way to the cluster."""

    def __init__(self, cluster: InProcess) -> None:
        self._cluster = cluster
        self._is_closed = False

    def call(self, address: str, body: Any, timeout_s: float, peer: str = "The peer") -> Any:
        """Return the reply or raise the error."""
        outcome = (
            ClientClosed(f"call {type(body).__name__}")
            if self._is_closed
            else self._cluster.ask(address, body, timeout_s, peer, lambda: self._is_closed)
        )
        if isinstance(outcome, ParameterServerError):
            raise outcome
        return outcome

    def lend(self, nbytes: int) -> NDArray[np.uint8]:
        """Lend memory as an arena does."""
        return empty_aligned((nbytes,), np.dtype(np.uint8))

    def close(self) -> None:
        """Refuse what comes, and end what waits."""
        self._is_closed = True
        self._cluster.wake()

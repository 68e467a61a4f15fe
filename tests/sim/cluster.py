"""A whole cluster of the real cores in one thread: coordinator, servers and workers over the simulated network, from one seed.

sim = Simulation(seed=7, servers=3, chances=Chances(drop=0.02))
worker = sim.worker("worker-0", script)          # script(worker: Worker) is a generator of the worker's operations
sim.run()                                         # until every script has ended; a hang is an AssertionError that names the seed
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ps_proto.errors import ParameterServerError, Unreachable
from ps_proto.orders import InstallMap
from ps_proto.requests import RegisterServer
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.schedule import Schedule
from ps_server.coordinator.stored import Stored
from ps_server.events import Asked
from ps_server.shard.shard import Shard
from ps_server.storage.program import Program
from ps_server.storage.programs import PROGRAMS
from ps_server.tasks import Registered
from ps_worker.asking import Patience, World
from ps_worker.protocol import Worker
from ps_worker.retry import Backoff
from sharding.shard_map import ShardMap
from sim.disk import SimDisk
from sim.durable import SimStateStore
from sim.network import Chances, Message, Network, VirtualTime, fits
from sim.nodes import CoreNode, Script, WorkerNode

PATIENCE = Patience(rpc_timeout_s=0.5, retry_timeout_s=600.0, wait_timeout_s=600.0, backoff=Backoff(0.02, 0.5))
VIRTUAL_LIMIT_S = 3000.0
REFUSES_SHARE = 0.5  # of the questions to a process that is gone: the others are never answered

CLUSTER = 0xC0FFEE
TaskDoers = dict[type, Callable[[str, Any], Any]]  # class of a task -> (the node that orders it, the task) -> its outcome
Programs = Mapping[type, Callable[[Any], Program[Any]]]  # class of a task -> its program


@dataclass
class Simulation:
    """The cluster; `shard_class` and its like let a test put a planted bug in.

    `tasks`: what does a core's task, by its class, where that is not its program over `disk`. `schedule`: of checkpoints.
    `awaits_registration`: servers are as in a process, which may have run before, and follow no map before the coordinator takes them in.
    """

    seed: int
    servers: int = 3
    chances: Chances = field(default_factory=Chances)
    shard_class: type[Shard] = Shard
    worker_class: type[Worker] = Worker
    patience: Patience = PATIENCE
    tasks: TaskDoers = field(default_factory=dict)
    programs: Programs = field(default_factory=lambda: PROGRAMS)
    schedule: Schedule = field(default_factory=Schedule)
    lease_s: float = 0.0
    awaits_registration: bool = False

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.time = VirtualTime()
        self.network = Network(self.time, self.rng, self._deliver, self.chances)
        self.nodes: dict[str, Any] = {}
        self.waited: list[ParameterServerError] = []
        self.moves_count = 0
        self.disk = SimDisk(random.Random(self.seed))
        self.offsets_s: dict[str, float] = {}  # node -> how far its clock is ahead
        self.on_death: Callable[[CoreNode], None] = lambda node: None  # called where a core's node has died
        self._next_call = 0
        self._watched: list[tuple[Callable[[Message], bool], Callable[[], None]]] = []
        self.store = SimStateStore()
        self.shards: dict[str, Shard] = {}
        self.start_coordinator()
        for index in range(self.servers):
            self.start_server(f"server-{index}")

    # --- who is there ----------------------------------------------------------------------------------------------------------

    def start_coordinator(self) -> CoreNode:
        """Let a coordinator begin with what is stored."""
        core = CoordinatorCore(CoreSettings(self.servers, CLUSTER, self.schedule, self.lease_s), Stored.of(self.store.load()))
        node = self.nodes["coordinator"] = CoreNode(self, "coordinator", core, store=self.store)
        self.time.at(self.time.now_s, node.look_at_clock)
        return node

    def start_server(self, name: str, address: str = "", nonce: int = 1) -> CoreNode:
        """Let a server begin with nothing, and register. `address`: where it listens, by default its name; `nonce`: of its process."""
        shard = self.shard_class(name, awaits_registration=True) if self.awaits_registration else self.shard_class(name)
        self.shards[name] = shard
        node = self.nodes[name] = CoreNode(self, name, shard, address, nonce=nonce)
        self.worker(f"{name}'s edge", partial(_register, node, nonce))
        return node

    @property
    def coordinator(self) -> CoordinatorCore:
        """The core of the coordinator that lives, or lived last."""
        core: CoordinatorCore = self.nodes["coordinator"].core
        return core

    def make_worker(self, name: str) -> Worker:
        """Return the protocol's worker of a node."""
        world = World(now_s=lambda: self.now_s(name), uniform=self.rng.random, on_wait=self.waited.append)
        return self.worker_class("coordinator", world, self.patience, list_ids_min=1)

    def worker(self, name: str, script: Callable[[Worker], Script], start_s: float = 0.0) -> WorkerNode:
        """Start a worker that runs `script`."""
        node = WorkerNode(self, name, script, self.make_worker(name))
        self.nodes[name] = node
        self.time.at(self.time.now_s + start_s, node.resume)
        return node

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Let time pass until every script has ended, or until `until` holds; nothing may hang."""
        scripts = [node for node in self.nodes.values() if isinstance(node, WorkerNode)]
        while not (until() if until is not None else all([node.is_done for node in scripts])):
            is_alive = self.time.now_s < VIRTUAL_LIMIT_S and self.time.advance()
            assert is_alive, f"seed {self.seed}: hangs at {self.time.now_s:.1f} virtual seconds"

    def check(self) -> None:
        """Ask every shard for its invariants."""
        for shard in self.shards.values():
            shard.check_invariants()

    def row(self, table: str, id: int) -> list[float]:
        """Return a row as its owner holds it."""
        key = np.array([id], np.uint64)
        shard_map = self.coordinator.shard_map
        assert shard_map is not None
        holders = [shard for shard in self.shards.values() if table in shard.tables and shard.tables[table].count_absent(key) == 0]
        assert len(holders) <= 1, f"{[shard.server for shard in holders]} all hold row {id}"
        holder = holders[0] if holders else next(iter(self.shards.values()))
        return [float(value) for value in holder.tables[table].pull(key)[0]]

    def move_buckets(self, source: str, target: str, share: float) -> ShardMap:
        """Move a random share of source's buckets to target in one instant; the coordinator and both know, others learn of it in time."""
        old = self.coordinator.shard_map
        assert old is not None
        owners = old.owners.copy()
        mine = np.flatnonzero(owners == old.index_of(source))
        leaving = np.zeros(owners.size, np.bool_)
        leaving[mine[np.array([self.rng.random() < share for _ in mine], np.bool_)]] = True
        owners[leaving] = old.index_of(target)
        new = ShardMap(old.version + 1, old.servers, owners)
        self.shards[target].adopt(self.shards[source].release(leaving))
        for name in (source, target):
            self.shards[name].handle(Asked(0, InstallMap(new)), self.time.now_s)
        self.coordinator.members.shard_map = new
        return new

    def disturb(self, until_s: float, with_moves: bool = False) -> None:
        """Cut, isolate and heal at random times until `until_s`; with moves, buckets change owners too."""
        when_s = 0.0
        while (when_s := when_s + self.rng.expovariate(0.5)) < until_s:
            self.time.at(when_s, self._disturb_once, with_moves)
        self.time.at(until_s, self.network.heal)

    def _disturb_once(self, with_moves: bool) -> None:
        names = list(self.shards)
        match self.rng.choice(("cut", "isolate", "heal", "move") if with_moves else ("cut", "isolate", "heal")):
            case "cut":
                self.network.cut(self.rng.choice(names), self.rng.choice([node for node in self.nodes if node not in names]))
            case "isolate":
                self.network.isolate(self.rng.choice(names))
            case "heal":
                self.network.heal()
            case "move" if len(names) > 1 and self.coordinator.shard_map is not None:
                self.move_buckets(*self.rng.sample(names, 2), share=self.rng.random())
                self.moves_count += 1

    # --- calls -----------------------------------------------------------------------------------------------------------------

    def next_call(self) -> int:
        self._next_call += 1
        return self._next_call

    def now_s(self, name: str) -> float:
        """Return what a node takes for the time."""
        return self.time.now_s + self.offsets_s.get(name, 0.0)

    def when(self, action: Callable[[], None], source: str | None = None, target: str | None = None, body: type | None = None) -> None:
        """Do something once, just before the next message from source to target arrives whose body is a `body`; None fits any."""
        self._watched.append((lambda message: fits(message, source, target, body), action))

    def _deliver(self, message: Message) -> None:
        for watch in [watch for watch in self._watched if watch[0](message)]:
            self._watched.remove(watch)
            watch[1]()
        node = self.nodes[message.target]
        if not node.is_dead and message.address in ("", node.address):
            node.receive(message)
        elif message.kind == "ask" and self.rng.random() < REFUSES_SHARE:
            refused = Unreachable(message.target, message.address, 0.0, "connection refused")
            self.network.send(message.answered(refused))


def _register(node: CoreNode, nonce: int, worker: Worker) -> Script:
    """What a server's edge does at its start."""
    taken_in = yield from worker._peers.ask_coordinator(RegisterServer(node.name, node.address, nonce=nonce))
    node.ask(Registered(taken_in.incarnation, taken_in.must_recover, taken_in.cluster), lambda done: None)

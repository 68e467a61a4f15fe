"""A whole cluster of the real cores in one thread: coordinator, servers and workers over the simulated network, from one seed.

sim = Simulation(seed=7, servers=3, chances=Chances(drop=0.02))
worker = sim.worker("worker-0", script)          # script(worker: Worker) is a generator of the worker's operations
sim.run()                                         # until every script has ended; a hang is an AssertionError that names the seed
"""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ps_proto.errors import ParameterServerError, Unreachable
from ps_proto.requests import InstallMap, RegisterServer
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.events import Answered, Asked, Core, Event, Persist, Refuse, Reply, Tell, Ticked, Work, Worked
from ps_server.shard.shard import Shard
from ps_worker.asking import Call, Exchange, Patience, Pause, World
from ps_worker.protocol import COORDINATOR, Worker
from ps_worker.retry import Backoff
from sharding.shard_map import ShardMap
from sim.network import Chances, Message, Network, VirtualTime
from stored import store

ORDER_TIMEOUT_S = 1.0
PATIENCE = Patience(rpc_timeout_s=0.5, retry_timeout_s=600.0, wait_timeout_s=600.0, backoff=Backoff(0.02, 0.5))
TASK_S_MAX = 2.0  # disks are slow at times
VIRTUAL_LIMIT_S = 3000.0

Script = Generator[Any, Any, Any]
TaskDoers = dict[type, Callable[[str, Any], Any]]  # class of a task -> (the node that orders it, the task) -> its outcome


class CoreNode:
    """A server-side core on the network. `stored`: what it made durable."""

    def __init__(self, sim: "Simulation", name: str, core: Core) -> None:
        self.sim, self.name, self.core = sim, name, core
        self.stored: dict[str, bytes] = {}
        self._asked: dict[int, Message] = {}
        self._tick_s = float("inf")

    def receive(self, message: Message) -> None:
        """Take a question, or the answer to an order."""
        if message.kind == "ask":
            request = len(self._asked) + 1
            self._asked[request] = message
            self._turn(Asked(request, message.body))
        elif self.sim.settle(self.name, message.call):
            self._turn(Answered(message.call, message.body))

    def _turn(self, event: Event) -> None:
        now_s = self.sim.time.now_s
        for effect in self.core.handle(event, now_s):
            match effect:
                case Reply(request, body) | Refuse(request, body):
                    question = self._asked[request]
                    self.sim.network.send(Message(self.name, question.source, "answer", question.call, body))
                case Tell(order, server, _, body):
                    self.sim.expect(self.name, order)
                    self.sim.network.send(Message(self.name, server, "ask", order, body))
                    self.sim.time.at(now_s + ORDER_TIMEOUT_S, self._give_up, order, server)
                case Work():
                    self.sim.time.at(now_s + self.sim.rng.uniform(0.0, TASK_S_MAX), self._do, effect)
                case Persist():
                    store(self.stored, effect)
        due_s = self.core.deadline_s()
        if due_s is not None and due_s < self._tick_s:
            self._tick_s = due_s
            self.sim.time.at(due_s, self._tick, due_s)

    def _tick(self, due_s: float) -> None:
        if due_s == self._tick_s:
            self._tick_s = float("inf")
            self._turn(Ticked())

    def _do(self, work: Work) -> None:
        """Do a task, in the instant in which it ends."""
        self._turn(Worked(work.number, self.sim.tasks[type(work.task)](self.name, work.task)))

    def _give_up(self, order: int, server: str) -> None:
        if self.sim.settle(self.name, order):
            self._turn(Answered(order, Unreachable(server, server, ORDER_TIMEOUT_S, "timed out")))


class WorkerNode:
    """A worker's script on the network."""

    def __init__(self, sim: "Simulation", name: str, script: Callable[[Worker], Script], worker: Worker) -> None:
        self.sim, self.name, self.worker = sim, name, worker
        self.error: ParameterServerError | None = None
        self.result: Any = None
        self.is_done = False
        self._script = script(worker)
        self._outcomes: list[Any] = []
        self._missing = 0
        self._places: dict[int, int] = {}

    def resume(self, outcome: Any = None) -> None:
        """Go on with the script until its next effect."""
        try:
            effect = self._script.send(outcome)
        except StopIteration as stop:
            self.is_done, self.result = True, stop.value
        except ParameterServerError as error:
            self.is_done, self.error = True, error
        else:
            if isinstance(effect, Pause):
                self.sim.time.at(self.sim.time.now_s + effect.seconds, self.resume)
            else:
                assert isinstance(effect, Exchange)
                self._outcomes, self._missing = [None] * len(effect.calls), len(effect.calls)
                for place, call in enumerate(effect.calls):
                    self._make(place, call)

    def _make(self, place: int, call: Call) -> None:
        number = self.sim.next_call()
        self._places[number] = place
        self.sim.network.send(Message(self.name, "coordinator" if call.peer == COORDINATOR else call.peer, "ask", number, call.body))
        self.sim.time.at(self.sim.time.now_s + call.timeout_s, self._give_up, number, call)

    def receive(self, message: Message) -> None:
        """Take an answer; one that comes a second time, or after its call was given up, is nothing."""
        self._settle(message.call, message.body)

    def _give_up(self, number: int, call: Call) -> None:
        if number in self._places:
            self._settle(number, Unreachable(call.peer, call.address, call.timeout_s, "timed out"))

    def _settle(self, number: int, outcome: Any) -> None:
        place = self._places.pop(number, None)
        if place is None:
            return
        self._outcomes[place] = outcome
        self._missing -= 1
        if self._missing == 0:
            self.resume(self._outcomes)


@dataclass
class Simulation:
    """The cluster; `shard_class` lets a test put a planted bug in. `tasks`: what does a core's task, by its class."""

    seed: int
    servers: int = 3
    chances: Chances = field(default_factory=Chances)
    shard_class: type[Shard] = Shard
    worker_class: type[Worker] = Worker
    patience: Patience = PATIENCE
    tasks: TaskDoers = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.time = VirtualTime()
        self.network = Network(self.time, self.rng, self._deliver, self.chances)
        self.nodes: dict[str, Any] = {}
        self.waited: list[ParameterServerError] = []
        self.moves_count = 0
        self._next_call = 0
        self._expected: set[tuple[str, int]] = set()  # a core, and the number of an order of its own
        self.coordinator = CoordinatorCore(CoreSettings(self.servers))
        self.nodes["coordinator"] = CoreNode(self, "coordinator", self.coordinator)
        self.shards = {f"server-{index}": self.shard_class(f"server-{index}") for index in range(self.servers)}
        for name, shard in self.shards.items():
            self.nodes[name] = CoreNode(self, name, shard)
            self.nodes[f"{name}'s edge"] = WorkerNode(self, f"{name}'s edge", partial(_register, name), self._worker())
            self.time.at(0.0, self.nodes[f"{name}'s edge"].resume)

    def _worker(self) -> Worker:
        world = World(now_s=lambda: self.time.now_s, uniform=self.rng.random, on_wait=self.waited.append)
        return self.worker_class("coordinator", world, self.patience, list_ids_min=1)

    def worker(self, name: str, script: Callable[[Worker], Script], start_s: float = 0.0) -> WorkerNode:
        """Start a worker that runs `script`."""
        node = WorkerNode(self, name, script, self._worker())
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

    def expect(self, node: str, order: int) -> None:
        """Note that a core waits for the answer to its order."""
        self._expected.add((node, order))

    def settle(self, node: str, order: int) -> bool:
        """Return whether the order was still open, and close it."""
        is_open = (node, order) in self._expected
        self._expected.discard((node, order))
        return is_open

    def _deliver(self, message: Message) -> None:
        self.nodes[message.target].receive(message)


def _register(name: str, worker: Worker) -> Script:
    """What a server's edge does at its start."""
    yield from worker._peers.ask_coordinator(RegisterServer(name, name, nonce=1))

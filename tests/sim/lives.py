"""Who dies in a simulation, and the launcher that starts it again.

lives = Lives(sim)
lives.add("worker-0", lambda nonce: script)      # a new script for each life; `nonce` names it
lives.disturb(until_s=60.0)                      # kills of every kind, at random
lives.run()                                      # until every worker has ended well and everybody is there

A kill comes at an instant, in the middle of a turn, before or after a commit, or between two calls of the disk. The launcher starts what
died after a pause, and a worker that ended with an error, too. It starts one again that had ended well where the cluster has gone back
since and its rank is in the job once more: what it did is gone.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ps_proto.errors import JobMismatch, ParameterServerError, RolledBack, StaleIncarnation
from ps_worker.asking import Pause
from ps_worker.protocol import Worker
from sim.cluster import Simulation
from sim.nodes import CoreNode, Script, WorkerNode

LOOK_S = 1.0  # how often the launcher asks for the timeline
NONCE = 1 << 32  # those of the launcher's workers and servers begin here
EFFECTS_MAX, CALLS_MAX = 8, 20  # how far ahead a kill in the middle of something lies
RENEWALS = 3  # of a lease, within its time


@dataclass
class _Rank:
    """A worker that the launcher keeps alive. `timeline`: the cluster's when this life began, or was last seen to need no other."""

    name: str
    make_script: Callable[[int], Callable[[Worker], Script]]
    node: WorkerNode
    timeline: int = 0
    is_over: bool = False


@dataclass
class Lives:
    """`deaths`: how many of each kind; `pause_s`: until something is started again; `errors`: that ended workers, in their order."""

    sim: Simulation
    pause_s: tuple[float, float] = (0.1, 4.0)
    deaths: Counter[str] = field(default_factory=Counter)
    errors: list[ParameterServerError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ranks: dict[str, _Rank] = {}
        self._nonces = NONCE
        self._has_ended = False
        self.sim.on_death = self._on_death
        self.sim.time.at(LOOK_S, self._look_at_timeline)
        for name in self.sim.shards:
            self._watch_edge(name)

    def add(self, name: str, make_script: Callable[[int], Callable[[Worker], Script]]) -> None:
        """Keep a worker alive until its script has ended well."""
        node = self.sim.worker(name, make_script(self._nonce()))
        self._ranks[name] = rank = _Rank(name, make_script, node, self.timeline)
        self._watch(rank)

    def worker(self, name: str) -> WorkerNode:
        """Return the node of a worker's life now."""
        return self._ranks[name].node

    @property
    def timeline(self) -> int:
        """The newest that any server is in."""
        return max([shard.membership.timeline for shard in self.sim.shards.values()])

    def run(self) -> None:
        """Let time pass until every worker has ended well, and every process is there and serves; who was to die later does not."""
        self.sim.run(until=self.is_over)
        self._has_ended = True
        self._calm_down()

    def is_over(self) -> bool:
        """Return whether nothing is left to come."""
        timeline = self.timeline
        if self._is_dead("coordinator") or not all([rank.is_over and rank.timeline == timeline for rank in self._ranks.values()]):
            return False
        return all([shard.membership.timeline == timeline and self._serves(name) for name, shard in self.sim.shards.items()])

    def are_others_at_work(self, name: str) -> bool:
        """Return whether any other worker has yet to end well."""
        return not all([rank.is_over for rank in self._ranks.values() if rank.name != name])

    def _serves(self, name: str) -> bool:
        try:
            self.sim.shards[name].membership.check_ready()
        except ParameterServerError:
            return False
        return not self._is_dead(name)

    def _is_dead(self, name: str) -> bool:
        is_dead: bool = self.sim.nodes[name].is_dead
        return is_dead

    # --- deaths ----------------------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Kill a process now."""
        node = self.sim.nodes[name]
        if self._has_ended or node.is_dead or (name in self._ranks and node.is_done):
            return
        if isinstance(node, CoreNode):
            node.die()
            return
        self.deaths["worker"] += 1
        node.die()
        self._later(self._start_worker, self._ranks[name])

    def kill_within(self, name: str) -> None:
        """Kill a core in the middle of something that it does next."""
        node, rng = self.sim.nodes[name], self.sim.rng
        if self._has_ended or node.is_dead:
            return
        match rng.choice(("effects", "disk", "commit")):
            case "effects":
                node.dies_after = node.effects_count + rng.randint(0, EFFECTS_MAX)
            case "disk":
                node.mount.dies_before = len(node.mount.calls) + rng.randint(0, CALLS_MAX)
            case "commit" if rng.random() < 0.5:
                node.store.dies_before = node.store.commits_count
            case "commit":
                node.store.dies_after = node.store.commits_count

    def disturb(self, until_s: float, every_s: float = 8.0, kinds: tuple[str, ...] = ("worker", "server", "coordinator")) -> None:
        """Kill somebody of a random kind at random times until `until_s`."""
        when_s = 0.0
        while (when_s := when_s + self.sim.rng.expovariate(1 / every_s)) < until_s:
            self.sim.time.at(when_s, self._kill_one, self.sim.rng.choice(kinds))
        self.sim.time.at(until_s, self._calm_down)

    def _kill_one(self, kind: str) -> None:
        rng = self.sim.rng
        names = {"worker": list(self._ranks), "server": list(self.sim.shards), "coordinator": ["coordinator"]}[kind]
        name = rng.choice(names)
        if kind != "worker" and rng.random() < 0.5:
            self.kill_within(name)
        else:
            self.kill(name)

    def _calm_down(self) -> None:
        """Let nobody die any more who was to die in the middle of something."""
        for node in self.sim.nodes.values():
            if isinstance(node, CoreNode):
                node.dies_after = node.mount.dies_before = node.store.dies_before = node.store.dies_after = None

    def jump(self, name: str, by_s: float) -> None:
        """Let a node's clock jump."""
        self.sim.offsets_s[name] = self.sim.offsets_s.get(name, 0.0) + by_s
        node = self.sim.nodes[name]
        if isinstance(node, CoreNode):
            node.look_at_clock()

    # --- the launcher ----------------------------------------------------------------------------------------------------------

    def _later(self, action: Callable[..., None], *arguments: object) -> None:
        self.sim.time.at(self.sim.time.now_s + self.sim.rng.uniform(*self.pause_s), action, *arguments)

    def _nonce(self) -> int:
        self._nonces += 1
        return self._nonces

    def _on_death(self, node: CoreNode) -> None:
        if node.name == "coordinator":
            self.deaths["coordinator"] += 1
            self._later(self._start_coordinator)
        elif node.name in self.sim.shards:
            self.deaths["server"] += 1
            self.sim.nodes[f"{node.name}'s edge"].die()
            self._later(self._start_server, node.name)

    def _start_coordinator(self) -> None:
        self.sim.start_coordinator()

    def _start_server(self, name: str) -> None:
        """Start a server again, at its old port or another one."""
        nonce = self._nonce()
        self.sim.start_server(name, name if self.sim.rng.random() < 0.5 else f"{name} #{nonce}", nonce)
        self._watch_edge(name)

    def _watch_edge(self, name: str) -> None:
        """A server that is not taken in ends, and is started again."""
        edge = self.sim.nodes[f"{name}'s edge"]
        edge.on_end = lambda: self.sim.nodes[name].die() if edge.error is not None else None

    def _start_worker(self, rank: _Rank) -> None:
        """Start it again, unless it died after it had left: where it was the last one, all that it did would begin another job."""
        if self._is_dead("coordinator"):
            self._later(self._start_worker, rank)
            return
        if self._is_out(rank):
            rank.is_over, rank.timeline = True, self.timeline
            return
        rank.is_over, rank.timeline = False, self.timeline
        rank.node = self.sim.worker(rank.name, rank.make_script(self._nonce()))
        self._watch(rank)

    def _is_out(self, rank: _Rank) -> bool:
        job = self.sim.coordinator.job
        return job is not None and rank.node.worker.rank in job.left - job.removed

    def _watch(self, rank: _Rank) -> None:
        node = rank.node
        node.on_end = lambda: self._on_end(rank, node)
        heart = self.sim.worker(f"{rank.name}'s heart", lambda worker: beat(node))
        heart.on_end = lambda: None

    def _on_end(self, rank: _Rank, node: WorkerNode) -> None:
        error = node.error
        if error is None or (isinstance(error, JobMismatch) and error.field == "roster"):  # it was killed after it had left
            rank.is_over = True
        else:
            self.errors.append(error)
            self._later(self._start_worker, rank)

    def _look_at_timeline(self) -> None:
        timeline = self.timeline
        for rank in self._ranks.values():
            if rank.is_over and rank.timeline < timeline:
                self._start_worker(rank)
        self.sim.time.at(self.sim.time.now_s + LOOK_S, self._look_at_timeline)


def beat(node: WorkerNode) -> Script:
    """Renew a worker's lease beside what it does, as LeaseKeeper's thread does."""
    while not (node.is_done or node.is_dead):
        lease_s = node.worker.lease_s
        yield Pause(lease_s / RENEWALS or 1.0)
        if lease_s and not (node.is_done or node.is_dead):
            try:
                yield from node.worker.renew()
            except (RolledBack, StaleIncarnation):
                return
            except ParameterServerError:
                continue  # training needs no lease

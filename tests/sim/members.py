"""Workers that leave a running job and join it on purpose, while others die, and what each step was made of then (R6, R8, R9)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from jobs import TABLES, checksum, counting_table, gradients_of, halves, ids_of
from naive.training import train_by
from ps_proto.errors import InvalidRequest, JobMismatch
from ps_proto.orders import RollBack
from ps_proto.requests import OBSERVER, Decision
from ps_proto.values import Mode, Sync
from ps_server.coordinator.schedule import Schedule
from ps_server.events import Asked, Effect, Event
from ps_worker.asking import Pause
from ps_worker.protocol import Worker
from sim import backup
from sim.cluster import Simulation
from sim.found_checkpoints import ROOT
from sim.lives import Lives
from sim.network import Chances
from sim.nodes import Script

STEPS = 16
ROUGH = Chances(drop=0.01, double=0.02, delay=0.03)
OWN_IDS = 30


class NotingShard(backup.NotingShard):
    """Notes of what each step was folded, on all servers of a run, which must agree."""

    folded: dict[tuple[int, int], Decision]  # (timeline, step) -> of what
    finished: dict[int, dict[int, int]]  # timeline -> the last step of each rank that is in the rows with which it begins

    def __init__(self, server: str, rows_max: int | None = None, awaits_registration: bool = False) -> None:
        super().__init__(server, rows_max, awaits_registration)
        look = self.steps.on_fold

        def note() -> None:
            if self.catalog.has_synchronous:
                self._note(self.decider.folded[-1], self.decider.rosters[-1])
            look()

        self.steps.on_fold = note

    def _note(self, decision: Decision, roster: int) -> None:
        """`roster`: how many ranks this server counts."""
        timeline = self.membership.timeline
        known = self.folded.setdefault((timeline, decision.step), decision)
        assert known == decision, f"{self.server} folds {decision} in timeline {timeline}, and another server {known}"
        if self.decider.decides:
            enough = max(1, roster - self.decider.backup_workers)
            assert decision.ranks_count == enough, f"{decision} is over {decision.ranks_count} of {roster} ranks"

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if isinstance(event, Asked) and isinstance(event.body, RollBack):
            order = event.body
            self.finished[order.timeline] = {state.rank: state.finished for state in order.job.ranks} if order.job is not None else {}
        return super().handle(event, now_s)


def noting(shard_class: type[NotingShard] = NotingShard) -> type[NotingShard]:
    """Return the class for one run."""
    return type("Noting", (shard_class,), {"folded": {}, "finished": {}})


@dataclass
class Member(ABC):
    """A worker that says which of the first `world_size` ranks it has, or joins by name.

    It leaves after step `last`.
    """

    mode: Mode
    rank: int = OBSERVER
    name: str = ""
    world_size: int = 2
    last: int = STEPS - 1
    pause_s: float = 1.0
    on_lost_worker: str = "wait"
    is_needed: Callable[[], bool] = lambda: False  # whether it goes on beyond its last step, since others have yet to come to theirs
    has_joined: bool = False  # in an earlier life
    pushed: set[tuple[int, int, int]] = field(default_factory=set)  # rank, step and timeline of pushes that were acknowledged
    batches: dict[tuple[int, int, int], int] = field(default_factory=dict)  # rank, step and timeline -> which batch it had then

    def script(self, nonce: int) -> Callable[[Worker], Script]:
        def script(worker: Worker) -> Script:
            try:
                world_size, on_lost = (0, "") if self.name else (self.world_size, self.on_lost_worker)
                mode = None if self.has_joined else self.mode  # so that it begins no other job
                yield from worker.join(self.rank, world_size, mode, nonce, True, on_lost, self.name)
            except (InvalidRequest, JobMismatch):
                if not self.name and not self.has_joined:
                    raise
                return  # the job was over before it could be admitted, or it had left when it was killed
            self.has_joined = True
            yield from self._work(worker)
            yield from worker.leave()

        return script

    @abstractmethod
    def _work(self, worker: Worker) -> Script:
        """Train, and return once it is to leave."""


class Trainer(Member):
    def _work(self, worker: Worker) -> Script:
        for spec in TABLES:
            yield from worker.create_table(spec)
        while worker.clock <= self.last or self.is_needed():
            step = worker.clock
            ids = {spec.name: ids_of(worker.rank, step, spec.name) for spec in TABLES}
            rows = yield from worker.pull(list(ids.items()))
            self.batches[worker.rank, worker.clock, worker.fence().timeline] = step  # where others are ahead, a later step's
            gradients = {name: gradients_of(worker.rank, step, ids[name], read) for name, read in zip(ids, rows, strict=True)}
            yield Pause(self.pause_s)
            for half in (0, 1):
                parts = {name: halves(its.size)[half] for name, its in ids.items()}
                yield from worker.push([(name, ids[name][part], gradients[name][part]) for name, part in parts.items()])
            yield from worker.end_step()


class Counter(Member):
    def _work(self, worker: Worker) -> Script:
        yield from worker.create_table(counting_table("a"))
        ids = np.arange(OWN_IDS, dtype=np.uint64) + np.uint64(worker.rank * OWN_IDS)
        while worker.clock <= self.last or self.is_needed():
            yield from worker.pull([("a", ids)])
            yield Pause(self.pause_s)
            yield from worker.push([("a", ids[: worker.clock + 1], np.ones((worker.clock + 1, 2), np.float32))])
            self.pushed.add((worker.rank, worker.clock, worker.fence().timeline))
            yield from worker.end_step()


@dataclass
class Run:
    """What became of a job whose workers come and go."""

    lives: Lives
    members: list[Member]
    shards: type[NotingShard]

    @property
    def sim(self) -> Simulation:
        return self.lives.sim

    def steps(self) -> list[Decision]:
        """Return of what the steps were folded that are in the rows: where all went back, those of the last time."""
        last = max([shard.step for shard in self.sim.shards.values()])
        return [self.shards.folded[max([key for key in self.shards.folded if key[1] == step])] for step in range(last)]

    def batches(self, decision: Decision) -> dict[int, int]:
        """Return which batch each of a step's ranks had in it, when it was folded last."""
        timeline = max([timeline for timeline, step in self.shards.folded if step == decision.step])
        known = {key: batch for member in self.members for key, batch in member.batches.items()}
        return {rank: known[rank, decision.step, timeline] for rank in decision.ranks}

    def checksum(self) -> str:
        """Return that of the rows which the slow twin has from the same steps."""
        return checksum(train_by([(self.batches(decision), decision.ranks_count) for decision in self.steps()]))


def run(seed: int, mode: Mode, member: type[Member], kinds: tuple[str, ...], shard_class: type[NotingShard] = NotingShard) -> Run:
    """Begin with two ranks, and one more for each backup worker; somebody joins, rank 1 leaves, and somebody joins in its place.

    Where servers die, one does soon after each has asked to join: all go back to before that, or behind it. With backup workers ranks are
    of different speed, and in half of the runs those that are lost are removed.
    """
    shards = noting(shard_class)
    schedule = Schedule(ROOT, every_s=4.0, keep=3, full_every=3)
    sim = Simulation(seed, 1 + seed % 3, ROUGH, shards, schedule=schedule, lease_s=2.0, awaits_registration=True)
    lives = Lives(sim)
    backup_workers = mode.backup_workers if isinstance(mode, Sync) else 0
    world_size = 2 + backup_workers
    on_lost = "continue" if backup_workers and seed % 4 < 2 else "wait"
    members = [member(mode, rank, "", world_size, 7 if rank == 1 else STEPS - 1, 1.0, on_lost) for rank in range(world_size)]
    joining = [member(mode, name=name) for name in ("joins", "replaces")]
    for one in [*members, *joining] if backup_workers else []:
        one.pause_s = sim.rng.choice((0.7, 1.5, 3.0))
    if on_lost == "continue":  # one that is removed and comes back finds its job
        members[0].is_needed = lambda: lives.are_others_at_work("worker-0")
    for number, one in enumerate(members):
        lives.add(f"worker-{number}", one.script)
    if kinds:
        lives.disturb(until_s=25.0, every_s=6.0, kinds=kinds)
    sim.run(until=lambda: max(shard.clocks.clock_max for shard in sim.shards.values()) >= 2)
    for one in joining:
        lives.add(one.name, one.script)
        if "server" in kinds:
            sim.time.at(sim.time.now_s + sim.rng.uniform(0.0, 6.0), lives.kill, "server-0")
        sim.run(until=lambda: lives.worker("worker-1").is_done or lives.is_over())
    lives.run()
    last = max(shard.step for shard in sim.shards.values())
    sim.run(until=lambda: all(shard.step == last for shard in sim.shards.values()))
    sim.check()
    return Run(lives, [*members, *joining], shards)

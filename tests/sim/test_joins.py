"""Workers that leave a running job and join it on purpose, while others die: each step is made of exactly its roster (R6, R8)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from jobs import TABLES, checksum, counting_table, gradients_of, halves, ids_of
from naive.training import train_by
from ps_proto.errors import InvalidRequest, JobMismatch, RolledBack
from ps_proto.orders import RankFenced, RollBack
from ps_proto.requests import NEVER, OBSERVER, Done
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from ps_server.coordinator.schedule import Schedule
from ps_server.events import Asked, Effect, Event
from ps_server.shard.shard import Shard
from ps_worker.asking import Pause
from ps_worker.protocol import Worker
from sim.cluster import Simulation
from sim.found_checkpoints import ROOT, FoundCheckpoints, held
from sim.lives import Lives
from sim.network import Chances
from sim.nodes import Script
from sim.scripts import trained

STEPS = 16
NO_FAULTS = Chances()
ROUGH = Chances(drop=0.01, double=0.02, delay=0.03)
OWN_IDS = 30


class NotingShard(Shard):
    """Notes of whom each step was folded; a step that is folded again, after a rollback, anew."""

    rosters: dict[int, tuple[int, ...]]  # of all servers of a run: they must agree
    noted: dict[tuple[int, int], tuple[int, ...]]
    finished: dict[int, dict[int, int]]  # timeline -> the last step of each rank that is in the rows with which it begins

    def __init__(self, server: str, rows_max: int | None = None, awaits_registration: bool = False) -> None:
        super().__init__(server, rows_max, awaits_registration=awaits_registration)
        look = self.steps.on_fold
        self._timelines: dict[int, int] = {}

        def note() -> None:
            step = self.step - 1
            roster = tuple(self.clocks.roster(step))
            if self.catalog.has_synchronous:
                assert self.noted.setdefault((self.membership.timeline, step), roster) == roster, f"{server} folds step {step} of {roster}"
                self.rosters[step] = roster
            look()

        self.steps.on_fold = note

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if isinstance(event, Asked) and isinstance(event.body, RollBack):
            order = event.body
            self.finished[order.timeline] = {state.rank: state.finished for state in order.job.ranks} if order.job is not None else {}
        return super().handle(event, now_s)


def noting() -> type[NotingShard]:
    """Return the class for one run."""
    return type("NotingShard", (NotingShard,), {"rosters": {}, "noted": {}, "finished": {}})


@dataclass
class Member(ABC):
    """A worker that says which of the first two ranks it has, or joins by name.

    It leaves after step `last`, and the job ends with step `STEPS`.
    """

    mode: Mode
    rank: int = OBSERVER
    name: str = ""
    last: int = STEPS - 1
    pause_s: float = 1.0
    pushed: set[tuple[int, int, int]] = field(default_factory=set)  # rank, step and timeline of pushes that were acknowledged

    def script(self, nonce: int) -> Callable[[Worker], Script]:
        def script(worker: Worker) -> Script:
            try:
                yield from worker.join(self.rank, 0 if self.name else 2, self.mode, nonce, resume=True, name=self.name)
            except (InvalidRequest, JobMismatch):
                if not self.name:
                    raise
                return  # the job was over before it could be admitted, or it had left when it was killed
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
        while worker.clock <= self.last:
            step = worker.clock
            ids = {spec.name: ids_of(worker.rank, step, spec.name) for spec in TABLES}
            rows = yield from worker.pull(list(ids.items()))
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
        while worker.clock <= self.last:
            yield from worker.pull([("a", ids)])
            yield Pause(self.pause_s)
            yield from worker.push([("a", ids[: worker.clock + 1], np.ones((worker.clock + 1, 2), np.float32))])
            self.pushed.add((worker.rank, worker.clock, worker.fence().timeline))
            yield from worker.end_step()


def run(seed: int, mode: Mode, member: type[Member], kinds: tuple[str, ...]) -> tuple[Lives, list[Member], type[NotingShard]]:
    """Begin with two ranks; a third one joins, rank 1 leaves, and somebody joins in its place.

    Where servers die, one does soon after each has asked to join: all go back to before that, or behind it.
    """
    shards = noting()
    schedule = Schedule(ROOT, every_s=4.0, keep=3, full_every=3)
    sim = Simulation(seed, 1 + seed % 3, ROUGH, shards, schedule=schedule, lease_s=2.0, awaits_registration=True)
    lives = Lives(sim)
    members = [member(mode, 0), member(mode, 1, last=7), member(mode, name="joins"), member(mode, name="replaces")]
    for number, one in enumerate(members[:2]):
        lives.add(f"worker-{number}", one.script)
    if kinds:
        lives.disturb(until_s=25.0, every_s=6.0, kinds=kinds)
    sim.run(until=lambda: max(shard.clocks.clock_max for shard in sim.shards.values()) >= 2)
    for name, joining in (("joins", members[2]), ("replaces", members[3])):
        lives.add(name, joining.script)
        if "server" in kinds:
            sim.time.at(sim.time.now_s + sim.rng.uniform(0.0, 6.0), lives.kill, "server-0")
        sim.run(until=lambda: lives.worker("worker-1").is_done or lives.is_over())
    lives.run()
    sim.check()
    return lives, members, shards


def check_bits(seed: int, kinds: tuple[str, ...]) -> Lives:
    lives, _, shards = run(seed, Sync(), Trainer, kinds)
    steps: list[Any] = [(dict.fromkeys(shards.rosters[step], step), len(shards.rosters[step])) for step in range(STEPS)]
    assert len({len(roster) for roster in shards.rosters.values()}) > 1
    assert held(trained(lives.sim)) == checksum(train_by(steps)), f"seed {seed}"
    return lives


def counts(shards: type[NotingShard], rank: int, step: int, timeline: int) -> bool:
    """Return whether no rollback has withdrawn a push."""
    return all([step <= finished.get(rank, NEVER) for later, finished in shards.finished.items() if later > timeline])


def check_counts(seed: int, mode: Mode, kinds: tuple[str, ...]) -> Lives:
    lives, members, shards = run(seed, mode, Counter, kinds)
    pushed = [push for member in members for push in member.pushed if counts(shards, *push)]
    for rank in range(4):
        done = {step for its, step, _ in pushed if its == rank}
        for id in range(OWN_IDS):
            row = lives.sim.row("a", rank * OWN_IDS + id)
            assert row == [-float(sum(step >= id for step in done))] * 2, f"seed {seed}, rank {rank}"
    return lives


KINDS = ("worker", "coordinator")
ALL_KINDS = (*KINDS, "server")


def has_withdrawn(lives: Lives) -> bool:
    """Return whether a worker had joined that was none at the checkpoint to which all went back."""
    return any([isinstance(error, RolledBack) and error.clock == NEVER for error in lives.errors])


@pytest.mark.parametrize("seed", range(4))
def test_each_step_is_of_its_roster(seed: int) -> None:
    assert check_bits(seed, KINDS if seed % 2 else ()).timeline == 0


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_each_push_of_those_who_come_and_go_counts_once(seed: int, mode: Mode) -> None:
    assert check_counts(seed, mode, KINDS if seed % 2 else ()).timeline == 0


def test_each_step_is_of_its_roster_also_where_all_go_back() -> None:
    runs = [check_bits(seed, ALL_KINDS) for seed in range(2, 8)]
    assert any([lives.timeline > 0 for lives in runs])
    assert any([has_withdrawn(lives) for lives in runs])


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
def test_each_push_counts_once_also_where_all_go_back(mode: Mode) -> None:
    runs = [check_counts(seed, mode, ALL_KINDS) for seed in range(6)]
    assert any([lives.timeline > 0 for lives in runs])
    assert any([has_withdrawn(lives) for lives in runs])


@pytest.mark.parametrize(("mode", "member"), [(Sync(), Trainer), (Async(), Counter)], ids=["sync", "async"])
def test_a_rank_is_its_new_holders_also_where_the_coordinator_had_yet_to_hear_of_it(mode: Mode, member: type[Member]) -> None:
    """Rank 1 has left, and all servers have admitted another worker to it at the checkpoint; nobody else could ever take it."""
    shards = noting()
    sim = Simulation(1, 2, NO_FAULTS, shards, schedule=Schedule(ROOT, every_s=2.0), lease_s=2.0, awaits_registration=True)
    lives = Lives(sim)
    first, second, joins = member(mode, 0), member(mode, 1, last=3), member(mode, name="joins")
    lives.add("worker-0", first.script)
    lives.add("worker-1", second.script)
    sim.run(until=lambda: lives.worker("worker-1").is_done)
    lives.add("joins", joins.script)

    def has_it() -> bool:
        return all([1 in shard.clocks.since for shard in sim.shards.values()])

    if isinstance(mode, Sync):
        sim.network.drop_next(target="coordinator", body=RankFenced, count=10_000)  # the order rides in what rank 0 says of its step
    else:
        sim.network.drop_next(target="coordinator", body=Done, count=10_000)
    sim.run(until=has_it)
    sim.run(until=lambda: any([rank.since is not None for rank in FoundCheckpoints(sim).manifests[-1].ranks]))
    job = sim.coordinator.job
    assert job is not None
    assert [order.rank for order in job.orders] == [1], "the coordinator has yet to hear of it"
    lives.kill("server-0")
    sim.network.faults.clear()
    lives.run()
    sim.check()
    assert lives.timeline == 1
    assert lives.worker("joins").worker.rank == 1
    assert sim.coordinator.job is not None
    assert sim.coordinator.job.world_size == 2


@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_who_comes_and_goes_changes_nothing_else_in_a_long_search() -> None:
    for seed in range(1000, 1600):
        check_bits(seed, ALL_KINDS)
        check_counts(seed, Async(), ALL_KINDS)
        check_counts(seed, BoundedStaleness(seed % 3), ALL_KINDS)

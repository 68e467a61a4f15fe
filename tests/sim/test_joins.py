"""Workers that leave a running job and join it on purpose, while others die: each step is made of exactly its roster (R6, R8)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from jobs import TABLES, checksum, counting_table, gradients_of, halves, ids_of
from naive.training import train_by
from ps_proto.errors import InvalidRequest, JobMismatch
from ps_proto.requests import OBSERVER
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from ps_server.coordinator.schedule import Schedule
from ps_server.shard.shard import Shard
from ps_worker.asking import Pause
from ps_worker.protocol import Worker
from sim.cluster import Simulation
from sim.found_checkpoints import ROOT, held
from sim.lives import Lives
from sim.network import Chances
from sim.nodes import Script
from sim.scripts import trained

STEPS = 16
ROUGH = Chances(drop=0.01, double=0.02, delay=0.03)
OWN_IDS = 30


class NotingShard(Shard):
    """Notes of whom each step was folded; a step that is folded again, after a rollback, anew."""

    rosters: dict[int, tuple[int, ...]]  # of all servers of a run: they must agree

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

    noted: dict[tuple[int, int], tuple[int, ...]]


def noting() -> type[NotingShard]:
    """Return the class for one run."""
    return type("NotingShard", (NotingShard,), {"rosters": {}, "noted": {}})


@dataclass
class Member:
    """A worker that has a rank, or asks for one; it leaves after step `last`, and the job ends with step `STEPS`."""

    rank: int
    world_size: int
    mode: Mode
    last: int = STEPS - 1
    pause_s: float = 1.0
    pushed: dict[tuple[int, int], None] = field(default_factory=dict)  # (rank, step) that were done

    def has_no_rank(self) -> bool:
        """Return whether nobody knows yet which one it got: if it died now, that one would be lost, and its next life get another."""
        return self.rank == OBSERVER

    def script(self, nonce: int) -> Callable[[Worker], Script]:
        def script(worker: Worker) -> Script:
            try:
                yield from worker.join(self.rank, self.world_size, self.mode, nonce, resume=self.rank != OBSERVER)
            except (InvalidRequest, JobMismatch):
                if self.rank == OBSERVER:
                    return  # the job was over before it could be admitted
                if self.world_size == 2:
                    raise
                self.rank, self.world_size = OBSERVER, 2  # its admission was rolled back
                yield from worker.join(self.rank, self.world_size, self.mode, nonce + (1 << 40))
            self.rank, self.world_size = worker.rank, worker.world_size
            yield from self._work(worker)
            yield from worker.leave()

        return script

    def _work(self, worker: Worker) -> Script:
        raise NotImplementedError


class Trainer(Member):
    def _work(self, worker: Worker) -> Script:
        for spec in TABLES:
            yield from worker.create_table(spec)
        while worker.clock <= self.last:
            step = worker.clock
            ids = {spec.name: ids_of(self.rank, step, spec.name) for spec in TABLES}
            rows = yield from worker.pull(list(ids.items()))
            gradients = {name: gradients_of(self.rank, step, ids[name], read) for name, read in zip(ids, rows, strict=True)}
            yield Pause(self.pause_s)
            for half in (0, 1):
                parts = {name: halves(its.size)[half] for name, its in ids.items()}
                yield from worker.push([(name, ids[name][part], gradients[name][part]) for name, part in parts.items()])
            yield from worker.end_step()


class Counter(Member):
    def _work(self, worker: Worker) -> Script:
        yield from worker.create_table(counting_table("a"))
        ids = np.arange(OWN_IDS, dtype=np.uint64) + np.uint64(self.rank * OWN_IDS)
        while worker.clock <= self.last:
            yield from worker.pull([("a", ids)])
            yield Pause(self.pause_s)
            yield from worker.push([("a", ids[: worker.clock + 1], np.ones((worker.clock + 1, 2), np.float32))])
            self.pushed[self.rank, worker.clock] = None
            yield from worker.end_step()


def run(seed: int, mode: Mode, member: type[Member], kinds: tuple[str, ...]) -> tuple[Lives, list[Member], type[NotingShard]]:
    """Begin with two ranks; a third one joins, rank 1 leaves, and somebody joins in its place."""
    shards = noting()
    schedule = Schedule(ROOT, every_s=4.0, keep=3, full_every=3)
    sim = Simulation(seed, 1 + seed % 3, ROUGH, shards, schedule=schedule, lease_s=2.0, awaits_registration=True)
    lives = Lives(sim)
    members: list[Member] = [member(0, 2, mode), member(1, 2, mode, last=7), member(OBSERVER, 2, mode), member(OBSERVER, 2, mode)]
    for number, one in enumerate(members[:2]):
        lives.add(f"worker-{number}", one.script)
    if kinds:
        lives.disturb(until_s=25.0, every_s=6.0, kinds=kinds)
    sim.run(until=lambda: max(shard.clocks.clock_max for shard in sim.shards.values()) >= 2)
    lives.add("joins", members[2].script, members[2].has_no_rank)
    sim.run(until=lambda: lives.worker("worker-1").is_done or lives.is_over())
    lives.add("replaces", members[3].script, members[3].has_no_rank)
    lives.run()
    sim.check()
    return lives, members, shards


def check_bits(seed: int, kinds: tuple[str, ...]) -> Lives:
    lives, _, shards = run(seed, Sync(), Trainer, kinds)
    steps: list[Any] = [(dict.fromkeys(shards.rosters[step], step), len(shards.rosters[step])) for step in range(STEPS)]
    assert len({len(roster) for roster in shards.rosters.values()}) > 1
    assert held(trained(lives.sim)) == checksum(train_by(steps)), f"seed {seed}"
    return lives


def check_counts(seed: int, mode: Mode, kinds: tuple[str, ...]) -> Lives:
    lives, members, _ = run(seed, mode, Counter, kinds)
    for rank in range(3):
        done = {step for member in members for its, step in member.pushed if its == rank}
        for id in range(OWN_IDS):
            row = lives.sim.row("a", rank * OWN_IDS + id)
            assert row == [-float(sum(step >= id for step in done))] * 2, f"seed {seed}, rank {rank}"
    return lives


KINDS = ("worker", "coordinator")


@pytest.mark.parametrize("seed", range(4))
def test_each_step_is_of_its_roster(seed: int) -> None:
    assert check_bits(seed, KINDS if seed % 2 else ()).timeline == 0


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_each_push_of_those_who_come_and_go_counts_once(seed: int, mode: Mode) -> None:
    assert check_counts(seed, mode, KINDS if seed % 2 else ()).timeline == 0

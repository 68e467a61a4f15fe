"""Checkpoints of a cluster that trains on: each one, at whatever instant, is one step of all servers, or each push with its name."""

import errno

import pytest

from ps_proto.requests import TakeCheckpoint
from ps_proto.values import Async, BoundedStaleness, Mode
from ps_server.coordinator.schedule import Schedule
from ps_worker.asking import Pause
from ps_worker.protocol import Worker
from sim.cluster import Simulation
from sim.counting import Counting
from sim.found_checkpoints import ROOT, FoundCheckpoints, held, held_after, rows_of
from sim.network import Chances
from sim.nodes import Script
from sim.scripts import state_after, train, trained

WORKERS, STEPS = 3, 14
ROUGH = Chances(drop=0.02, double=0.03, delay=0.05)
BY_HAND = "/elsewhere"


def asking(worker: Worker) -> Script:
    """Ask for checkpoints of another root now and then."""
    yield from worker.observe()
    for _ in range(3):
        yield Pause(4.0)
        taken = yield from worker._peers.ask_coordinator(TakeCheckpoint(BY_HAND, False, -1, 60.0))
        assert taken.path == BY_HAND


@pytest.mark.parametrize("seed", range(4))
def test_every_checkpoint_of_synchronous_training_is_one_step(seed: int) -> None:
    sim = Simulation(seed, 1 + seed % 4, ROUGH, schedule=Schedule(ROOT, every_steps=3, keep=3, full_every=3))
    sim.disk.slow_s = (0.005, 0.1)[seed % 2]
    nodes = [sim.worker(f"worker-{rank}", train(rank, WORKERS, STEPS, pause_s=0.5 * sim.rng.random())) for rank in range(WORKERS)]
    nodes.append(sim.worker("asking", asking))
    sim.disturb(until_s=20.0)
    sim.run()
    assert [node.error for node in nodes] == [None] * len(nodes)
    found = FoundCheckpoints(sim), FoundCheckpoints(sim, BY_HAND)
    assert len(found[0].manifests) >= 2
    assert len(found[1].manifests) == 3
    for of_root in found:
        for manifest in of_root.manifests:
            rows = rows_of(of_root.load(manifest, servers=1 + (seed + manifest.number) % 5))
            assert held(rows) == held_after(WORKERS, manifest.step), f"seed {seed}, checkpoint {manifest.number}"
    assert held(trained(sim)) == held_after(WORKERS, STEPS), f"seed {seed}"


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_every_checkpoint_of_asynchronous_training_has_each_push_with_its_name(seed: int, mode: Mode) -> None:
    sim = Simulation(seed, 1 + seed % 4, ROUGH, schedule=Schedule(ROOT, every_s=2.0, keep=4, full_every=3))
    job = Counting(seed, WORKERS, STEPS, mode, pause_s=1.0)
    nodes = [sim.worker(f"worker-{rank}", job.script(rank, 1 + rank)) for rank in range(WORKERS)]
    nodes.append(sim.worker("asking", asking))
    sim.disturb(until_s=15.0)
    sim.run()
    assert [node.error for node in nodes] == [None] * len(nodes)
    for of_root in (FoundCheckpoints(sim), FoundCheckpoints(sim, BY_HAND)):
        assert len(of_root.manifests) >= 3
        for manifest in of_root.manifests:
            loaded = of_root.load(manifest, servers=1 + (seed + manifest.number) % 5)
            assert list(job.faults_in(loaded)) == [], f"seed {seed}, checkpoint {manifest.number}"
            for rank in manifest.ranks:
                assert loaded[0].resume.get(rank.rank, b"") == (state_after(rank.clock) if rank.clock >= 0 else b""), f"seed {seed}"
    assert list(job.missing_or_double(sim)) == []
    assert job.torn == []


class Trouble:
    """A disk that is full for a while, or fails here and there."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.count = 0

    def go_on(self, until_s: float) -> None:
        if self._sim.time.now_s >= until_s:
            self._sim.disk.bytes_left = None
            return
        node = self._sim.nodes[self._sim.rng.choice([*self._sim.shards, "coordinator"])]
        match self._sim.rng.choice(("full", "room", "fails")):
            case "full":
                self._sim.disk.bytes_left = self._sim.rng.randint(0, 20_000)
            case "room":
                self._sim.disk.bytes_left = None
            case "fails":
                node.mount.fail_next(self._sim.rng.choice(("create", "write", "sync", "rename", "sync folder", "remove")), code=errno.EIO)
        self.count += 1
        self._sim.time.at(self._sim.time.now_s + self._sim.rng.random(), self.go_on, until_s)


@pytest.mark.parametrize("seed", range(4))
def test_a_disk_in_trouble_costs_checkpoints_and_nothing_else(seed: int) -> None:
    """What a failed part had touched is in the next one, also where that is an increment on the one before both."""
    sim = Simulation(seed, 3, ROUGH, schedule=Schedule(ROOT, every_s=1.0, keep=50, full_every=6))
    nodes = [sim.worker(f"worker-{rank}", train(rank, WORKERS, STEPS, pause_s=2.0)) for rank in range(WORKERS)]
    trouble = Trouble(sim)
    trouble.go_on(until_s=25.0)
    sim.run()
    assert [node.error for node in nodes] == [None] * len(nodes)
    sim.run(until=lambda: sim.time.now_s > 60.0)
    found = FoundCheckpoints(sim)
    numbers = [manifest.number for manifest in found.manifests]
    assert trouble.count > 20
    assert len(numbers) >= 3
    assert numbers != list(range(1, len(numbers) + 1)), "some failed"
    assert any(manifest.base is not None for manifest in found.manifests)
    assert any("checkpoint" in note for note in sim.nodes["coordinator"].notes), "the operator was told"
    for manifest in found.manifests:
        assert held(rows_of(found.load(manifest, servers=2))) == held_after(WORKERS, manifest.step), f"seed {seed}"
    assert held(trained(sim)) == held_after(WORKERS, STEPS)

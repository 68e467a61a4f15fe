"""Workers and the coordinator die at random, and what dies is started again: no bit and no count depends on it."""

from functools import partial

import pytest

from ps_proto.values import Async, BoundedStaleness, Mode
from ps_server.coordinator.schedule import Schedule
from sim.cluster import Simulation
from sim.counting import Counting
from sim.found_checkpoints import ROOT, FoundCheckpoints, held, held_after, rows_of
from sim.lives import Lives
from sim.network import Chances
from sim.scripts import train_on, trained

WORKERS, STEPS = 3, 12
ROUGH = Chances(drop=0.01, double=0.02, delay=0.03)
KINDS = ("worker", "server", "coordinator")


def simulation(seed: int, schedule: Schedule) -> Simulation:
    return Simulation(seed, 1 + seed % 4, ROUGH, schedule=schedule, lease_s=3.0, awaits_registration=True)


def synchronous(seed: int) -> Lives:
    """Train through deaths, and compare the rows with those of one process."""
    sim = simulation(seed, Schedule(ROOT, every_steps=1 + seed % 4, keep=3, full_every=3))
    lives = Lives(sim)
    for rank in range(WORKERS):
        lives.add(f"worker-{rank}", partial(train_on, rank, WORKERS, STEPS, pause_s=1.0))
    lives.disturb(until_s=30.0, every_s=4.0, kinds=KINDS)
    lives.run()
    sim.check()
    assert held(trained(sim)) == held_after(WORKERS, STEPS), f"seed {seed}"
    found = FoundCheckpoints(sim)
    for manifest in found.manifests:
        rows = rows_of(found.load(manifest, servers=2))
        assert held(rows) == held_after(WORKERS, manifest.step), f"seed {seed}, checkpoint {manifest.number}"
    return lives


def counting(seed: int, mode: Mode) -> Lives:
    """Count through deaths, and compare each row with the pushes to it."""
    sim = simulation(seed, Schedule(ROOT, every_s=3.0, keep=3, full_every=3))
    lives, job = Lives(sim), Counting(seed, WORKERS, STEPS, mode, pause_s=2.0)
    for rank in range(WORKERS):
        lives.add(f"worker-{rank}", partial(job.script, rank, resumes=True))
    lives.disturb(until_s=30.0, every_s=4.0, kinds=KINDS)
    lives.run()
    sim.check()
    assert job.torn == [], f"seed {seed}"
    assert list(job.missing_or_double(sim)) == [], f"seed {seed}"
    return lives


@pytest.mark.parametrize("seed", range(10))
def test_no_death_changes_a_bit_of_synchronous_training(seed: int) -> None:
    lives = synchronous(seed)
    assert lives.deaths.total() > 0


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_each_push_counts_once_through_deaths(seed: int, mode: Mode) -> None:
    lives = counting(seed, mode)
    assert lives.deaths.total() > 0


@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_no_death_changes_anything_in_a_long_search() -> None:
    for seed in range(1000, 1670):
        synchronous(seed)
        counting(seed, Async())
        counting(seed, BoundedStaleness(seed % 3))

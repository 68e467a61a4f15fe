"""Clocks that jump, forward and backward, on every machine by itself: no bit and no count depends on them, and nobody hangs (R13)."""

from functools import partial

import pytest

from ps_proto.values import BoundedStaleness
from ps_server.coordinator.schedule import Schedule
from sim.cluster import Simulation
from sim.counting import Counting
from sim.found_checkpoints import ROOT, held, held_after
from sim.lives import Lives
from sim.network import Chances
from sim.scripts import train_on, trained

WORKERS, STEPS = 3, 10
ROUGH = Chances(drop=0.01, double=0.02, delay=0.03)
JUMP_S = 100.0  # less than anybody's patience, as they are set


def jumping(seed: int, schedule: Schedule) -> Lives:
    """Return a cluster in which somebody's clock jumps every second or so, and now and then a process dies."""
    sim = Simulation(seed, 1 + seed % 3, ROUGH, schedule=schedule, lease_s=3.0, awaits_registration=True)
    lives = Lives(sim)
    when_s = 0.0
    while (when_s := when_s + sim.rng.expovariate(1.0)) < 25.0:
        names = ["coordinator", *sim.shards, *[f"worker-{rank}" for rank in range(WORKERS)]]
        sim.time.at(when_s, lives.jump, sim.rng.choice(names), sim.rng.uniform(-JUMP_S, JUMP_S))
    lives.disturb(until_s=25.0, every_s=8.0)
    return lives


@pytest.mark.parametrize("seed", range(3))
def test_no_jump_changes_a_bit_of_synchronous_training(seed: int) -> None:
    lives = jumping(seed, Schedule(ROOT, every_s=4.0, keep=3, full_every=3))
    for rank in range(WORKERS):
        lives.add(f"worker-{rank}", partial(train_on, rank, WORKERS, STEPS, pause_s=1.0))
    lives.run()
    lives.sim.check()
    assert held(trained(lives.sim)) == held_after(WORKERS, STEPS), f"seed {seed}"
    assert any(lives.sim.offsets_s.values())


@pytest.mark.parametrize("seed", range(3))
def test_each_push_counts_once_whatever_the_clocks_say(seed: int) -> None:
    lives = jumping(seed, Schedule(ROOT, every_s=4.0, keep=3, full_every=3))
    job = Counting(seed, WORKERS, STEPS, BoundedStaleness(1), pause_s=2.0)
    for rank in range(WORKERS):
        lives.add(f"worker-{rank}", partial(job.script, rank, resumes=True))
    lives.run()
    lives.sim.check()
    assert job.torn == [], f"seed {seed}"
    assert list(job.missing_or_double(lives.sim)) == [], f"seed {seed}"

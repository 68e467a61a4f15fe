"""Synchronous training ends with the same bits whatever the number of servers and whatever the network does."""

import numpy as np
import pytest

from jobs import checksum, counting_table
from naive.training import train as train_in_one_process
from ps_proto.requests import Finish, Pull, Pulled, Push
from ps_proto.values import Sync
from ps_worker.protocol import Worker
from sim.cluster import Simulation
from sim.network import Chances, Fault
from sim.nodes import Script
from sim.scripts import train, trained

WORKERS, STEPS = 3, 12
ROUGH = Chances(drop=0.03, double=0.03, delay=0.03)


@pytest.fixture(scope="module")
def reference() -> str:
    return checksum(train_in_one_process(WORKERS, STEPS))


def run(seed: int, servers: int = 3, chances: Chances | None = None) -> Simulation:
    sim = Simulation(seed, servers, chances or Chances())
    for rank in range(WORKERS):
        sim.worker(f"worker-{rank}", train(rank, WORKERS, STEPS), start_s=sim.rng.random() * 3)
    return sim


def finished_checksum(sim: Simulation) -> str:
    sim.run()
    errors = [node.error for name, node in sim.nodes.items() if name.startswith("worker") and node.error]
    assert errors == [], f"seed {sim.seed}"
    sim.check()
    return checksum(trained(sim))


@pytest.mark.parametrize("servers", [1, 2, 3, 5, 16])
def test_the_number_of_servers_changes_no_bit(servers: int, reference: str) -> None:
    assert finished_checksum(run(1, servers)) == reference


@pytest.mark.parametrize("seed", range(20))
def test_no_fault_of_the_network_changes_a_bit(seed: int, reference: str) -> None:
    sim = run(seed, servers=1 + seed % 5, chances=ROUGH)
    sim.disturb(until_s=60.0)
    assert finished_checksum(sim) == reference


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_no_fault_of_the_network_changes_a_bit_in_a_long_search(reference: str) -> None:
    for seed in range(1000, 3000):
        sim = run(seed, servers=1 + seed % 5, chances=ROUGH)
        sim.disturb(until_s=60.0)
        assert finished_checksum(sim) == reference, f"seed {seed}"


def test_a_lost_acknowledgement_stages_a_push_once(reference: str) -> None:
    sim = run(2)
    asked = sim.network.delay_next(0.0, source="worker-1", target="server-0", body=Push, count=3)
    sim.run(until=lambda: asked.fired)
    lost = sim.network.drop_next(source="server-0", target="worker-1")
    assert finished_checksum(sim) == reference
    assert lost.fired


def test_a_push_that_comes_again_after_its_fold_changes_nothing(reference: str) -> None:
    sim = run(3)
    late: list[Fault] = [sim.network.double_next(source=f"worker-{rank}", body=Push, count=20) for rank in range(WORKERS)]
    assert finished_checksum(sim) == reference
    assert all(fault.fired for fault in late)


def test_a_finished_that_reaches_one_server_long_before_the_others_tears_no_step(reference: str) -> None:
    sim = run(4)
    slow = [sim.network.delay_next(5.0, source="worker-0", target=f"server-{server}", body=Pull, count=2) for server in (1, 2)]
    assert finished_checksum(sim) == reference
    assert all(fault.fired for fault in slow)


def test_the_last_step_is_folded_although_its_finished_is_lost_once_everywhere(reference: str) -> None:
    sim = run(5)
    lost = [sim.network.drop_next(source="worker-2", target=f"server-{server}", body=Finish) for server in range(3)]
    assert finished_checksum(sim) == reference
    assert all(fault.fired for fault in lost)


def test_a_late_answer_to_an_earlier_pull_is_not_taken_for_a_newer_one(reference: str) -> None:
    sim = run(6)
    late = sim.network.delay_next(2.0, source="server-1", target="worker-1", body=Pulled, count=3)
    assert finished_checksum(sim) == reference
    assert late.fired


def test_an_observer_reads_one_step_of_all_servers_while_training_goes_on() -> None:
    """Every row counts the steps, so rows of two steps in one pull would differ."""
    ids = np.arange(64, dtype=np.uint64)
    steps_seen: list[set[float]] = []

    def work(worker: Worker) -> Script:
        yield from worker.join(0, 1, Sync(), 1)
        yield from worker.create_table(counting_table("steps"))
        for _ in range(40):
            yield from worker.pull([("steps", ids)])
            yield from worker.push([("steps", ids, np.ones((64, 2), np.float32))])
            yield from worker.end_step()
        yield from worker.leave()

    def watch(worker: Worker) -> Script:
        yield from worker.observe()
        for _ in range(20):
            (rows,) = yield from worker.pull([("steps", ids)])
            steps_seen.append(set(rows[:, 0].tolist()))

    sim = Simulation(7, servers=4, chances=Chances(delay=0.1, late_s=0.02))
    worker = sim.worker("worker-0", work)
    sim.run(until=lambda: "steps" in sim.coordinator.tables and sim.shards["server-0"].step > 2)
    watcher = sim.worker("observer", watch)
    sim.run()
    assert (worker.error, watcher.error) == (None, None)
    assert all(len(seen) == 1 for seen in steps_seen), steps_seen
    assert len(set.union(*steps_seen)) > 3, "the observer saw training go on"

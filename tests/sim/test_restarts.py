"""A worker that is replaced: the old one is fenced, and nothing of it counts twice (R7, R15's plain connect)."""

from collections.abc import Callable

import numpy as np
import pytest

from jobs import checksum, counting_table
from naive.training import train as train_in_one_process
from ps_proto.errors import JobMismatch, StaleIncarnation
from ps_proto.orders import ResolveRank
from ps_proto.requests import Push
from ps_proto.values import Async, Mode, Sync
from ps_worker.asking import Pause
from ps_worker.protocol import Worker
from sim.cluster import Simulation
from sim.network import Chances
from sim.nodes import Script
from sim.scripts import train, trained

IDS = np.arange(60, dtype=np.uint64)
ONES = np.ones((IDS.size, 2), np.float32)


def steps(count: int, mode: Mode, nonce: int, clocks: list[int], world_size: int = 1) -> Callable[[Worker], Script]:
    """Push ones to every id in each of `count` steps; note the clock of each step that was finished."""

    def script(worker: Worker) -> Script:
        yield from worker.join(0, world_size, mode, nonce)
        yield from worker.create_table(counting_table("a"))
        for _ in range(count):
            yield from worker.pull([("a", IDS)])
            yield from worker.push([("a", IDS, ONES)])
            clock = worker.clock
            yield from worker.end_step()
            clocks.append(clock)
        yield from worker.leave()

    return script


@pytest.mark.parametrize("seed", range(6))
def test_a_replaced_worker_is_fenced_and_the_new_one_starts_above_it(seed: int) -> None:
    sim = Simulation(seed, servers=3, chances=Chances(drop=0.02, double=0.05, delay=0.05))
    first_clocks: list[int] = []
    second_clocks: list[int] = []
    first = sim.worker("first", steps(200, Async(), 1, first_clocks))
    sim.run(until=lambda: len(first_clocks) >= 5)
    second = sim.worker("second", steps(10, Async(), 2, second_clocks))
    sim.run()
    assert isinstance(first.error, StaleIncarnation)
    assert second.error is None
    assert second_clocks == list(range(second_clocks[0], second_clocks[0] + 10))
    assert second_clocks[0] > first_clocks[-1]
    finished = len(first_clocks) + len(second_clocks)
    for id in IDS.tolist():  # the step at which the first was fenced is in a row once or not at all
        assert sim.row("a", id)[0] in (-finished, -finished - 1), f"seed {seed}"


@pytest.mark.parametrize("seed", range(6))
def test_a_synchronous_worker_that_is_replaced_leaves_no_half_step(seed: int) -> None:
    sim = Simulation(seed, servers=3, chances=Chances(drop=0.02, double=0.05, delay=0.05))
    first_clocks: list[int] = []
    second_clocks: list[int] = []
    sim.worker("first", steps(200, Sync(), 1, first_clocks))
    sim.run(until=lambda: len(first_clocks) >= 5)
    second = sim.worker("second", steps(10, Sync(), 2, second_clocks))
    sim.run()
    assert second.error is None
    values = {sim.row("a", id)[0] for id in IDS.tolist()}
    assert len(values) == 1, f"seed {seed}: every row has the same steps, so no step is torn"
    assert values == {-float(second_clocks[-1] + 1)}, "each step from 0 on counts once: a redone one replaced what was staged"


def test_a_late_repetition_of_the_order_that_settles_a_rank_drops_nothing_staged_since() -> None:
    reference = checksum(train_in_one_process(2, 6))
    sim = Simulation(1, servers=2)
    doubled = sim.network.double_next(body=ResolveRank, count=4)
    nodes = [sim.worker(f"worker-{rank}", train(rank, 2, 6)) for rank in range(2)]
    sim.network.chances = Chances(late_s=0.05)
    sim.run()
    assert doubled.fired
    assert [node.error for node in nodes] == [None, None]
    assert checksum(trained(sim)) == reference


def test_a_push_of_the_replaced_worker_that_arrives_late_is_refused() -> None:
    sim = Simulation(2, servers=1)
    clocks: list[int] = []
    late = sim.network.delay_next(3.0, source="first", body=Push)
    first = sim.worker("first", steps(1, Async(), 1, clocks))
    sim.run(until=lambda: late.fired)
    sim.network.isolate("first")
    second = sim.worker("second", steps(1, Async(), 2, []))
    sim.run(until=lambda: second.is_done)
    sim.run(until=lambda: sim.time.now_s > 5.0 or first.is_done)
    assert sim.row("a", 0) == [-1.0, -1.0]


def test_a_second_job_starts_above_the_first_with_another_size_and_mode() -> None:
    sim = Simulation(3, servers=2)
    clocks: list[int] = []
    again: list[int] = []
    sim.worker("first", steps(3, Sync(), 1, clocks))
    sim.run()
    node = sim.worker("again", steps(3, Async(), 2, again, world_size=1))
    sim.run()
    assert node.error is None
    assert (clocks, again) == ([0, 1, 2], [3, 4, 5])
    assert sim.row("a", 7) == [-6.0, -6.0]


def test_a_job_is_one_size_and_mode_until_its_last_worker_has_left() -> None:
    sim = Simulation(4, servers=2)
    sim.worker("first", steps(30, Async(), 1, []))
    sim.run(until=lambda: sim.coordinator.job is not None)
    larger = sim.worker("larger", steps(1, Async(), 2, [], world_size=2))
    other = sim.worker("other", steps(1, Sync(), 3, []))
    sim.run()
    assert isinstance(larger.error, JobMismatch)
    assert isinstance(other.error, JobMismatch)
    assert (larger.error.field, other.error.field) == ("world_size", "mode")


def test_a_worker_that_never_reads_stages_no_more_than_a_step_ahead() -> None:
    """Rank 1 takes its time; rank 0 only pushes, and must wait for it all the same."""
    most_staged: list[int] = []

    def work(rank: int) -> Callable[[Worker], Script]:
        def script(worker: Worker) -> Script:
            yield from worker.join(rank, 2, Sync(), 1 + rank)
            yield from worker.create_table(counting_table("a"))
            for _ in range(20):
                if rank == 1:
                    yield Pause(1.0)
                yield from worker.push([("a", IDS, ONES)])
                most_staged.append(sum(shard.staging.rows_count for shard in sim.shards.values()))
                yield from worker.end_step()
            yield from worker.leave()

        return script

    sim = Simulation(5, servers=2)
    nodes = [sim.worker(f"worker-{rank}", work(rank)) for rank in (0, 1)]
    sim.run()
    assert [node.error for node in nodes] == [None, None]
    assert max(most_staged) <= 3 * IDS.size
    assert sim.row("a", 7) == [-20.0, -20.0]

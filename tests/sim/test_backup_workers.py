"""Backup workers (R9): every server folds each step from the same ranks, late ranks go on, and nobody hangs."""

from collections.abc import Callable

import numpy as np
import pytest

from jobs import checksum
from naive.training import train as train_in_one_process
from ps_proto.requests import StepDecided
from ps_proto.values import SGD, Async, Sync, TableSpec
from ps_worker.asking import Pause
from ps_worker.protocol import Worker
from sim.backup import Checked, NotingShard
from sim.cluster import Simulation
from sim.network import Chances
from sim.nodes import Script
from sim.scripts import train, trained

STEPS = 8
ROUGH = Chances(drop=0.03, double=0.03, delay=0.03)


def checked(seed: int, servers: int, backup_workers: int = 1, chances: Chances | None = None) -> Checked:
    return Checked(Simulation(seed, servers, chances or Chances(), NotingShard), backup_workers)


def run(seed: int, workers: int, backup_workers: int) -> Checked:
    job = checked(seed, 1 + seed % 4, backup_workers, ROUGH)
    sim = job.sim
    pauses = [sim.rng.choice((0.0, 0.02, 2.0)) for _ in range(workers)]
    nodes = [
        sim.worker(
            f"worker-{rank}", train(rank, workers, STEPS, Sync(backup_workers), job.batches, pauses[rank]), start_s=sim.rng.random() * 3
        )
        for rank in range(workers)
    ]
    sim.disturb(until_s=40.0)
    job.finish(*nodes)
    assert [node.worker.turn for node in nodes] == [STEPS] * workers, "each has done all of its batches"
    return job


@pytest.mark.parametrize(("workers", "backup_workers"), [(2, 1), (3, 1), (4, 2)], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_every_server_folds_what_the_first_ranks_pushed(seed: int, workers: int, backup_workers: int) -> None:
    run(seed, workers, backup_workers)


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("workers", "backup_workers"), [(2, 1), (3, 1), (3, 2), (4, 2)], ids=str)
def test_every_server_folds_what_the_first_ranks_pushed_in_a_long_search(workers: int, backup_workers: int) -> None:
    for seed in range(1000, 1500):
        run(seed, workers, backup_workers)


def test_no_backup_workers_is_plain_synchronous() -> None:
    job = checked(1, 2, backup_workers=0)
    job.finish(*[job.sim.worker(f"worker-{rank}", train(rank, 3, STEPS, Sync(0), job.batches)) for rank in range(3)])
    assert checksum(trained(job.sim)) == checksum(train_in_one_process(3, STEPS))
    assert sum(shard.counters.steps_decided for shard in job.shards) == 0


# --- one rank is slow ----------------------------------------------------------------------------------------------------------


def test_nobody_waits_for_a_straggler_and_its_late_steps_count_nowhere() -> None:
    job = checked(2, 3)
    quick = [job.sim.worker(f"worker-{rank}", train(rank, 3, 40, Sync(1), job.batches)) for rank in range(2)]
    slow = job.sim.worker("worker-2", train(2, 3, 5, Sync(1), job.batches, pause_s=0.1))
    job.sim.run(until=lambda: all(node.is_done for node in quick))
    assert job.sim.time.now_s < 2.0, "40 steps of some milliseconds, not of 100"
    job.finish(*quick, slow)
    assert slow.worker.late_steps >= 2
    assert slow.worker.clock > slow.worker.turn
    assert [node.worker.late_steps for node in quick] == [0, 0]
    shared = [decision for decision in job.folded if decision.ranks_count == 2]
    assert len([decision for decision in shared if 2 in decision.ranks]) < 5
    assert sum(shard.counters.pushes_late for shard in job.shards) > 0


def test_a_rank_that_comes_late_to_a_step_that_it_has_not_begun_jumps_and_wastes_nothing() -> None:
    """It connects after the others have done half of their steps."""
    job = checked(3, 2)
    quick = [job.sim.worker(f"worker-{rank}", train(rank, 3, 20, Sync(1), job.batches, pause_s=0.05)) for rank in range(2)]
    job.sim.run(until=lambda: job.shards[0].step >= 10)
    last = job.sim.worker("worker-2", train(2, 3, 4, Sync(1), job.batches))
    job.finish(*quick, last)
    assert min(step for rank, step in job.batches if rank == 2) >= 10
    assert last.worker.late_steps == 0
    assert last.worker.clock >= 14


def leaving_late(job: Checked, is_pushing: bool) -> Callable[[Worker], Script]:
    """Read step 0, let the others go on, then leave; with a push of that step or without."""

    def script(worker: Worker) -> Script:
        yield from worker.join(2, 3, Sync(1), 3)
        yield from worker.know(["user"])
        ids = np.arange(20, dtype=np.uint64)
        (rows,) = yield from worker.pull([("user", ids)])
        yield Pause(5.0)
        if is_pushing:
            yield from worker.push([("user", ids, rows)])
        yield from worker.leave()

    return script


@pytest.mark.parametrize("is_pushing", [True, False])
def test_a_rank_may_leave_while_it_is_late(is_pushing: bool) -> None:
    job = checked(4, 2)
    others = [job.sim.worker(f"worker-{rank}", train(rank, 3, 30, Sync(1), job.batches, pause_s=0.3)) for rank in range(2)]
    job.sim.run(until=lambda: len(job.sim.coordinator.tables) == 2)
    leaver = job.sim.worker("worker-2", leaving_late(job, is_pushing))
    job.finish(*others, leaver)
    assert leaver.worker.late_steps == is_pushing
    assert {decision.ranks_count for decision in job.folded} == {1, 2}, "of two that are left one is enough"
    assert all(2 not in decision.ranks for decision in job.folded)


def test_a_rank_that_is_taken_anew_while_it_is_late_goes_on_at_the_newest_step() -> None:
    job = checked(5, 3)
    quick = [job.sim.worker(f"worker-{rank}", train(rank, 3, 30, Sync(1), job.batches, pause_s=0.1)) for rank in range(2)]
    first = job.sim.worker("first", train(2, 3, 1, Sync(1), {}, pause_s=1000.0))
    job.sim.run(until=lambda: job.shards[0].step >= 10)
    second = job.sim.worker("second", train(2, 3, 3, Sync(1), job.batches))
    job.sim.run(until=lambda: second.is_done)
    job.sim.nodes.pop("first")
    job.sim.network.isolate("first")
    job.finish(*quick, second)
    assert not first.is_done
    assert min(step for rank, step in job.batches if rank == 2) >= 10


# --- the decider's word ----------------------------------------------------------------------------------------------------------


def three(job: Checked) -> list[Callable[[Worker], Script]]:
    return [train(rank, 3, 12, Sync(1), job.batches, pause_s=0.01 * rank) for rank in range(3)]


@pytest.mark.parametrize("fault", ["lost", "doubled", "overtaken", "answers lost"])
def test_a_decision_that_is_lost_doubled_or_overtaken_is_folded_once(fault: str) -> None:
    job = checked(6, 3)
    decider, (other, _) = job.roles()
    network = job.sim.network
    match fault:
        case "lost":
            planned = network.drop_next(body=StepDecided, count=8)
        case "doubled":
            planned = network.double_next(body=StepDecided, count=12)
        case "overtaken":
            planned = network.delay_next(0.4, target=other, body=StepDecided, count=4)
        case _:
            planned = network.drop_next(source=other, target=decider, count=3)
    job.finish(*[job.sim.worker(f"worker-{rank}", script) for rank, script in enumerate(three(job))])
    assert planned.fired
    job.sim.run(until=lambda: all(len(shard._teller) == 0 for shard in job.shards))


def test_a_slow_decider_holds_its_steps_up_and_tears_none() -> None:
    job = checked(7, 3)
    decider, others = job.roles()
    slow = [job.sim.network.delay_next(0.3, source=decider, target=other, count=5) for other in others]
    job.finish(*[job.sim.worker(f"worker-{rank}", script) for rank, script in enumerate(three(job))])
    assert all(fault.fired for fault in slow)


def test_decisions_that_come_before_that_of_the_step_before_wait_for_it() -> None:
    """Without synchronous tables a rank waits for no fold, so that it ends ten steps while the decision of the first is on its way."""
    job = checked(8, 2)
    decider, (other,) = job.roles()

    def script(worker: Worker) -> Script:
        yield from worker.join(0, 2, Sync(1), 1)
        yield from worker.create_table(TableSpec("user", 1, mode=Async()))
        for _ in range(10):
            yield from worker.end_step()
        yield Pause(1.0)
        yield from worker.leave()

    def idle(worker: Worker) -> Script:
        yield from worker.join(1, 2, Sync(1), 2)
        yield Pause(2.0)
        yield from worker.leave()

    slow = job.sim.network.delay_next(0.5, body=StepDecided)
    nodes = [job.sim.worker("worker-0", script), job.sim.worker("worker-1", idle)]
    job.sim.run(until=lambda: job.sim.shards[decider].step == 10)
    assert slow.fired
    assert job.sim.shards[other].step == 0
    job.sim.run()
    assert [node.error for node in nodes] == [None, None]
    assert {shard.step for shard in job.shards} == {10}
    assert job.shards[0].decider.folded == job.shards[1].decider.folded


# --- tables of other modes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_what_a_late_rank_pushes_to_an_asynchronous_table_counts_once(seed: int) -> None:
    """Each rank pushes ones to both tables; the asynchronous one has all of them, the synchronous one what its steps were folded from."""
    ids = np.arange(50, dtype=np.uint64)
    ones = np.ones((ids.size, 1), np.float32)
    job = checked(seed, 3, chances=ROUGH)

    def work(rank: int) -> Callable[[Worker], Script]:
        def script(worker: Worker) -> Script:
            yield from worker.join(rank, 3, Sync(1), 1 + rank)
            for spec in (TableSpec("sync", 1, SGD(lr=1.0)), TableSpec("async", 1, SGD(lr=1.0), mode=Async())):
                yield from worker.create_table(spec)
            for _ in range(STEPS):
                yield from worker.pull([("sync", ids), ("async", ids)])
                yield Pause(1.0 * rank)
                yield from worker.push([("sync", ids, ones), ("async", ids, ones)])
                yield from worker.end_step()
            yield from worker.leave()

        return script

    nodes = [job.sim.worker(f"worker-{rank}", work(rank)) for rank in range(3)]
    job.sim.run()
    assert [node.error for node in nodes] == [None] * 3
    last = max(shard.step for shard in job.shards)
    job.sim.run(until=lambda: all(shard.step == last for shard in job.shards))
    assert {job.sim.row("async", int(id))[0] for id in ids} == {-3.0 * STEPS}
    values = {job.sim.row("sync", int(id))[0] for id in ids}
    assert len(values) == 1, "no step is torn"
    assert sum(shard.counters.pushes_late + shard.counters.contributions_dropped for shard in job.shards) > 0

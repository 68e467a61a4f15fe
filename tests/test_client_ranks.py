"""Several workers of one job, in threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from clients import BRIEF, ITEM, alone, each_mode, in_thread, ones
from inprocess import InProcess
from polling import poll_until
from ps_proto.errors import BarrierTimeout, StaleIncarnation, StalenessTimeout, UnfinishedPush
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from ps_server.coordinator.job import Job
from ps_worker.client import Client


@each_mode
def test_connecting_again_as_the_same_rank_replaces_the_worker(mode: Mode) -> None:
    cluster, old = alone(mode, 2, ITEM)
    old.push("item", [1], ones(1, 2))
    old.end_step()
    old.flush()
    old.push("item", [1], ones(1, 2, 100.0))  # of a step that is never finished
    with cluster.connect(0, 1, mode) as new:
        assert (new.incarnation, new.clock) == (2, 1 if mode == Sync() else 2)
        for attempt in (lambda: old.pull("item", [1]), old.barrier, old.flush, lambda: old.push("item", [1], ones(1, 2))):
            with pytest.raises(StaleIncarnation, match="Rank 0 has been taken over by incarnation 2; this is incarnation 1"):
                attempt()
        new.push("item", [1], ones(1, 2))
        new.end_step()
        assert new.pull("item", [1]).tolist() == ([[-2, -2]] if mode == Sync() else [[-102, -102]])
    with pytest.raises((StaleIncarnation, UnfinishedPush)):
        old.close()
    cluster.shards["server-0"].check_invariants()


@each_mode
def test_a_worker_that_comes_back_goes_on_above_its_steps(mode: Mode) -> None:
    cluster, client = alone(mode, 2, ITEM)
    for _ in range(3):
        client.push("item", [1], ones(1, 2))
        client.end_step()
    client.close()
    with cluster.connect(0, 1, mode) as again:
        assert again.clock >= 3
        again.push("item", [1], ones(1, 2))
        again.end_step()
        assert again.pull("item", [1]).tolist() == [[-4, -4]]


def _is_there(job: Job, generation: int) -> bool:
    return not job.barriers.missing(generation, [0])


def test_two_workers_in_threads_meet_at_a_barrier() -> None:
    cluster = InProcess()
    with cluster.connect(0, 2, Async()) as first, cluster.connect(1, 2, Async()) as second:
        job = cluster.coordinator.job
        assert job is not None
        for generation in range(3):
            thread, outcome = in_thread(first.barrier)
            poll_until(partial(_is_there, job, generation))
            assert not outcome
            second.barrier()
            thread.join()
            assert outcome == [None]


@pytest.mark.parametrize("meet", [Client.barrier, lambda client: client.agree_async(0).result()], ids=["barrier", "agreement"])
def test_who_is_at_a_barrier_lets_another_read_the_next_step_first(meet: Callable[[Client], Any]) -> None:
    """Such as one that was started again, and reads its dense weights before it comes to where the others wait."""
    cluster = InProcess()
    with cluster.connect(0, 2, Sync()) as first, cluster.connect(1, 2, Sync()) as second:
        for client in (first, second):
            client.create_table(ITEM)
            client.push("item", [1], ones(1, 2))
            client.end_step()
        thread, outcome = in_thread(lambda: meet(second))
        assert first.pull("item", [1]).tolist() == [[-1, -1]]  # the mean of both
        assert not outcome
        first.barrier()
        thread.join()
        assert outcome in ([None], [0])


def test_a_barrier_that_nobody_else_reaches_names_the_rank() -> None:
    cluster = InProcess()
    with cluster.connect(0, 3, Async(), BRIEF) as client, pytest.raises(BarrierTimeout, match="for rank 1, 2"):
        client.barrier()


def test_ranks_agree_on_the_least_value_beside_what_they_do_meanwhile() -> None:
    cluster = InProcess()
    with cluster.connect(0, 2, Async()) as first, cluster.connect(1, 2, Async()) as second:
        first.create_table(ITEM)
        handles = [first.agree_async(5), first.agree_async(-2)]
        first.push("item", [1], ones(1, 2))
        first.end_step()
        assert not handles[0].done()
        others = [second.agree_async(3), second.agree_async(7)]
        assert [handle.result() for handle in handles + others] == [3, -2, 3, -2]


def test_two_synchronous_workers_read_one_step() -> None:
    cluster = InProcess(3)

    def work(rank: int) -> list[Any]:
        with cluster.connect(rank, 2, Sync()) as client:
            client.create_table(ITEM)
            read = []
            for step in range(6):
                read.append(client.pull("item", [1, 2, 3])[:, 0].tolist())
                client.push("item", [1 + rank, 3], ones(2, 2, 2.0 * (step + 1)))
                client.end_step()
            return read

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, range(2))
    expected = [0.0]
    for step in range(5):
        expected.append(expected[-1] - (step + 1))  # the mean of 2·(step + 1) and nothing
    assert first == second == [[value, value, 2 * value] for value in expected]


def test_a_wait_for_another_rank_ends_and_names_it() -> None:
    cluster = InProcess()
    with cluster.connect(1, 2, BoundedStaleness(0), BRIEF) as client:
        client.create_table(ITEM)
        client.pull("item", [1])
        client.end_step()
        with pytest.raises(StalenessTimeout, match=r"Step 1 waited \d+\.\d s for rank 0, which has finished 0 steps"):
            client.pull("item", [1])


def test_who_leaves_is_waited_for_no_more() -> None:
    cluster = InProcess()
    first, second = cluster.connect(0, 2, Sync()), cluster.connect(1, 2, Sync())
    first.create_table(ITEM)
    second.push("item", [1], ones(1, 2, 4.0))
    thread, outcome = in_thread(second.close)
    poll_until(lambda: all(shard.clocks.left_after for shard in cluster.shards.values()))
    assert not outcome, "it waits for the fold of its last step"
    first.push("item", [1], ones(1, 2, 2.0))
    first.end_step()
    assert first.pull("item", [1]).tolist() == [[-3, -3]]
    thread.join()
    assert outcome == [None]
    first.push("item", [1], ones(1, 2, 2.0))
    first.end_step()
    assert first.pull("item", [1]).tolist() == [[-5, -5]]  # a roster of one
    first.close()

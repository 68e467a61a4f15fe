"""A client in a job with backup workers (R9): of two ranks one makes up a step, so that the quick one alone decides all of them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from clients import ITEM, in_thread, ones
from inprocess import PATIENT, Fault, InProcess
from ps_proto.requests import Pull, Push
from ps_proto.values import Async, Sync
from ps_worker.client import Client

IDS = np.arange(30)


@contextmanager
def pair(servers: int = 2) -> Iterator[tuple[InProcess, Client, Client]]:
    """Return a cluster, its quick rank and its slow one."""
    cluster = InProcess(servers, patience=PATIENT)
    with cluster.connect(0, 2, Sync(backup_workers=1)) as quick, cluster.connect(1, 2, Sync(backup_workers=1)) as slow:
        for client in (quick, slow):
            client.create_table(ITEM)
        yield cluster, quick, slow


def go_on(quick: Client, steps: int) -> None:
    """Let the quick rank do some steps: each row goes down by one in each of them."""
    for _ in range(steps):
        quick.pull("item", IDS)
        quick.push("item", IDS, ones(30, 2))
        quick.end_step()
    quick.flush()


def test_a_step_that_was_read_and_went_by_is_late_and_counts_nowhere() -> None:
    with pair() as (cluster, quick, slow):
        slow.pull("item", IDS)
        go_on(quick, 3)
        slow.push("item", IDS, 100 * ones(30, 2))
        assert slow.pull("item", [7]).tolist() == [[-3, -3]]  # whatever rows are there
        assert (slow.clock, slow.late_steps) == (0, 0)
        slow.end_step()
        assert (slow.clock, slow.turn, slow.late_steps) == (3, 1, 1)
        assert slow.pull("item", [7]).tolist() == [[-3, -3]]
        slow.push("item", IDS, 2 * ones(30, 2))
        slow.end_step()
        slow.flush()
        assert (slow.clock, slow.turn, slow.late_steps) == (4, 2, 1)
        assert quick.pull("item", [7]).tolist() == [[-5, -5]]
        stats = cluster.shards["server-0"].counters
        assert (stats.pushes_late, stats.contributions_dropped) == (1, 0)


def test_a_step_that_is_over_ends_at_the_newest_although_nothing_was_pushed() -> None:
    with pair() as (_, quick, slow):
        slow.pull("item", IDS)
        go_on(quick, 3)
        slow.pull("item", IDS)
        slow.end_step()
        assert (slow.clock, slow.late_steps) == (3, 1)


def test_a_step_that_was_not_begun_is_left_out_and_wastes_nothing() -> None:
    with pair() as (_, quick, slow):
        go_on(quick, 5)
        assert slow.pull("item", [7]).tolist() == [[-5, -5]]
        assert (slow.clock, slow.turn) == (5, 0)
        slow.push("item", IDS, ones(30, 2))
        slow.end_step()
        slow.flush()
        assert (slow.clock, slow.late_steps) == (6, 0)
        assert quick.pull("item", [7]).tolist() == [[-6, -6]]


def test_what_was_staged_in_time_and_came_in_second_is_dropped_without_a_word() -> None:
    with pair() as (cluster, quick, slow):
        slow.pull("item", IDS)
        slow.push("item", IDS, 100 * ones(30, 2))
        go_on(quick, 1)
        slow.end_step()
        assert slow.pull("item", [7]).tolist() == [[-1, -1]]
        assert slow.late_steps == 0
        assert sum(shard.counters.contributions_dropped for shard in cluster.shards.values()) == 2


def test_a_worker_that_only_pushes_learns_that_it_is_late_from_the_answer() -> None:
    with pair() as (_, quick, slow):
        go_on(quick, 4)
        slow.push("item", IDS, 100 * ones(30, 2))
        slow.end_step()
        assert (slow.clock, slow.late_steps) == (4, 1)
        slow.push("item", IDS, ones(30, 2))
        slow.end_step()
        slow.flush()
        assert quick.pull("item", [7]).tolist() == [[-5, -5]]


def test_a_pull_for_the_turn_after_a_late_one_reads_the_newest_step() -> None:
    with pair() as (_, quick, slow):
        slow.pull("item", IDS)
        ahead, later = slow.pull_async("item", [7], turn=1), slow.pull_async("item", [7], turn=2)
        go_on(quick, 3)
        slow.push("item", IDS, ones(30, 2))
        slow.end_step()
        assert ahead.result().tolist() == [[-3, -3]]
        go_on(quick, 2)
        assert not later.done()
        slow.push("item", IDS, ones(30, 2))
        slow.end_step()
        assert later.result().tolist() == [[-5, -5]]
        assert (slow.clock, slow.turn, slow.late_steps) == (5, 2, 2)


def test_a_clock_to_come_is_counted_from_the_one_at_work() -> None:
    with pair() as (_, quick, slow):
        go_on(quick, 3)
        slow.pull("item", [7])
        handle = slow.pull_async("item", [7], clock=4)
        slow.end_step()
        assert (slow.clock, slow.turn) == (4, 1)
        assert handle.result().shape == (1, 2)


def test_two_pulls_of_one_step_are_of_one_step_though_the_first_finds_it_over() -> None:
    """The one in the lane was asked for step 0, and jumps; the other goes where it went."""
    with pair() as (_, quick, slow):
        go_on(quick, 2)
        queued = slow.pull_async("item", [7])
        assert slow.pull("item", [7]).tolist() == queued.result().tolist() == [[-2, -2]]
        assert (slow.clock, slow.late_steps) == (2, 0)


def test_an_asynchronous_table_takes_all_that_a_late_rank_pushes() -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 2, Sync(1)) as quick, cluster.connect(1, 2, Sync(1)) as slow:
        for client in (quick, slow):
            client.create_table(ITEM)
            client.create_table(type(ITEM)("free", 2, ITEM.optimizer, mode=Async()))
        slow.pull({"item": IDS, "free": IDS})
        go_on(quick, 3)
        slow.push({"item": (IDS, ones(30, 2)), "free": (IDS, ones(30, 2))})
        slow.end_step()
        assert slow.pull("free", [7, 8, 9]).tolist() == [[-1, -1]] * 3
        assert slow.late_steps == 1


def test_a_late_push_that_was_lost_on_its_way_is_repeated_and_counts_nowhere() -> None:
    with pair() as (cluster, quick, slow):
        slow.pull("item", IDS)
        go_on(quick, 2)
        cluster.faults.append(Fault(Push, "server-0:0"))  # its answer never comes
        slow.push("item", IDS, 100 * ones(30, 2))
        slow.end_step()
        assert slow.pull("item", [7]).tolist() == [[-2, -2]]
        assert slow.late_steps == 1


def test_an_export_of_a_late_rank_is_of_one_step() -> None:
    with pair() as (_, quick, slow):
        slow.pull("item", IDS)
        go_on(quick, 3)
        ids, rows = slow.export("item")
        assert ids.tolist() == IDS.tolist()
        assert rows.tolist() == [[-3, -3]] * 30
        assert slow.late_steps == 0


def test_a_late_rank_may_close() -> None:
    with pair() as (cluster, quick, slow):
        slow.pull("item", IDS)
        go_on(quick, 3)
        slow.push("item", IDS, ones(30, 2))
        slow.close()
        assert slow.late_steps == 1
        go_on(quick, 1)  # alone now
        assert quick.pull("item", [7]).tolist() == [[-4, -4]]
    assert cluster.coordinator.job is not None
    assert cluster.coordinator.job.is_over


def test_a_rank_that_is_taken_anew_goes_on_at_the_newest_step() -> None:
    with pair() as (cluster, quick, slow):
        slow.pull("item", IDS)
        go_on(quick, 4)
        with cluster.connect(1, 2) as again:
            assert again.clock == 0
            assert again.pull("item", [7]).tolist() == [[-4, -4]]
            assert (again.clock, again.late_steps) == (4, 0)
        slow.disconnect()


def test_a_barrier_meets_ranks_of_different_clocks() -> None:
    with pair() as (_, quick, slow):
        slow.pull("item", IDS)
        go_on(quick, 3)
        thread, outcome = in_thread(quick.barrier)
        slow.push("item", IDS, ones(30, 2))
        slow.end_step()
        slow.barrier()
        thread.join(10)
        assert outcome == [None]


def test_the_log_says_from_which_step_bits_depend_on_timing_and_how_often_a_rank_is_late(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rowstead")
    with pair() as (_, quick, slow):
        assert [record.message for record in caplog.records] == [
            f"Rank {rank} joined a job of backup_workers=1: from step 0 on, the weights depend on which ranks are first." for rank in (0, 1)
        ]
        caplog.clear()
        for _ in range(5):
            slow.pull("item", IDS)
            go_on(quick, 1)
            slow.push("item", IDS, ones(30, 2))
            slow.end_step()
        assert slow.late_steps == 5
        assert [record.message.split(":")[0] for record in caplog.records] == [
            f"Rank 1 was late, for the {time}. time" for time in (1, 2, 4)
        ]


def test_a_job_without_backup_workers_has_no_word_on_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rowstead")
    cluster = InProcess(2)
    with cluster.connect(0, 1, Sync()) as client:
        client.create_table(ITEM)
        go_on(client, 2)
        assert (client.clock, client.turn, client.late_steps) == (2, 2, 0)
    assert caplog.records == []
    assert {pull.fence.clock for _, pull in cluster.calls if isinstance(pull, Pull)} == {0, 1}

"""Clients that join a job which runs, and a job that goes on without one that is lost."""

import logging

import pytest

from clients import ITEM, in_thread, ones
from inprocess import PATIENT, InProcess
from polling import poll_until
from ps_proto.errors import InvalidRequest, JobMismatch, StaleIncarnation
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from ps_worker.client import Client

LEASE_S = 0.3  # of which a third is what a synchronous admission waits for
REMOVED_AFTER_S = 1.0  # so that only who is meant is lost, also on a machine that is busy


def step(client: Client, value: float = 1.0) -> None:
    client.push("item", [7], ones(1, 2, value))
    client.end_step()
    client.flush()


def joined(cluster: InProcess) -> Client:
    return cluster.connect(patience=PATIENT, join="spare")


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(5)], ids=str)
def test_one_more_worker_is_the_next_rank(mode: Mode) -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 1, mode) as first:
        first.create_table(ITEM)
        step(first)
        step(first)
        with joined(cluster) as other:
            assert (other.rank, other.world_size, other.clock, other.mode) == (1, 2, 2, mode)
            step(other)
            assert first.pull("item", [7]).tolist() == [[-3, -3]]


@pytest.mark.parametrize("backup_workers", [0, 1])
def test_the_mean_of_a_synchronous_step_is_over_one_more_rank_from_where_it_begins(backup_workers: int) -> None:
    """With a backup worker there is a rank that does nothing: until the other one joins, rank 0 is enough."""
    cluster = InProcess(2, lease_s=LEASE_S)
    mode, world_size = Sync(backup_workers), 1 + backup_workers
    last = [2**31]  # the last step that rank 0 makes, once it is known

    def train(client: Client) -> None:
        while client.pull("item", [7]).size and client.clock <= last[0]:  # the order to admit a rank travels with the end of a step
            client.push("item", [7], ones(1, 2, 2.0))
            client.end_step()

    with cluster.connect(0, world_size, mode, PATIENT) as first:
        first.create_table(ITEM)
        idle = [cluster.connect(rank, world_size, mode, PATIENT) for rank in range(1, world_size)]
        thread, failed = in_thread(lambda: train(first))
        with joined(cluster) as other:
            assert (other.rank, other.world_size, other.mode) == (world_size, world_size + 1, mode)
            begun = last[0] = other.clock
            assert begun > 0
            step(other, 4.0)
            thread.join()
            assert failed == [None]
            assert other.pull("item", [7]).tolist() == [[-2.0 * begun - 3.0] * 2]
            assert [client.clock for client in idle] == [0] * backup_workers
        for client in idle:
            client.disconnect()


def test_nobody_joins_a_job_that_does_not_run() -> None:
    with pytest.raises(InvalidRequest, match="no job runs"):
        joined(InProcess(1))


def test_who_joins_may_not_ask_for_another_mode() -> None:
    cluster = InProcess(1)
    with cluster.connect(0, 1, Async()), pytest.raises(JobMismatch):
        cluster.connect(None, None, Sync(), join="spare")


@pytest.mark.parametrize("mode", [Sync(), BoundedStaleness(1)], ids=str)
def test_a_job_goes_on_without_a_worker_that_is_lost_where_it_wants_that(mode: Mode) -> None:
    cluster = InProcess(2, lease_s=REMOVED_AFTER_S)
    with cluster.connect(0, 2, mode, PATIENT, on_lost_worker="continue") as first:
        lost = cluster.connect(1, 2, mode, PATIENT, on_lost_worker="continue")
        first.create_table(ITEM)
        lost.disconnect()
        for _ in range(3):
            step(first)
        assert first.pull("item", [7]).tolist() == [[-3, -3]]  # of the mean over those that are left


def test_the_first_fixes_what_is_done_about_lost_workers() -> None:
    cluster = InProcess(1)
    with cluster.connect(0, 2, Async(), on_lost_worker="continue"):
        with pytest.raises(JobMismatch, match="on_lost_worker 'continue', but this worker asks for 'wait'"):
            cluster.connect(1, 2, Async(), on_lost_worker="wait")
        cluster.connect(1, 2, Async()).close()


def test_a_worker_that_was_removed_and_lives_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    cluster = InProcess(2, lease_s=REMOVED_AFTER_S)
    with (
        caplog.at_level(logging.WARNING, "rowstead"),
        cluster.connect(0, 2, Async(), PATIENT, on_lost_worker="continue") as first,
        cluster.connect(1, 2, Async(), PATIENT) as stopped,
    ):
        first.create_table(ITEM)
        stopped.connection._lease.stop()  # type: ignore[union-attr]  # as if the process were
        poll_until(lambda: first.stats() is not None and 1 not in cluster.coordinator.job.ranks)  # type: ignore[union-attr]
        with pytest.raises(StaleIncarnation):
            stopped.push("item", [7], ones(1, 2))
        stopped.disconnect()

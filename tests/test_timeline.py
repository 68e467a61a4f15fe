"""The launcher's look at which timeline the cluster is in."""

import time
from collections.abc import Iterator

import pytest

from polling import poll_until
from ps_proto.errors import Unreachable
from ps_proto.requests import Cluster, GetCluster
from ps_worker.launch import timeline
from ps_worker.launch.timeline import TimelineWatch


class Coordinator:
    """Answers as it is told; it is also the transport that reaches it."""

    def __init__(self) -> None:
        self.timeline: int | None = 0  # None: it is away
        self.world_size = 0
        self.left: tuple[int, ...] = ()
        self.job = 0
        self.missed: tuple[int, ...] = ()
        self.asked = 0
        self.is_closed = False

    def call(self, address: str, body: GetCluster, timeout_s: float) -> Cluster:
        self.asked += 1
        if self.timeline is None:
            raise Unreachable("the coordinator", address, timeout_s, "away")
        return Cluster(1, None, timeline=self.timeline, world_size=self.world_size, left=self.left, job=self.job, missed=self.missed)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    played = Coordinator()
    monkeypatch.setattr(timeline, "GrpcTransport", lambda: played)
    monkeypatch.setattr(timeline, "POLL_S", 0.01)
    yield played
    assert played.is_closed


def test_it_is_known_at_once_and_then_again_and_again(coordinator: Coordinator) -> None:
    coordinator.timeline = 4
    with TimelineWatch("address") as watch:
        assert watch.timeline == 4
        coordinator.timeline = 5
        poll_until(lambda: watch.timeline == 5)


def test_what_was_known_stays_while_the_coordinator_is_away_and_gets_old(coordinator: Coordinator) -> None:
    with TimelineWatch("address") as watch:
        coordinator.timeline = 2
        poll_until(lambda: watch.timeline == 2)
        coordinator.timeline = None
        asked = coordinator.asked
        poll_until(lambda: coordinator.asked > asked + 1)
        now_s = time.monotonic()
        asked = coordinator.asked
        poll_until(lambda: coordinator.asked > asked + 1)
        assert (watch.timeline, watch.is_as_of(now_s)) == (2, False)
        coordinator.timeline = 3
        poll_until(lambda: watch.is_as_of(now_s))
        assert watch.timeline == 3


def test_after_a_rollback_a_rank_has_left_where_the_job_says_so(coordinator: Coordinator) -> None:
    with TimelineWatch("address") as watch:
        assert watch.has_left(0, 0)
        coordinator.timeline, coordinator.world_size, coordinator.left = 1, 3, (1,)
        poll_until(lambda: watch.timeline == 1)
        assert [watch.has_left(rank, 0) for rank in range(3)] == [False, True, False]
        assert [watch.has_left(rank, 1) for rank in range(3)] == [True, True, True]
        assert [watch.is_out(rank) for rank in range(3)] == [False, True, False]
        coordinator.world_size = 0  # all have left
        poll_until(lambda: watch.has_left(0, 0))


def test_a_coordinator_that_is_away_at_first_is_no_error(coordinator: Coordinator) -> None:
    coordinator.timeline = None
    with TimelineWatch("address") as watch:
        assert (watch.timeline, watch.is_as_of(0.0)) == (0, True)


def test_which_job_runs_and_who_was_missed_at_its_end_is_told(coordinator: Coordinator) -> None:
    with TimelineWatch("address") as watch:
        assert (watch.job, watch.is_missed(1)) == (0, False)
        coordinator.job, coordinator.missed = 3, (1,)
        poll_until(lambda: watch.job == 3)
        assert [watch.is_missed(rank) for rank in (0, 1)] == [False, True]

"""When a worker of a launched job has ended for good, and when it begins again."""

import pytest

from ps_worker.child import ProcessEnded
from ps_worker.launch.launched_worker import KNOW_S, LaunchedWorker
from watched import Process, Watch


class Job:
    """A worker, its processes and the cluster's timeline."""

    def __init__(self, max_restarts: int) -> None:
        self.watch = Watch()
        self.starts: list[Process] = []
        self.jobs: list[int] = []  # which job each was to take part in
        self.said: list[str] = []
        self.worker = LaunchedWorker(0, self.start, max_restarts, self.watch, self.said.append)  # type: ignore[arg-type]  # stand-ins
        self.worker.post.fill()

    def start(self, job: int) -> Process:
        self.jobs.append(job)
        process = Process(len(self.starts))
        self.starts.append(process)
        return process

    def end(self, code: int, now_s: float) -> bool:
        """Let the present process end, and let the coordinator be asked after that."""
        self.starts[-1].code = code
        is_done = self.worker.tend(now_s)
        self.watch.asked_s = now_s
        return is_done


def test_a_worker_that_ends_well_has_ended() -> None:
    job = Job(3)
    assert not job.worker.tend(0.0)
    assert job.end(0, 1.0)
    assert job.worker.tend(2.0)
    assert len(job.starts) == 1


def test_a_worker_that_fails_is_started_again_within_its_budget() -> None:
    job = Job(1)
    job.end(7, 1.0)
    assert not job.worker.tend(1.1)
    assert not job.worker.tend(1.7)
    assert len(job.starts) == 2
    job.end(8, 2.0)
    with pytest.raises(ProcessEnded, match="exit code 8"):
        job.worker.tend(2.1)


def test_without_a_budget_a_failure_is_told_at_once() -> None:
    job = Job(0)
    with pytest.raises(ProcessEnded, match="exit code 7"):
        job.end(7, 1.0)


def test_ends_that_a_rollback_caused_cost_nothing() -> None:
    job = Job(1)
    for number in range(1, 6):
        job.watch.timeline = number
        job.end(1, 10.0 * number)
        assert not job.worker.tend(10.0 * number + 1)
        assert not job.worker.tend(10.0 * number + 2)
        assert len(job.starts) == number + 1
    assert all("the servers went back to a checkpoint" in said for said in job.said[::2])


def test_an_end_waits_for_what_the_coordinator_says_after_it() -> None:
    job = Job(1)
    job.starts[-1].code = 1
    for now_s in (1.0, 2.0, 5.0):
        assert not job.worker.tend(now_s)
    assert job.said == []
    job.watch.timeline, job.watch.asked_s = 1, 5.0
    job.worker.tend(5.1)
    assert "the servers went back" in job.said[0]


def test_a_coordinator_that_says_nothing_is_not_waited_for_for_ever() -> None:
    job = Job(1)
    job.starts[-1].code = 1
    job.worker.tend(1.0)
    job.worker.tend(1.0 + KNOW_S)
    assert "1 of 1 restarts" in job.said[0]


def test_a_worker_that_had_ended_well_begins_again_after_a_rollback() -> None:
    job = Job(1)
    assert job.end(0, 1.0)
    job.watch.timeline, job.watch.asked_s = 1, 5.0
    assert not job.worker.tend(4.0)
    assert not job.worker.tend(5.0)
    assert len(job.starts) == 2
    assert job.end(0, 6.0)  # in the timeline that is
    assert job.worker.tend(7.0)
    assert len(job.starts) == 2


def test_a_worker_that_has_left_the_job_since_the_rollback_has_ended() -> None:
    job = Job(1)
    job.watch.timeline, job.watch.left = 1, {0}  # it was started just before, and joined after
    assert job.end(0, 1.0)
    job.watch.timeline, job.watch.left, job.watch.asked_s = 2, set(), 5.0
    assert not job.worker.tend(4.0)
    assert not job.worker.tend(5.0)
    assert len(job.starts) == 2


def test_a_worker_that_is_killed_after_it_has_left_the_job_is_not_started_again() -> None:
    """Where it was the last one, it would begin another job, and train all of it once more."""
    job = Job(3)
    assert not job.end(137, 1.0)  # not before the coordinator was asked
    job.watch.left = {0}
    for _ in range(2):
        assert job.worker.tend(1.1)
    assert job.said == ["worker-0 ended with exit code 137, after it had left the job: it is not started again."]
    assert len(job.starts) == 1
    with pytest.raises(ProcessEnded, match="exit code 137"):
        job.worker.check()


def test_a_worker_that_had_left_and_has_to_run_again_after_a_rollback_may_fail() -> None:
    job = Job(1)
    job.watch.left = {0}
    job.end(137, 1.0)
    assert job.worker.tend(1.1)
    job.watch.timeline, job.watch.left = 1, set()
    job.watch.asked_s = 2.0
    assert not job.worker.tend(2.0)
    assert not job.worker.tend(3.0)
    assert len(job.starts) == 2


def test_a_rank_that_had_left_another_job_before_is_in_this_one() -> None:
    job = Job(1)
    job.watch.left = {0}  # as where a cluster begins with the checkpoint of a job that was over
    job.worker.post.fill()
    job.end(1, 1.0)
    assert not job.worker.tend(1.1)
    assert not job.worker.tend(2.0)
    assert len(job.starts) == 3


def test_a_worker_that_was_started_in_a_timeline_has_its_own_ends_counted_there() -> None:
    job = Job(1)
    job.watch.timeline = 4
    job.end(1, 1.0)
    job.worker.tend(1.1)
    job.worker.tend(2.0)
    job.end(1, 3.0)
    job.worker.tend(3.1)
    assert "1 of 1 restarts" in job.said[-1]


def test_a_worker_that_is_started_again_is_to_go_on_in_the_job_that_runs() -> None:
    job = Job(2)
    assert job.jobs == [0]  # it may begin one
    job.watch.job = 4
    job.end(1, 1.0)
    job.worker.tend(1.1)
    job.worker.tend(2.0)
    assert job.jobs == [0, 4]


def test_a_worker_that_its_job_has_ended_without_is_not_started_again_and_fails_nothing() -> None:
    job = Job(3)
    assert not job.end(1, 1.0)  # not before the coordinator was asked
    job.watch.missed = {0}
    for _ in range(2):
        assert job.worker.tend(1.1)
    assert job.said == ["worker-0 ended with exit code 1, after its job had ended without it: it is not started again."]
    job.worker.check()
    job.watch.missed = set()  # the script of the others begins another job, which it is a part of
    job.worker.tend(1.2)
    job.worker.tend(2.0)
    assert len(job.starts) == 2


def test_without_a_budget_a_worker_that_its_job_has_ended_without_fails_it_too() -> None:
    job = Job(0)
    job.watch.missed = {0}
    with pytest.raises(ProcessEnded, match="exit code 7"):
        job.end(7, 1.0)

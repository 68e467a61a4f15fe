"""When a launched job has ended for good, also where a server dies at its end."""

import pytest

from ps_worker.launch.job_end import JobEnd
from ps_worker.launch.launched_worker import KNOW_S, LaunchedWorker
from watched import Process, Watch


class Last:
    """A last checkpoint whose end is set by hand."""

    def __init__(self) -> None:
        self.said, self.said_s = "", 0.0
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class HearsBetween(Watch):
    """One that hears of a rollback right after it has been asked of a worker, or of when it was told."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = ""
        self._awaited = method

    def arm(self) -> None:
        self.method = self._awaited

    def is_as_of(self, now_s: float) -> bool:
        answer = super().is_as_of(now_s)
        self._hear("is_as_of")
        return answer

    def has_left(self, rank: int, timeline: int) -> bool:
        answer = super().has_left(rank, timeline)
        self._hear("has_left")
        return answer

    def _hear(self, method: str) -> None:
        if self.method == method:
            self.timeline, self.asked_s = 1, 100.0


class Ending:
    """A job with one worker that has ended well, at a time that stands still."""

    def __init__(self, watch: Watch, has_checkpoints: bool = True) -> None:
        self.watch = watch
        self.now_s = 10.0
        self.asked: list[Last] = []
        self.starts: list[Process] = []
        worker = LaunchedWorker(0, self._start, 3, watch, lambda said: None)  # type: ignore[arg-type]  # stand-ins
        worker.post.fill()
        self.end = JobEnd([worker], watch, self._ask if has_checkpoints else None)  # type: ignore[arg-type]  # stand-ins
        assert not self.has_come()
        assert self.asked == []
        self.starts[0].code = 0

    def has_come(self) -> bool:
        return self.end.has_come(self.now_s)

    def save(self, said_s: float) -> None:
        """Let the last checkpoint end."""
        self.asked[-1].said, self.asked[-1].said_s = "It is saved.", said_s

    def _start(self, job: int) -> Process:
        self.starts.append(Process(len(self.starts)))
        return self.starts[-1]

    def _ask(self) -> Last:
        self.asked.append(Last())
        return self.asked[-1]


def test_without_checkpoints_a_job_has_ended_with_its_workers() -> None:
    ending = Ending(Watch(), has_checkpoints=False)
    assert ending.has_come()
    assert (ending.asked, ending.end.said) == ([], "")


def test_a_job_has_ended_once_its_last_checkpoint_has() -> None:
    ending = Ending(Watch())
    for _ in range(2):
        assert not ending.has_come()
    assert len(ending.asked) == 1
    ending.save(11.0)
    ending.watch.asked_s = 11.0
    assert ending.has_come()
    assert ending.end.said == "It is saved."


def test_a_checkpoint_that_was_taken_after_a_rollback_which_nobody_knows_of_yet_ends_no_job() -> None:
    """A server died once the workers had ended: the checkpoint is one of the step that all servers went back to."""
    ending = Ending(Watch())
    assert not ending.has_come()
    ending.watch.asked_s = 10.9  # just before it ended
    ending.save(11.0)
    assert not ending.has_come()  # the timeline is believed from 11.0 on
    ending.watch.timeline, ending.watch.asked_s = 1, 11.2
    assert not ending.has_come()
    assert ending.asked[0].is_closed  # it is of no job's end
    assert not ending.has_come()
    assert len(ending.starts) == 2
    ending.starts[1].code = 0
    assert not ending.has_come()
    ending.save(12.0)
    ending.watch.asked_s = 12.1
    assert ending.has_come()
    assert len(ending.asked) == 2


@pytest.mark.parametrize("method", ["is_as_of", "has_left"])
def test_a_rollback_that_is_heard_of_while_the_workers_are_looked_at_ends_no_job(method: str) -> None:
    watch = HearsBetween(method)
    ending = Ending(watch)
    assert not ending.has_come()
    ending.save(11.0)
    watch.arm()
    assert not ending.has_come()
    assert watch.timeline == 1
    for _ in range(2):
        assert not ending.has_come()
    assert len(ending.starts) == 2


def test_a_coordinator_that_says_nothing_is_not_waited_for_for_ever() -> None:
    ending = Ending(Watch())
    assert not ending.has_come()
    ending.save(11.0)
    ending.now_s = 11.0 + KNOW_S - 0.1
    assert not ending.has_come()
    ending.now_s = 11.0 + KNOW_S
    assert ending.has_come()


def test_it_asks_no_longer_once_it_is_closed() -> None:
    ending = Ending(Watch())
    assert not ending.has_come()
    ending.end.close()
    assert ending.asked[0].is_closed


def test_a_worker_that_the_job_has_ended_without_is_not_waited_for() -> None:
    ending = Ending(Watch(), has_checkpoints=False)
    ending.starts[0].code = None
    assert not ending.has_come()
    ending.watch.missed = {0}
    assert ending.has_come()

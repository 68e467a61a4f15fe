"""A worker of a launched job, and when it is started again."""

from collections.abc import Callable

from ps_worker.child import Child
from ps_worker.launch.timeline import TimelineWatch
from ps_worker.post import Post
from ps_worker.restarts import Restarts

KNOW_S = 10.0  # how long an end waits for the coordinator to say whether the timeline has grown
WENT_BACK = "the servers went back to a checkpoint"


class LaunchedWorker:
    """Runs the worker of `rank` until it has ended well, in the timeline that the cluster is in.

    A server that died without a copy takes all servers back to a checkpoint, so their timeline grows: workers end with RolledBack and have
    to begin again there, which is not held against them, and so has one that had left the job since: what it pushed is undone.

    One that fails after it has left the job is not started again: its rank is out of it, and where it was the last one, all that it does
    would begin another job. The others go on. Nor is one that its job has ended without: it was lost, and on_lost_worker is "continue".
    One that is started again is to go on in the job that runs then, and to begin no other.
    """

    def __init__(
        self, rank: int, start: Callable[[int], Child], max_restarts: int, watch: TimelineWatch, say: Callable[[str], None]
    ) -> None:
        """`start` is told the number of the only job to take part in; 0: any."""
        self._rank = rank
        self._start = start
        self._was_started = False
        self._max_restarts = max_restarts
        self._watch = watch
        self._timeline = 0  # in which it was started
        self._was_out = False  # its rank, when it was started: that was another job's end
        self._has_failed_outside = False
        self._say = say
        self._ended_s: float | None = None
        self.post = Post(name_of(rank), self._start_in_timeline, Restarts(max_restarts), say)

    def tend(self, now_s: float) -> bool:
        """Return whether it has ended for good; start it again where it has not. Raises ProcessEnded where it failed too often.

        One that has ended for good may have failed all the same, after it had left the job: `check` says so.
        """
        code = self.post.child.poll()
        if code is None:
            return False
        if code == 0 and self._watch.has_left(self._rank, self._timeline):
            return True
        if self._ended_s is None:
            self._ended_s = now_s
        is_known = self._watch.is_as_of(self._ended_s) or now_s >= self._ended_s + KNOW_S
        if code != 0 and is_known and self._max_restarts > 0 and (why := self._why_outside()):
            if not self._has_failed_outside:
                self._has_failed_outside = True
                self._say(f"{self.post.name} {self.post.child.how_it_ended()}, after {why}: it is not started again.")
            return True
        if self._max_restarts == 0 or is_known:
            self.post.tend(now_s, WENT_BACK if self._watch.timeline > self._timeline else "")
        return False

    @property
    def is_missed(self) -> bool:
        """Whether the job has ended without it."""
        return self._watch.is_missed(self._rank)

    def check(self) -> None:
        """Raise ProcessEnded where it has failed, unless the job has ended without it."""
        if not self.is_missed and self.post.child.poll() != 0:
            self.post.child.check()

    def _why_outside(self) -> str:
        """Return what has happened by which there is nothing left for it to do; "" where there is."""
        if self.is_missed:
            return "its job had ended without it"
        return "it had left the job" if self._watch.is_out(self._rank) and not self._was_out else ""

    def _start_in_timeline(self) -> Child:
        self._timeline, self._ended_s = self._watch.timeline, None
        self._was_out, self._has_failed_outside = self._watch.is_out(self._rank), False
        job = self._watch.job if self._was_started else 0  # the first start is for a job that it may begin
        self._was_started = True
        return self._start(job)


def name_of(rank: int) -> str:
    """Return the name of a rank's process."""
    return f"worker-{rank}"

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
    """

    def __init__(self, rank: int, start: Callable[[], Child], max_restarts: int, watch: TimelineWatch, say: Callable[[str], None]) -> None:
        self._rank = rank
        self._start = start
        self._max_restarts = max_restarts
        self._watch = watch
        self._timeline = 0  # in which it was started
        self._ended_s: float | None = None
        self.post = Post(name_of(rank), self._start_in_timeline, Restarts(max_restarts), say)

    def tend(self, now_s: float) -> bool:
        """Return whether it has ended for good; start it again where it has not. Raises ProcessEnded where it failed too often."""
        code = self.post.child.poll()
        if code is None:
            return False
        if code == 0 and self._watch.has_left(self._rank, self._timeline):
            return True
        if self._ended_s is None:
            self._ended_s = now_s
        is_known = self._watch.is_as_of(self._ended_s) or now_s >= self._ended_s + KNOW_S
        if self._max_restarts == 0 or is_known:
            self.post.tend(now_s, WENT_BACK if self._watch.timeline > self._timeline else "")
        return False

    def _start_in_timeline(self) -> Child:
        self._timeline, self._ended_s = self._watch.timeline, None
        return self._start()


def name_of(rank: int) -> str:
    """Return the name of a rank's process."""
    return f"worker-{rank}"

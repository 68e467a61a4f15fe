"""When a launched job has ended for good."""

from collections.abc import Callable, Sequence

from ps_worker.launch.last_checkpoint import LastCheckpoint
from ps_worker.launch.launched_worker import KNOW_S, LaunchedWorker
from ps_worker.launch.timeline import TimelineWatch


class JobEnd:
    """Tends a job's workers until all have ended well and, where `ask` is given, the last checkpoint is complete.

    A worker without which the job has ended is not waited for: it may be stopped for good.

    `ask` begins to ask for that checkpoint, once the workers have ended; it is given up where one of them has to run again.
    """

    def __init__(self, workers: Sequence[LaunchedWorker], watch: TimelineWatch, ask: Callable[[], LastCheckpoint] | None) -> None:
        self._workers = workers
        self._watch = watch
        self._ask = ask
        self._last: LastCheckpoint | None = None

    @property
    def said(self) -> str:
        """What came of the last checkpoint, as a sentence; "" where there is none, or none yet."""
        return self._last.said if self._last is not None else ""

    def has_come(self, now_s: float) -> bool:
        """Return whether the job has ended; start workers again that have to. `now_s`: monotonic time.

        Raises ProcessEnded for one that failed too often.

        A server may die once the workers have ended. Then all servers go back, the last checkpoint is taken where they went back to, and
        the workers have to run again: what they are told of that must be as of the checkpoint's end or later, and be looked at after that.
        """
        is_saved = self._ask is None or self._is_saved(now_s)  # ahead of the workers
        have_ended = all([worker.tend(now_s) or worker.is_missed for worker in self._workers])  # each one, so a list
        if not have_ended:
            self.close()
        elif self._ask is not None and self._last is None:
            self._last = self._ask()
        return have_ended and is_saved

    def close(self) -> None:
        """Ask for the last checkpoint no longer."""
        if self._last is not None:
            self._last.close()
            self._last = None

    def _is_saved(self, now_s: float) -> bool:
        last = self._last
        if last is None or not last.said:
            return False
        return self._watch.is_as_of(last.said_s) or now_s >= last.said_s + KNOW_S

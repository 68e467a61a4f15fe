"""A name under which one process runs, and after its end another."""

from collections.abc import Callable

from ps_worker.child import Child
from ps_worker.restarts import Restarts


class Post:
    """The process `name`, which `start` begins, the first time and each time after it has ended.

    `say` is told of each end and each new start. One thread at a time may call fill() and tend().
    """

    def __init__(self, name: str, start: Callable[[], Child], restarts: Restarts, say: Callable[[str], None]) -> None:
        self.name = name
        self._start = start
        self._restarts = restarts
        self._say = say
        self._child: Child | None = None
        self._due_s: float | None = None  # when what has ended is started again

    @property
    def child(self) -> Child:
        """The process that runs, or ran last; there is one once fill() has returned."""
        assert self._child is not None
        return self._child

    def fill(self) -> None:
        """Start the first process."""
        self._child = self._start()

    def tend(self, now_s: float, free_because: str = "") -> None:
        """Start the next process if the last one has ended, once its pause is over.

        `now_s`  monotonic time.     `free_because`  a sentence that says why this end is not held against it, as is one that is empty.
        Raises ProcessEnded where it has been started again as often as it may be.
        """
        how = self.child.how_it_ended()
        if how is None:
            return
        if self._due_s is None:
            pause_s = self._restarts.pause_s(is_free=bool(free_because))
            if pause_s is None:
                self.child.check()
                return
            self._due_s = now_s + pause_s
            why = free_because or f"{self._restarts.spent} of {self._restarts.most} restarts"
            when = f"in {pause_s:g} s" if pause_s else "at once"
            self._say(f"{self.name} {how}; it is started again {when} ({why}).")
        elif now_s >= self._due_s:
            self._due_s = None
            self.fill()
            self._say(f"{self.name} runs again as process {self.child.pid}.")

    def signal(self, number: int) -> None:
        """Send the process a signal, where one was started."""
        if self._child is not None:
            self._child.signal(number)

    def kill(self) -> None:
        """Kill the process, where one was started, and all that it started, without waiting."""
        if self._child is not None:
            self._child.kill()

    def wait_or_kill(self, timeout_s: float) -> None:
        """Wait for the end of the process, where one was started; kill it after `timeout_s`."""
        if self._child is not None:
            self._child.wait_or_kill(timeout_s)

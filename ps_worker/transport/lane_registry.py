"""All connections of a transport, until both sides are done with them: what a call has lent stays lent until then."""

import threading

from ps_worker.transport.lane import Lane


class LaneRegistry:
    """Keeps every lane from its opening to its end. A lane is ended by `end`, all of them by `close`."""

    def __init__(self) -> None:
        self.is_closed = False
        self._lock = threading.Lock()  # guards the two below
        self._lanes: set[Lane] = set()
        self._ending: set[Lane] = set()  # ended here; their servers may not have seen it

    def add(self, lane: Lane) -> None:
        """Keep a lane that was opened."""
        with self._lock:
            self._lanes.add(lane)
            if self.is_closed:
                lane.interrupt()

    def end(self, lane: Lane) -> None:
        """End a lane that no call uses any more."""
        lane.give_up()
        with self._lock:
            self._ending.add(lane)
        self.sweep()

    def sweep(self) -> None:
        """Let go of the lanes that have ended on both sides, and of those that have lent nothing."""
        if not self._ending:
            return
        with self._lock:
            over = {lane for lane in self._ending if not lane.has_lent or lane.has_ended()}
            self._ending -= over
            self._lanes -= over
        for lane in over:
            lane.close()

    def close(self) -> None:
        """End what is under way in other threads, and let nothing new begin."""
        with self._lock:
            self.is_closed = True
            for lane in self._lanes:
                lane.interrupt()
        self.sweep()

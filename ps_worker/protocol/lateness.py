"""Being late in a job with backup workers: steps are decided by whoever is first, and this rank may find that one is over (R9).

nothing of the step read or pushed yet      the worker goes on at the newest step at once: nothing is wasted, nothing is of two steps
else                                        the step is late: it goes on with whatever rows there are, but none of its gradients count,
                                            and its end brings the worker to the newest step
"""

from ps_worker.protocol.view import View


class Lateness:
    """What this worker has read and pushed in the step at work, and how far the servers are known to be."""

    def __init__(self, view: View) -> None:
        self.has_read = False  # rows of a synchronous table, in this step
        self.has_pushed = False  # in this step
        self.is_late = False
        self.late_steps = 0
        self._newest = 0  # the newest step that a server was seen at, where the step at work is late
        self._view = view

    def saw_late(self, clock: int, step: int) -> None:
        """Note that a server is at `step` already, of what was done for the step at work, `clock`."""
        if clock == self._view.clock and step > clock:
            self.is_late = True
            self._newest = max(self._newest, step)

    def may_skip(self) -> bool:
        """Return whether the step at work may be left out: it is not late yet, and nothing in it is wasted by that."""
        return not (self.has_read or self.has_pushed or self.is_late)

    def skip_to(self, step: int) -> None:
        """Make `step`, which is a later one, the step at work."""
        self._view.skipped += step - self._view.clock

    def end_step(self) -> bool:
        """Begin the next step, after a late one the newest; return whether it was late."""
        was_late = self.is_late
        self.late_steps += was_late
        self._view.turn += 1
        if was_late:
            self.skip_to(max(self._view.clock, self._newest))
        self.has_read = self.has_pushed = self.is_late = False
        return was_late

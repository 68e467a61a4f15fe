"""The barriers at which a script's ranks wait for each other, as one rank asks for them."""

from concurrent.futures import Future
from typing import NamedTuple

from ps_worker.connection import Connection
from ps_worker.driver import Handle
from ps_worker.resume.replay import Replay


class BarriersAsked(NamedTuple):
    """next_one  the number of the next barrier that this rank asks for.     passed  how many it has passed: it may wait at the last ones.

    owed  the values that it brings to those from `next_one` on, to which a worker started again comes at once.
    """

    next_one: int
    passed: int
    owed: tuple[int, ...] = ()


class Meeting:
    """Asks for barriers, and says in the resume state where a worker that is started again would not come to them by itself.

    replay   what of the script's calls is done already: barriers, too.
    """

    def __init__(self, connection: Connection) -> None:
        self.replay = Replay()
        self._worker, self._capture = connection.worker, connection.capture
        self._run = connection.run
        self._lane, self._pushes = connection.barriers, connection.pushes
        self._told, self._told_at = 0, 0  # how many barriers the state tells of that are yet to come in this step
        self._owed: tuple[int, ...] = ()  # their values, while it is captured

    def wait(self) -> None:
        """Wait at the script's next barrier, unless it was passed before."""
        self._tell_one(0)
        self._capture.mark()
        if self.replay.passes_barrier():
            return
        self._announce()
        self._lane.run(self._worker.barrier())

    def agree_async(self, value: int, number: int | None) -> Handle[int]:
        """Queue a barrier to which this rank brings a value. `number`: of one that the worker before this one asked for."""
        self._tell_one(value)
        self._capture.mark()  # the others may have to hear of the step before to come there
        handle: Handle[int] = Handle(Future(), self._announce)
        return self._lane.submit(self._worker.barrier(value, number), handle=handle)

    def _announce(self) -> None:
        """Tell the servers of the step before: who is yet to come may read the next one first, to evaluate, or to be started again."""
        self._pushes.run(self._worker.announce())

    @property
    def asked(self) -> BarriersAsked:
        """Which barriers this rank has asked for."""
        return BarriersAsked(self._worker.next_barrier, self._worker.passed_barriers, self._owed)

    def tell(self, values: tuple[int, ...]) -> None:
        """Say before barriers to which this rank brings these values, in the turn of a loop whose step is made, that it is to come to them.

        A worker that is started again begins with the next turn, while the others stand at these barriers: it comes to them then. Elsewhere
        there is nothing to say, since its script comes to them again.
        """
        self._told, self._told_at = 0, self._worker.clock
        if self._capture.is_on and self.replay.is_behind_step:
            self._lane.wait()  # what was agreed upon before stands then
            self._owed = values
            try:
                if not self._capture.mark():
                    self._pushes.run(self._worker.say_again(self._capture.capture()))
            finally:
                self._owed = ()
            self._told = len(values)

    def _tell_one(self, value: int) -> None:
        """Do so before one barrier, unless it was told of together with one before it."""
        if not self._told or self._told_at != self._worker.clock:
            self.tell((value,))
        self._told = max(0, self._told - 1)

    def follow(self, replay: Replay, asked: BarriersAsked | None) -> None:
        """Leave out what `replay` says that the worker before this one did, and go on with the barriers that it asked for."""
        self.replay = replay
        if asked is not None:
            self._run(self._worker.resume_barriers(asked.next_one, asked.passed))
            for value in asked.owed:
                self._lane.submit(self._worker.barrier(value))

"""The barriers at which a script's ranks wait for each other, as one rank asks for them."""

from concurrent.futures import Future

from ps_worker.connection import Connection
from ps_worker.driver import Handle
from ps_worker.protocol import BarriersAsked
from ps_worker.resume.replay import Replay


class Meeting:
    """Asks for barriers, and says to which turn of the script's loop one belongs: a worker started again behind it does not come to it.

    replay   what of the script's calls is done already: barriers, too.
    """

    def __init__(self, connection: Connection) -> None:
        self.replay = Replay()
        self._worker, self._capture = connection.worker, connection.capture
        self._run = connection.run
        self._lane, self._pushes = connection.barriers, connection.pushes

    def wait(self) -> None:
        """Wait at the script's next barrier, unless it was passed before."""
        self._capture.mark()
        if self.replay.passes_barrier():
            return
        self._announce()
        self._lane.run(self._worker.barrier(turn=self._turn))

    def agree_async(self, value: int, number: int | None) -> Handle[int]:
        """Queue a barrier to which this rank brings a value. `number`: of one that the worker before this one asked for."""
        self._capture.mark()  # the others may have to hear of the step before to come there
        handle: Handle[int] = Handle(Future(), self._announce)
        return self._lane.submit(self._worker.barrier(value, number, self._turn), handle=handle)

    def _announce(self) -> None:
        """Tell the servers of the step before: who is yet to come may read the next one first, to evaluate, or to be started again."""
        self._pushes.run(self._worker.announce())

    @property
    def _turn(self) -> int:
        """The clock, in the turn of a loop whose step is made: started again, the script begins with the next turn. Else 0."""
        return self._worker.clock if self.replay.is_behind_step else 0

    @property
    def asked(self) -> BarriersAsked:
        """Which barriers this rank has asked for, and from which on it skips some if it is started again as it is now."""
        return self._worker.barriers_behind(self._turn)

    def follow(self, replay: Replay, asked: BarriersAsked | None) -> None:
        """Leave out what `replay` says that the worker before this one did, and go on with the barriers that it asked for."""
        self.replay = replay
        if asked is not None:
            self._run(self._worker.resume_barriers(asked))

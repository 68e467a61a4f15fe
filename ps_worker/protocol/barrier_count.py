"""How a rank counts the barriers that it asks for, and what a worker that is started again goes on with (R15).

Barriers meet by their numbers: all ranks ask for the same ones in the same order. A worker that goes on behind a turn of its loop never
comes to that turn's barriers, and cannot know how many there were. It counts on as if there were none, says which turn it skipped, and
hears with its next barrier by how much the job's number is higher than its own.
"""

from contextlib import AbstractContextManager
from typing import NamedTuple

from ps_proto.requests import SkippedTurn


class BarriersAsked(NamedTuple):
    """Which barriers a rank has asked for, by its own numbers; plain data.

    next_one  the next that it asks for.     passed  how many it has passed: it may wait at the last ones.
    known     how many it knows to have skipped: by so much the job's numbers are higher.
    skipped   (first, turn) of the turns that it skipped otherwise: their barriers would be its `first` one and those behind it.
    """

    next_one: int = 0
    passed: int = 0
    known: int = 0
    skipped: tuple[tuple[int, int], ...] = ()


class BarrierCount:
    """The count of one rank. asked: so far.

    A barrier is passed in the thread of its lane, while the one that trains may ask for the next: `exclusive` keeps the two apart.
    """

    def __init__(self, exclusive: AbstractContextManager[object]) -> None:
        self.asked = BarriersAsked()
        self._exclusive = exclusive

    def begin(self, next_one: int) -> None:
        """Begin behind the barriers that the job has passed."""
        self.asked = BarriersAsked(next_one, next_one)

    def go_on(self, asked: BarriersAsked) -> None:
        """Count on from where the worker before this one was."""
        self.asked = asked

    def behind(self, turn: int) -> BarriersAsked:
        """Return what a worker goes on with that begins behind this turn, whose first barrier is yet to come; 0: not behind any."""
        asked = self.asked
        return asked._replace(skipped=(*asked.skipped, (asked.next_one, turn))) if turn else asked

    def take(self) -> int:
        """Return the number of the next barrier, which is asked for now."""
        with self._exclusive:
            number = self.asked.next_one
            self.asked = self.asked._replace(next_one=number + 1)
            return number

    def give_back(self, number: int) -> None:
        """Take back one that failed, and with it those behind it."""
        with self._exclusive:
            self.asked = self.asked._replace(next_one=min(self.asked.next_one, number))

    def generation(self, number: int) -> int:
        """Return the job's number of a barrier, as far as this rank knows."""
        return number + self.asked.known

    @property
    def skipped(self) -> tuple[SkippedTurn, ...]:
        """The turns whose barriers are not counted, in the numbers that `generation` gives."""
        return tuple([SkippedTurn(self.generation(first), turn) for first, turn in self.asked.skipped])

    def was_passed(self, number: int, generation: int) -> None:
        """Note that the rank has passed a barrier, the job's number of which is `generation`."""
        with self._exclusive:
            asked = self.asked
            later = tuple([(first, turn) for first, turn in asked.skipped if first > number])
            known = generation - number if len(later) < len(asked.skipped) else asked.known
            self.asked = BarriersAsked(asked.next_one, max(asked.passed, number + 1), known, later)

"""Where a rank stands among the job's barriers."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from ps_proto.requests import SkippedTurn


@dataclass
class Stand:
    """A rank stands at a barrier with a value; or, without one, before it and behind the one before.

    generation  the barrier as the rank counts, which does not know how many there were in the turns that it skipped.
    turn        in which it asks; 0: in none.     skipped   ascending.
    """

    generation: int
    value: int | None
    turn: int = 0
    skipped: Sequence[SkippedTurn] = ()
    _counts: list[int] = field(init=False)  # of each skipped turn: how many barriers it is known to have

    def __post_init__(self) -> None:
        self.count_anew()

    def number(self, generation: int) -> int:
        """Return the job's number of a barrier, as far as is known, by this rank's."""
        return generation + sum([count for skip, count in zip(self.skipped, self._counts, strict=True) if skip.generation <= generation])

    def is_behind(self, other: "Stand") -> bool:
        """Return whether the rank stood at `other` before."""
        return (self.generation, self.value is not None) > (other.generation, other.value is not None)

    def is_at(self, generation: int) -> bool:
        """Return whether the rank waits at this barrier of the job."""
        return self.value is not None and self.number(self.generation) == generation

    @property
    def reach(self) -> int:
        """The last barrier at which nobody waits for this rank: where it stands, or the last one that it skips behind that."""
        before = self.generation if self.value is not None else self.generation - 1
        if not self.skipped:
            return before
        here = self.number(before)
        return max([here, *[self._first(index) + count - 1 for index, count in enumerate(self._counts) if count]])

    def count_anew(self) -> None:
        """Forget how many barriers it skips."""
        self._counts = [0] * len(self.skipped)

    def settle(self, turns_of: Callable[[int], Set[int]]) -> bool:
        """Count on the barriers that it skips; return whether there are more than were known.

        `turns_of`: in which turns ranks asked for a barrier of the job.
        """
        known = sum(self._counts)
        for index, skip in enumerate(self.skipped):
            while skip.turn in turns_of(self._first(index) + self._counts[index]):
                self._counts[index] += 1
        return sum(self._counts) > known

    def _first(self, index: int) -> int:
        """Return the job's number of the first barrier of a skipped turn."""
        return self.skipped[index].generation + sum(self._counts[:index])

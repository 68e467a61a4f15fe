"""The barriers of a job, by their numbers: who stands where, and what was agreed upon."""

from collections.abc import Sequence

from ps_server.coordinator.minima import Minima
from ps_server.coordinator.stored import StoredMinimum


class Generations:
    """A barrier opens once every rank stands at it or at a later one; whoever asks for it again hears the same.

    After a rollback each rank goes on between two barriers of before, and may have passed more of them than another. One that all come to
    again they agree upon anew. Of one that some had passed, the others hear what was agreed upon before, once all are beyond it or there.

    next  the one after the last that opened.
    """

    def __init__(self, next_one: int = 0, minima: Sequence[StoredMinimum] = (), earlier: Sequence[StoredMinimum] = ()) -> None:
        self.next = next_one
        # A rank that goes on where it was may ask for a barrier that the others have passed.
        self._minima = Minima(minima)  # of those that opened since the last rollback
        self._earlier = Minima(earlier)  # and before it
        # rank -> the generation to which it came last, and the value that it brought; None: it had passed that one before the rollback
        self._stands: dict[int, tuple[int, int | None]] = {}

    def minima(self) -> tuple[StoredMinimum, ...]:
        """Return what was agreed upon since the last rollback, as it is stored."""
        return self._minima.runs

    def earlier(self) -> tuple[StoredMinimum, ...]:
        """Return what was agreed upon before the last rollback."""
        return self._earlier.runs

    def stand(self, rank: int, generation: int, value: int | None) -> None:
        """Let the rank come to a barrier, or, without a value, be beyond it; a message about an earlier one is late."""
        if rank not in self._stands or generation > self._stands[rank][0]:
            self._stands[rank] = (generation, value)

    def forget(self, rank: int) -> None:
        """Let the rank stand nowhere: it is another worker's now, or has left."""
        self._stands.pop(rank, None)

    def missing(self, generation: int, ranks: Sequence[int]) -> list[int]:
        """Return those of the ranks that have not come to a barrier yet."""
        return [rank for rank in ranks if rank not in self._stands or self._stands[rank][0] < generation]

    def opened(self, generation: int) -> int | None:
        """Return what was agreed upon at a barrier since the last rollback; None where it has not opened, or too long ago."""
        return self._minima.get(generation)

    def is_forgotten(self, generation: int) -> bool:
        """Return whether a barrier opened so long ago that nobody knows what was agreed upon there."""
        is_passed = generation < self.next or any([at > generation for at, _ in self._stands.values()])
        return is_passed and self._minima.get(generation) is None and self._earlier.get(generation) is None

    def try_open(self, generation: int, ranks: Sequence[int]) -> int | None:
        """Open a barrier to which all ranks have come; return what is agreed upon there, None where one is missing."""
        if self.missing(generation, ranks):
            return None
        stands = [self._stands[rank] for rank in ranks]
        values = [value for at, value in stands if at == generation and value is not None]
        agreed = None if len(values) == len(ranks) else self._earlier.get(generation)
        if agreed is None:
            agreed = min(values, default=0)
        self._minima.put(StoredMinimum(generation, agreed))
        self.next = max(self.next, generation + 1)
        return agreed

    def go_back(self) -> None:
        """Let ranks come to barriers again."""
        for run in self._minima.runs:
            self._earlier.put(run)
        self._minima, self._stands, self.next = Minima(), {}, 0

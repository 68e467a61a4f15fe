"""The barriers of a job, by their numbers: who stands where, and what was agreed upon."""

from collections.abc import Mapping, Sequence
from functools import cache, partial

from ps_server.coordinator.minima import Minima
from ps_server.coordinator.stand import Stand
from ps_server.coordinator.stored import StoredStand
from ps_server.tasks import BarrierRun


class Generations:
    """A barrier opens once every rank stands at it or at a later one; whoever asks for it again hears the same.

    A rank that was started again behind a turn of its loop does not come to that turn's barriers. Nobody knows how many there are before
    the others have come to them: they say in which turn they ask, and by that the rank is counted there, and its later barriers are
    numbered behind them.

    After a rollback each rank goes on between two barriers of before, and may have passed more of them than another. One that all come to
    again they agree upon anew. Of one that some had passed, the others hear what was agreed upon before, once all are beyond it or there.
    Beyond what any of them had passed, what was before says nothing: who skipped a turn then may not skip it now, so that other barriers
    have those numbers. Where nobody knows, they agree on it themselves.

    next  the one after the last that opened.
    """

    def __init__(
        self,
        next_one: int = 0,
        minima: Sequence[BarrierRun] = (),
        earlier: Sequence[BarrierRun] = (),
        stands: Sequence[StoredStand] = (),
    ) -> None:
        self.next = next_one
        # A rank that goes on where it was may ask for a barrier that the others have passed.
        self._minima = Minima(minima)  # of those that opened since the last rollback
        self._earlier = Minima(earlier)  # and before it
        self._stands = {stand.rank: Stand(stand.generation, None, skipped=stand.skipped) for stand in stands}
        self._frontier = 0  # the barrier behind the last that any rank has passed, as far as is known
        self._find_frontier()
        self._settle()

    def minima(self) -> tuple[BarrierRun, ...]:
        """Return what was agreed upon since the last rollback, as it is stored."""
        return self._minima.runs

    def earlier(self) -> tuple[BarrierRun, ...]:
        """Return what was agreed upon before the last rollback."""
        return self._earlier.runs

    def stands(self) -> tuple[StoredStand, ...]:
        """Return where ranks stand that come to no barrier yet: those that do ask again."""
        stands = sorted(self._stands.items())
        return tuple([StoredStand(rank, stand.generation, tuple(stand.skipped)) for rank, stand in stands if stand.value is None])

    def stand(self, rank: int, stand: Stand) -> None:
        """Let the rank stand there; a message about an earlier place is late.

        A script that gave up waiting at a barrier may come to another one in its place: what it brought before counts no more.
        """
        before = self._stands.get(rank)
        if before is not None and before.is_behind(stand):
            return
        if before is not None and not stand.is_behind(before):
            if (stand.value, stand.turn) == (before.value, before.turn):
                return
            self.forget(rank)
        self._stands[rank] = stand
        is_first = stand.generation > self._frontier
        self._frontier = max(self._frontier, stand.generation)
        if stand.turn or is_first:
            self._settle()
        elif stand.skipped:  # it tells nobody anything: after a rollback, this is what all ranks begin with
            self._settle_one(stand)

    def forget(self, rank: int) -> None:
        """Let the rank stand nowhere: it is another worker's now, or has left. A barrier that it alone had asked for is not there yet."""
        self._stands.pop(rank, None)
        self._find_frontier()
        for stand in self._stands.values():
            stand.count_anew()
        self._settle()

    def number(self, rank: int, generation: int) -> int:
        """Return the job's number of a barrier that the rank has come to, as far as is known, by the rank's own."""
        return self._stands[rank].number(generation) if rank in self._stands else generation

    def missing(self, generation: int, ranks: Sequence[int]) -> list[int]:
        """Return those of the ranks that have not come to a barrier yet."""
        return [rank for rank in ranks if rank not in self._stands or self._stands[rank].reach < generation]

    def opened(self, generation: int) -> int | None:
        """Return what was agreed upon at a barrier since the last rollback; None where it has not opened, or too long ago."""
        run = self._minima.get(generation)
        return None if run is None else run.minimum

    def is_forgotten(self, generation: int) -> bool:
        """Return whether some ranks passed a barrier so long ago that nobody knows what was agreed upon there.

        After a rollback all may come anew to one that opened long before it: such a one is not forgotten.
        """
        if self._earlier.get(generation) is not None:
            return False
        is_beyond = any([stand.reach >= generation and not stand.is_at(generation) for stand in self._stands.values()])
        return generation < self._minima.forgotten_before or (is_beyond and generation < self._earlier.forgotten_before)

    def try_open(self, generation: int, ranks: Sequence[int]) -> int | None:
        """Open a barrier to which all ranks have come; return what is agreed upon there, None where one is missing."""
        if self.missing(generation, ranks):
            return None
        values = [stand.value for rank in ranks if (stand := self._stands[rank]).value is not None and stand.is_at(generation)]
        before = self._before(generation)
        agreed = min(values, default=0) if len(values) == len(ranks) or before is None else before.minimum
        self._minima.put(BarrierRun(generation, agreed, turns=tuple(sorted(self._turns(generation, self._standing())))))
        self.next = max(self.next, generation + 1)
        return agreed

    def passed(self) -> tuple[BarrierRun, ...]:
        """Return what was agreed upon at the last barriers that opened, also before the last rollback where some rank had passed them."""
        passed = Minima()
        for run in (*self._earlier.until(self._frontier), *self._minima.runs):
            passed.put(run)
        return passed.runs

    def go_back(self, barriers: Sequence[BarrierRun]) -> None:
        """Let ranks come to barriers again. `barriers`: what `passed` was where they go back to."""
        self._earlier = Minima(barriers)
        self._minima, self._stands, self.next = Minima(), {}, 0
        self._find_frontier()

    def _find_frontier(self) -> None:
        """Find it after somebody stands nowhere any more."""
        self._frontier = max([stand.generation for stand in self._stands.values()], default=0)

    def _before(self, generation: int) -> BarrierRun | None:
        """Return what was agreed upon at a barrier before the last rollback, if some rank had passed it where it goes on."""
        return self._earlier.get(generation) if generation < self._frontier else None

    def _standing(self) -> dict[int, set[int]]:
        """Return in which turns of their loops ranks ask for barriers at which they stand, by the barriers' numbers."""
        standing: dict[int, set[int]] = {}
        for stand in self._stands.values():
            if stand.turn:
                standing.setdefault(stand.number(stand.generation), set()).add(stand.turn)
        return standing

    def _turns(self, generation: int, standing: Mapping[int, set[int]]) -> set[int]:
        """Return in which turns of their loops ranks asked for a barrier, as far as is known."""
        known = self._minima.get(generation) or self._before(generation)
        return standing.get(generation, set()).union(() if known is None else known.turns)

    def _settle(self) -> None:
        """Find out how far those that skip reach by now; where one is may tell how far another reaches."""
        skipping = [stand for stand in self._stands.values() if stand.skipped]
        is_news = bool(skipping)
        while is_news:
            turns_of = cache(partial(self._turns, standing=self._standing()))
            is_news = any([stand.settle(turns_of) for stand in skipping])

    def _settle_one(self, stand: Stand) -> None:
        """Do so for one that stands in no turn."""
        stand.settle(partial(self._turns, standing=self._standing()))

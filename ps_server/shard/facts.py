"""What each rank finished in the running job (R4): the newest fact of each, and earlier ones that a step at work may still be asked for."""

from dataclasses import replace

from ps_proto.requests import Finished


class Facts:
    """`newest`: rank -> what it finished last.

    A rank may be ahead of the step that the tables hold, by one step or, where it uses only tables that are not synchronous, by several. So
    earlier facts are kept too, until the caller forgets them.
    """

    def __init__(self) -> None:
        self.newest: dict[int, Finished] = {}
        self._earlier: dict[int, dict[int, Finished]] = {}  # rank -> clock -> fact, all older than the newest

    def clear(self) -> None:
        """Forget everything: another job begins."""
        self.newest.clear()
        self._earlier.clear()

    def keep(self, rank: int, fact: Finished, since: int) -> None:
        """Take a fact that is newer than the rank's others, of which those before step `since` are forgotten."""
        before = self.newest.get(rank)
        if before is not None:
            self._earlier.setdefault(rank, {})[before.clock] = before
            self._forget(rank, since)
        self.newest[rank] = fact

    def add_resume(self, rank: int, clock: int, resume: bytes) -> None:
        """Take the resume state of a step that is known to be finished; of one that is not kept any more, nothing."""
        known = self.at(rank, clock)
        if known is None:
            return
        if known is self.newest[rank]:
            self.newest[rank] = replace(known, resume=resume)
        else:
            self._earlier[rank][clock] = replace(known, resume=resume)

    def at(self, rank: int, clock: int) -> Finished | None:
        """Return the fact of exactly this step, where it is kept."""
        newest = self.newest.get(rank)
        return newest if newest is not None and newest.clock == clock else self._earlier.get(rank, {}).get(clock)

    def forget_before(self, clock: int) -> None:
        """Forget the facts of steps before `clock`, but for each rank's newest."""
        for rank in list(self._earlier):
            self._forget(rank, clock)

    def _forget(self, rank: int, before: int) -> None:
        left = {clock: fact for clock, fact in self._earlier[rank].items() if clock >= before}
        if left:
            self._earlier[rank] = left
        else:
            del self._earlier[rank]

    @property
    def earlier_clocks(self) -> list[int]:
        """The steps of which facts are kept that are no rank's newest."""
        return [clock for facts in self._earlier.values() for clock in facts]

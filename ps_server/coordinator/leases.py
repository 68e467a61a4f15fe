"""Which ranks were heard of lately. A lease says when to act, never what is safe: that is for fences (R7, R13)."""

import math

LOOK = 1 / 4  # of a lease passes between two looks at most
AWAY = 2 / 3  # of a lease: whoever renews it each third of it has at least this left, whenever the coordinator is stopped


class Leases:
    """A rank's lease ends `lease_s` after it was renewed last, on the coordinator's own clock; 0: there are none.

    `lost`: the ranks whose lease has run out; a renewal finds one again. Times are those of the turn that runs: `look` sets it. A turn that
    comes so late that nobody could be heard, as after this process was stopped for a while, counts as a start: all have a full lease.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.lost: set[int] = set()
        self._ends_s: dict[int, float] = {}  # rank -> when its lease runs out, of those that have one
        self._lengths_s: dict[int, float] = {}  # rank -> of the lease that it was granted last
        self._now_s = -math.inf

    def look(self, now_s: float) -> list[int]:
        """Let it be `now_s`; return the ranks whose lease runs out with that, ascending."""
        if now_s - self._now_s >= AWAY * self.lease_s:
            self._ends_s = {rank: max(ends_s, now_s + self.lease_s) for rank, ends_s in self._ends_s.items()}
        self._now_s = now_s
        late = sorted([rank for rank, ends_s in self._ends_s.items() if ends_s <= now_s])
        for rank in late:
            del self._ends_s[rank]
        self.lost.update(late)
        return late

    def renew(self, rank: int, times: int = 1) -> None:
        """Grant the rank a full lease from now on, or so many in a row."""
        self.lost.discard(rank)
        if self.lease_s > 0:
            self._lengths_s[rank] = times * self.lease_s
            self._ends_s[rank] = self._now_s + self._lengths_s[rank]

    def length_s(self, rank: int) -> float:
        """Return how long the lease was that the rank was granted last."""
        return self._lengths_s[rank]

    def end(self, rank: int) -> None:
        """Expect nothing of the rank any more."""
        self.lost.discard(rank)
        self._ends_s.pop(rank, None)

    def clear(self) -> None:
        """Expect nothing of any rank: another job begins."""
        self.lost.clear()
        self._ends_s.clear()

    def due_s(self) -> list[float]:
        """Return the times at which leases run out, and when to look at the latest."""
        return [*self._ends_s.values(), self._now_s + LOOK * self.lease_s] if self._ends_s else []

"""Who has finished which step, who takes part, and what that allows (R4, R6, R10). Predicates only: nothing here waits."""

from dataclasses import dataclass, field

from ps_proto.requests import NEVER


@dataclass
class Clocks:
    """The roster of a job and the facts about its ranks.

    Every rank of 0..world_size-1 is in the roster from `first_clock` on, connected or not, until it leaves by its own word.
    """

    world_size: int = 0
    first_clock: int = 0
    finished: dict[int, int] = field(default_factory=dict)  # rank -> last finished step; merged by max, never lowered
    left_after: dict[int, int] = field(default_factory=dict)  # rank -> the last step it is in the roster of

    def __post_init__(self) -> None:
        for rank in range(self.world_size):
            self.finished.setdefault(rank, self.first_clock - 1)

    def finish(self, rank: int, clock: int) -> bool:
        """Take `finished(rank, clock)` as known; return whether it is news."""
        if clock <= self.finished[rank]:
            return False
        self.finished[rank] = clock
        return True

    def leave(self, rank: int) -> None:
        """Take the rank out of the roster of all steps after the last one it finished."""
        self.left_after.setdefault(rank, self.finished[rank])

    def takes_part(self, rank: int, step: int) -> bool:
        """Return whether `rank` is in the roster of `step`."""
        return self.left_after.get(rank, step) >= step

    def roster(self, step: int) -> list[int]:
        """Return the ranks whose gradients make up `step`, ascending."""
        return [rank for rank in range(self.world_size) if self.takes_part(rank, step)]

    @property
    def present(self) -> list[int]:
        """The ranks that have not left."""
        return [rank for rank in range(self.world_size) if rank not in self.left_after]

    def can_fold(self, step: int) -> bool:
        """Return whether the whole roster of `step`, which is not empty, has finished it."""
        roster = self.roster(step)
        return bool(roster) and all(self.finished[rank] >= step for rank in roster)

    def within_bound(self, clock: int, bound: int) -> bool:
        """Return whether every rank has finished all steps < clock - bound (one that left has finished all of its own)."""
        return all(self.finished[rank] >= clock - bound - 1 for rank in self.present)

    def slowest(self) -> int:
        """Return the rank that everybody waits for: the lowest of those with the fewest finished steps."""
        ranks = self.present or list(range(self.world_size))
        return min(ranks, key=lambda rank: (self.finished[rank], rank))

    @property
    def min_clock(self) -> int:
        """The clock of the slowest rank: how many steps it has finished, counted from step 0."""
        return self.finished[self.slowest()] + 1 if self.world_size else 0

    @property
    def clock_max(self) -> int:
        """The highest finished step of any rank; NEVER where there is none."""
        return max(self.finished.values(), default=NEVER)

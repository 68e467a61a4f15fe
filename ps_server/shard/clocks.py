"""Who has finished which step, who takes part, and what that allows (R4, R6, R8, R10). Predicates only: nothing here waits."""

from dataclasses import dataclass, field

from ps_proto.requests import NEVER


@dataclass
class Clocks:
    """The roster of a job and the facts about its ranks.

    Every rank of 0..world_size-1 is in the roster from `first_clock` on, connected or not, until it leaves by its own word. One that is
    admitted, anew or as the next rank, is in it from its step `since` on, beside the steps of its time before.
    `finish`, `leave` and `admit` alone change what is known; what every request asks for is kept, so that asking does not visit all ranks.
    """

    world_size: int = 0
    first_clock: int = 0
    finished: dict[int, int] = field(default_factory=dict)  # rank -> last finished step; merged by max, never lowered
    left_after: dict[int, int] = field(default_factory=dict)  # rank that has left -> the last step it is in the roster of
    since: dict[int, int] = field(default_factory=dict)  # rank that was admitted -> the first step that it is in the roster of then
    past: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # rank that was admitted anew -> its earlier steps, first and last
    present: list[int] = field(init=False)  # the ranks that have not left, ascending
    least: int = field(init=False)  # the last finished step of the slowest of those present, or of all where none is; NEVER without ranks
    _at_least: int = field(init=False)  # how many of them are at `least`: once none is, it is looked for anew

    def __post_init__(self) -> None:
        for rank in range(self.world_size):
            self.finished.setdefault(rank, self.first_clock - 1)
        self._look_again()

    def _look_again(self) -> None:
        self.present = [rank for rank in range(self.world_size) if rank not in self.left_after]
        counted = [self.finished[rank] for rank in self.present or range(self.world_size)]
        self.least = min(counted, default=NEVER)
        self._at_least = counted.count(self.least)

    def finish(self, rank: int, clock: int) -> bool:
        """Take `finished(rank, clock)` as known; return whether it is news."""
        if clock <= self.finished[rank]:
            return False
        before, self.finished[rank] = self.finished[rank], clock
        if before == self.least and (rank not in self.left_after or not self.present):
            self._at_least -= 1
            if self._at_least == 0:
                self._look_again()
        return True

    def leave(self, rank: int) -> None:
        """Take the rank out of the roster of all steps after the last one it finished."""
        self.left_after.setdefault(rank, self.finished[rank])
        self._look_again()

    def admit(self, rank: int, first: int) -> None:
        """Take a rank that has left, or the next one, into the roster of step `first` and all later ones; one that is there stays as it is.

        One that has left after a step beyond comes back after that: it has done its part of those steps, which are still to be folded.
        """
        if rank > self.world_size:
            raise ValueError(f"rank {rank} cannot be admitted to {self.world_size} ranks: the next one is {self.world_size}")
        if rank in self.left_after:
            last = self.left_after.pop(rank)
            self.past.setdefault(rank, []).append((self.since.get(rank, NEVER), last))
            first = max(first, last + 1)
        elif rank < self.world_size:
            return
        self.world_size = max(self.world_size, rank + 1)
        self.since[rank] = first
        self.finished[rank] = max(self.finished.get(rank, NEVER), first - 1)
        self._look_again()

    def takes_part(self, rank: int, step: int) -> bool:
        """Return whether `rank` is in the roster of `step`."""
        if step >= self.since.get(rank, step):
            return step <= self.left_after.get(rank, step)
        return any(first <= step <= last for first, last in self.past.get(rank, ()))

    def first_of(self, rank: int) -> int:
        """Return the first step of whose roster the rank is, since it was admitted last; NEVER where it has left, or never was there."""
        return self.since.get(rank, self.first_clock) if rank in self.finished and rank not in self.left_after else NEVER

    def roster(self, step: int) -> list[int]:
        """Return the ranks whose gradients make up `step`, ascending."""
        return [rank for rank in range(self.world_size) if self.takes_part(rank, step)]

    def can_fold(self, step: int) -> bool:
        """Return whether the whole roster of `step` has finished it; one that is empty has, where ranks take part in later steps."""
        if self.present:  # one that left has finished every step that it is in the roster of, one that was admitted all before its first
            return self.least >= step
        return any(last >= step for last in self.left_after.values())

    def first_finished(self, step: int, backup_workers: int) -> list[int]:
        """Return the ranks of the roster that have finished `step`, ascending, once at most `backup_workers` have not; before, none (R9).

        They are max(1, ranks - backup_workers). A turn brings one rank's news, so that asked after each they are the first. Of more, which
        a checkpoint may have where no table is synchronous, since each server is in it at its own instant, the lowest are taken.
        """
        roster = self.roster(step)
        enough = max(1, len(roster) - backup_workers)
        finished = [rank for rank in roster if self.finished[rank] >= step]
        return finished[:enough] if len(finished) >= enough else []

    def within_bound(self, clock: int, bound: int) -> bool:
        """Return whether every rank has finished all steps < clock - bound (one that left has finished all of its own)."""
        return not self.present or self.least >= clock - bound - 1

    def slowest(self) -> int:
        """Return the rank that everybody waits for: the lowest of those with the fewest finished steps."""
        return next(rank for rank in self.present or range(self.world_size) if self.finished[rank] == self.least)

    @property
    def min_clock(self) -> int:
        """The clock of the slowest rank: how many steps it has finished, counted from step 0."""
        return self.least + 1

    @property
    def clock_max(self) -> int:
        """The highest finished step of any rank; NEVER where there is none."""
        return max(self.finished.values(), default=NEVER)

"""A job: one run of so many workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ps_proto.requests import NEVER, JoinJob, StepOrder
from ps_proto.values import Mode
from ps_server.coordinator.generations import Generations
from ps_server.coordinator.holders import Holders
from ps_server.coordinator.stored import StoredAdmission, StoredJob, StoredRemoval
from ps_server.tasks import FoundCheckpoint

REMOVALS_KEPT = 8  # of a rank: while a checkpoint is written it may be removed again


@dataclass
class Job:
    """One run of `world_size` workers, from the first to join until the last has left."""

    number: int
    world_size: int
    mode: Mode
    first_clock: int = 0
    on_lost_worker: str = "wait"  # or "continue"
    ranks: dict[int, int] = field(default_factory=dict)  # rank -> incarnation, of those that joined and have not left
    left: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)  # those that did not say so themselves; one may be about to leave
    barriers: Generations = field(default_factory=Generations)
    holders: Holders = field(default_factory=Holders)
    world_size_asked: int = 0  # what its first workers ask for, before others were admitted
    is_offered: bool = False  # it was taken up again, and nobody takes part in it yet: who asks for another job gets one
    orders: list[StepOrder] = field(default_factory=list)  # given and not yet followed by every server, by their numbers
    admitted: dict[int, int] = field(default_factory=dict)  # rank -> the first step that it was in the roster of when it was admitted last
    removals: list[StoredRemoval] = field(default_factory=list)  # also of those that have come back, which a checkpoint may have as removed

    still_in: list[int] = field(init=False)  # the ranks that have not left, connected or not, ascending

    def __post_init__(self) -> None:
        self.world_size_asked = self.world_size_asked or self.world_size
        self._look_again()

    def _look_again(self) -> None:
        # Kept, since every look at a barrier asks for it: after each turn in which a rank waits there.
        self.still_in = sorted(set(range(self.world_size)) - self.left)

    @classmethod
    def of(cls, stored: StoredJob, inside: Mapping[int, int]) -> "Job":
        """Return the job that was stored; `inside`: the incarnation of each rank that takes part. Nobody waits at a barrier."""
        return cls(
            stored.number,
            stored.world_size,
            stored.mode,
            stored.first_clock,
            stored.on_lost_worker,
            dict(inside),
            set(stored.left),
            set(stored.removed),
            Generations(stored.barrier, stored.minima, stored.earlier, stored.stands),
            world_size_asked=stored.world_size_asked,
            is_offered=not inside,
            orders=list(stored.orders),
            holders=Holders(stored.holders),
            admitted={one.rank: one.since for one in stored.admitted},
            removals=list(stored.removals),
        )

    def stored(self) -> StoredJob:
        """Return what is to be stored of it."""
        return StoredJob(
            self.number,
            self.world_size,
            self.mode,
            self.first_clock,
            self.on_lost_worker,
            tuple(sorted(self.left)),
            tuple(sorted(self.removed)),
            self.barriers.next,
            self.barriers.minima(),
            self.barriers.earlier(),
            self.world_size_asked,
            tuple(self.orders),
            self.holders.stored(),
            tuple([StoredAdmission(rank, since) for rank, since in sorted(self.admitted.items())]),
            tuple(self.removals),
            self.barriers.stands(),
        )

    @property
    def is_over(self) -> bool:
        return len(self.left) == self.world_size

    def take(self, rank: int, incarnation: int) -> None:
        """Let the rank be this incarnation's; if another one stood at the barrier, it stands there no more."""
        self.is_offered = False
        if self.ranks.get(rank) != incarnation:
            self.barriers.forget(rank)
        self.ranks[rank] = incarnation

    def admit(self, rank: int, since: int) -> None:
        """Let the rank, one that has left or the next, be in it from a step on: every server has followed the order."""
        self.holders.begin(rank, since)
        self.admitted[rank] = since
        self.world_size = max(self.world_size, rank + 1)
        self.left.discard(rank)
        self.removed.discard(rank)
        self._look_again()
        self.orders = [order for order in self.orders if order.rank != rank]

    def remove(self, rank: int, last: int) -> None:
        """Note that the rank is to be out of it after step `last`, and not by its own word."""
        self.removed.add(rank)
        others = [one for one in self.removals if one.rank != rank]
        before = [one for one in self.removals if one.rank == rank and one.last != last]
        self.removals = [*others, *before[1 - REMOVALS_KEPT :], StoredRemoval(rank, last)]

    def leave(self, rank: int) -> None:
        """End the rank's part in it."""
        self.ranks.pop(rank, None)
        self.left.add(rank)
        self._look_again()
        self.barriers.forget(rank)

    def is_as(self, body: JoinJob) -> bool:
        """Return whether a worker that asks for this could take part."""
        return self.has_had(body.world_size) and body.mode in (None, self.mode)

    def has_had(self, world_size: int) -> bool:
        """Return whether it has, or once had, so many ranks: who was admitted says so many as there were then."""
        return self.world_size_asked <= world_size <= self.world_size

    def go_back(self, found: FoundCheckpoint) -> set[int]:
        """Be as a checkpoint has it: nobody takes part yet, and barriers are come to again. Return the ranks that change hands.

        A rank that no server had admitted since a rollback before the checkpoint is not in `found.admitted`.
        """
        state = found.job
        assert state is not None, "who goes back to a checkpoint of no job begins anew"
        finished = {rank.rank: rank.finished for rank in state.ranks}
        news = {rank: since for rank, since in found.admitted.items() if since > self.admitted.get(rank, NEVER)}
        change_hands = self.holders.go_back(finished, news)
        self.admitted = dict(found.admitted)
        self.world_size, self.first_clock = state.world_size, state.first_clock
        self.left = {rank.rank for rank in state.ranks if rank.has_left}
        self.removed = set()
        self.removals = [one for one in self.removals if one.last <= finished.get(one.rank, NEVER)]  # others were of a time that is gone
        for rank in sorted(found.removed & self.left):
            self.remove(rank, max(finished[rank], state.first_clock - 1))
        self._look_again()
        self.is_offered = True
        self.ranks.clear()
        self.barriers.go_back(found.barriers)
        self.orders.clear()
        return change_hands

"""A job: one run of so many workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ps_proto.requests import JobState, JoinJob, StepOrder
from ps_proto.values import Mode
from ps_server.coordinator.stored import StoredJob

MINIMA_KEPT = 64  # a rank that goes on may ask for a barrier that the others have passed


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
    removed: set[int] = field(default_factory=set)  # those among them that did not say so themselves
    barrier: int = 0  # the generation that ranks wait for next
    at_barrier: dict[int, int] = field(default_factory=dict)  # rank -> the value it brought
    minima: list[int] = field(default_factory=list)  # of the last barriers that passed, in their order
    world_size_asked: int = 0  # what its first workers ask for, before others were admitted
    is_offered: bool = False  # it was taken up again, and nobody has joined it since: who asks for another job gets one
    orders: list[StepOrder] = field(default_factory=list)  # given and not yet followed by every server, by their numbers

    def __post_init__(self) -> None:
        self.world_size_asked = self.world_size_asked or self.world_size

    @classmethod
    def of(cls, stored: StoredJob, inside: Mapping[int, int]) -> "Job":
        """Return the job that was stored; `inside`: the incarnation of each rank that takes part. Nobody stands at its barrier."""
        return cls(
            stored.number,
            stored.world_size,
            stored.mode,
            stored.first_clock,
            stored.on_lost_worker,
            dict(inside),
            set(stored.left),
            set(stored.removed),
            stored.barrier,
            minima=list(stored.minima),
            world_size_asked=stored.world_size_asked,
            orders=list(stored.orders),
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
            self.barrier,
            tuple(self.minima),
            self.world_size_asked,
            tuple(self.orders),
        )

    @property
    def is_over(self) -> bool:
        return len(self.left) == self.world_size

    @property
    def still_in(self) -> list[int]:
        """The ranks that have not left, connected or not, ascending."""
        return sorted(set(range(self.world_size)) - self.left)

    def take(self, rank: int, incarnation: int) -> None:
        """Let the rank be this incarnation's; if another one stood at the barrier, it stands there no more."""
        self.is_offered = False
        if self.ranks.get(rank) != incarnation:
            self.at_barrier.pop(rank, None)
        self.ranks[rank] = incarnation

    def admit(self, rank: int) -> None:
        """Let the rank, one that has left or the next, be in it: every server has followed the order."""
        self.world_size = max(self.world_size, rank + 1)
        self.left.discard(rank)
        self.removed.discard(rank)
        self.orders = [order for order in self.orders if order.rank != rank]

    def leave(self, rank: int) -> None:
        """End the rank's part in it."""
        self.ranks.pop(rank, None)
        self.left.add(rank)
        self.at_barrier.pop(rank, None)

    def is_as(self, body: JoinJob) -> bool:
        """Return whether a worker that asks for this could take part."""
        return body.world_size in (self.world_size, self.world_size_asked) and body.mode in (None, self.mode)

    def go_back(self, state: JobState) -> None:
        """Be as a checkpoint has it; nobody takes part yet, and nobody stands at a barrier."""
        self.world_size, self.first_clock = state.world_size, state.first_clock
        self.left = {rank.rank for rank in state.ranks if rank.has_left}
        self.removed &= self.left
        self.is_offered = True
        self.ranks.clear()
        self.at_barrier.clear()
        self.orders.clear()

    @property
    def may_pass_barrier(self) -> bool:
        """Whether all who are still in are at the barrier."""
        return len(self.at_barrier) + len(self.left) == self.world_size

    def pass_barrier(self) -> None:
        """Open the barrier for those who are there; the next generation is waited for from now on."""
        self.minima = [*self.minima, min(self.at_barrier.values(), default=0)][-MINIMA_KEPT:]
        self.barrier, self.at_barrier = self.barrier + 1, {}

    def minimum(self, generation: int) -> int | None:
        """Return the least value that was brought to a barrier that has passed; None where that was too long ago."""
        before = self.barrier - generation
        return self.minima[-before] if before <= len(self.minima) else None

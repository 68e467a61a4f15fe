"""A job: one run of so many workers."""

from dataclasses import dataclass, field

from ps_proto.values import Mode


@dataclass
class Job:
    """One run of `world_size` workers, from the first to join until the last has left."""

    number: int
    world_size: int
    mode: Mode
    first_clock: int = 0
    ranks: dict[int, int] = field(default_factory=dict)  # rank -> incarnation, of those that joined and have not left
    left: set[int] = field(default_factory=set)
    barrier: int = 0  # the generation that ranks wait for next
    at_barrier: dict[int, int] = field(default_factory=dict)  # rank -> the value it brought
    minimum: int = 0  # of the barrier before: one of its ranks may ask again

    @property
    def is_over(self) -> bool:
        return len(self.left) == self.world_size

    @property
    def still_in(self) -> list[int]:
        """The ranks that have not left, connected or not, ascending."""
        return sorted(set(range(self.world_size)) - self.left)

    def take(self, rank: int, incarnation: int) -> None:
        """Let the rank be this incarnation's; if another one stood at the barrier, it stands there no more."""
        self.ranks[rank] = incarnation
        self.at_barrier.pop(rank, None)

    def leave(self, rank: int) -> None:
        """End the rank's part in it."""
        self.ranks.pop(rank, None)
        self.left.add(rank)
        self.at_barrier.pop(rank, None)

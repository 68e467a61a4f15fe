"""How the coordinator's core is set."""

from dataclasses import dataclass, field

from ps_server.coordinator.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Restore:
    """A checkpoint to begin with: that of `number` under `root`, None: the newest that is whole."""

    root: str
    number: int | None = None

    def __str__(self) -> str:
        return self.root if self.number is None else f"{self.root}#{self.number}"


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What holds for a coordinator's life.

    servers_expected  how many servers share the rows.     cluster  the id of a new cluster, 0: none; one that is stored keeps its own.
    schedule          of checkpoints.     lease_s  how long a worker counts as alive after it was heard of last; 0: there are no leases.
    restore           what a new cluster begins with; None: without a table.
    tries_root        whether a cluster that begins without rows tries where its checkpoints are to lie.
    """

    servers_expected: int
    cluster: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    lease_s: float = 0.0
    restore: Restore | None = None
    tries_root: bool = False

"""How the coordinator's core is set."""

from dataclasses import dataclass, field

from ps_server.coordinator.schedule import Schedule


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What holds for a coordinator's life.

    servers_expected  how many servers share the rows.     cluster  the id of a new cluster, 0: none; one that is stored keeps its own.
    schedule          of checkpoints.     lease_s  how long a worker counts as alive after it was heard of last; 0: there are no leases.
    """

    servers_expected: int
    cluster: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    lease_s: float = 0.0

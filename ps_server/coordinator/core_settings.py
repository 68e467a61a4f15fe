"""How the coordinator's core is set."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What holds for a coordinator's life.

    servers_expected  how many servers share the rows.     cluster  the id of a new cluster, 0: none; one that is stored keeps its own.
    """

    servers_expected: int
    cluster: int = 0

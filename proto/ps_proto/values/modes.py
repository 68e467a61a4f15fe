"""How far workers may drift apart."""

from dataclasses import dataclass

from ps_proto.values.setting import Setting, whole

MAX_BOUND = 2**31 - 1
MAX_BACKUP_WORKERS = 2**31 - 1


class Mode(Setting):
    """How pulls and pushes of several workers fit together."""


@dataclass(frozen=True)
class Sync(Mode):
    """All ranks' gradients of a step are folded at once; everybody reads the same step.

    With `backup_workers` b of the n ranks, the first n - b to finish a step make it up, and what the others push for it is dropped (Chen et
    al., "Revisiting distributed synchronous SGD", 2016): no straggler is waited for, and the bits depend on who was late (R9).
    """

    kind = "sync"
    backup_workers: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "backup_workers", whole("Sync.backup_workers", self.backup_workers, 0, MAX_BACKUP_WORKERS))


@dataclass(frozen=True)
class Async(Mode):
    """A push is applied on arrival; a pull never waits."""

    kind = "async"


@dataclass(frozen=True)
class BoundedStaleness(Mode):
    """A push is applied on arrival; a pull for step c waits until every rank has finished all steps < c - bound."""

    kind = "bounded"
    bound: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", whole("BoundedStaleness.bound", self.bound, 0, MAX_BOUND))


MODES: dict[str, type[Mode]] = {setting.kind: setting for setting in (Sync, Async, BoundedStaleness)}

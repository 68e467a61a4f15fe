"""Which checkpoints are of the time that led here, and not of one that a rollback ended."""

from collections.abc import Sequence

from ps_server.coordinator.stored import StoredBranch, StoredOrigin

BRANCHES_KEPT = 64  # those before are counted more strictly: what is lost with that was written many rollbacks ago
NUMBER_MAX = 2**63 - 1


class Lineage:
    """The timelines of a cluster: each began with a checkpoint, and what those before it had written above that is of no time any more.

    Such a checkpoint may still become complete: a store may carry a write out that it was sent by a coordinator which has died since.
    Of the cluster in whose checkpoint this one has its `origin` that one counts, and what came before it.
    """

    def __init__(self, cluster: int, stored: Sequence[StoredBranch] = (), origin: StoredOrigin | None = None) -> None:
        # Invariant: timelines and numbers ascend, since one that began lower leaves nothing to those before it.
        self._branches = list(stored)
        self._cluster = cluster
        self._origin = origin

    def stored(self) -> tuple[StoredBranch, ...]:
        """Return what is to be stored of it."""
        return tuple(self._branches)

    def begin(self, timeline: int, number: int) -> None:
        """Let a timeline have begun with the checkpoint of this number, 0: with none."""
        self._branches = [*[branch for branch in self._branches if branch.number < number], StoredBranch(timeline, number)]
        if len(self._branches) > BRANCHES_KEPT:
            first, second, *others = self._branches
            self._branches = [StoredBranch(second.timeline, first.number), *others]

    def begin_with(self, origin: StoredOrigin) -> None:
        """Let the cluster have begun with a checkpoint of another."""
        self._origin = origin

    def told(self) -> tuple[tuple[int, int, int], ...]:
        """Return it as FindCheckpoint takes it."""
        own = [(self._cluster, 0, NUMBER_MAX), *[(self._cluster, branch.timeline, branch.number) for branch in self._branches]]
        before = [(self._origin.cluster, NUMBER_MAX, self._origin.source.number)] if self._origin is not None else []
        return (*own, *before)

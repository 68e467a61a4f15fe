"""This server's part of a checkpoint: one instant of all that it holds, read piece by piece while it goes on (R2, R19).

What is staged is not in it: every rank begins again at the step at work, or before it, and redoes its pushes. Neither are parked requests,
exports, key lists, what ranks have read, and the decisions for steps that are not folded: a rollback drops them.
"""

from ps_proto.errors import InvalidRequest
from ps_server.shard.catalog import Catalog
from ps_server.shard.counters import Counters
from ps_server.shard.membership import Membership
from ps_server.shard.slot_snapshot import SlotSnapshot
from ps_server.shard.steps import Steps
from ps_server.shard.window import Window
from ps_server.tasks import PartHead, Piece, TableHead


class TakenPart:
    """`head`: all of the instant but the rows."""

    def __init__(
        self,
        membership: Membership,
        catalog: Catalog,
        steps: Steps,
        window: Window,
        counters: Counters,
        incremental: bool,
        tracks: bool,
    ) -> None:
        """Take the part as it is now, in O(slots / 64 + ranks); `incremental`, `tracks`, MemoryError: as in Table.begin_save."""
        assert membership.shard_map is not None, "a server that owns nothing takes no part"
        self._snapshots: list[SlotSnapshot] = []
        heads: list[TableHead] = []
        for table in catalog.tables.values():
            snapshot, is_full = table.begin_save(incremental, tracks)
            self._snapshots.append(snapshot)
            heads.append(TableHead(table.spec, is_full, snapshot.width, table.columns))
        clocks, left = _clocks(steps, is_synchronous=catalog.has_synchronous)
        facts = {rank: steps.fact_at(rank, clock) for rank, clock in clocks.items()}
        self.head = PartHead(
            step=steps.step,
            job=steps.job,
            timeline=membership.timeline,
            map_version=membership.shard_map.version,
            incarnation=membership.incarnation,
            tables=tuple(heads),
            clocks=clocks,
            since=dict(steps.clocks.since),
            left=left,
            facts={rank: fact for rank, fact in facts.items() if fact is not None},
            names=window.saved(membership.owned_buckets()),
            counters={name: counters.table(name).values() for name in catalog.tables},
        )

    def read(self, table: int, bytes_max: int) -> Piece | None:
        """Return the next rows of the table at this place of the head, about `bytes_max` of them; None: there are no more."""
        if not 0 <= table < len(self._snapshots):
            raise InvalidRequest("table", str(table), f"from 0 to {len(self._snapshots) - 1}, a place in the part")
        read = self._snapshots[table].read(bytes_max)
        return None if read is None else Piece(*read)

    def close(self) -> None:
        """Give the memory back."""
        for snapshot in self._snapshots:
            snapshot.close()


def _clocks(steps: Steps, is_synchronous: bool) -> tuple[dict[int, int], dict[int, int]]:
    """Return the last step that counts as finished by each rank, and of those that have left the last of whose roster they are.

    Where a table is synchronous, the rows are those after the fold of the step before `step`: what a rank did since has to be done again,
    and one that has left since is still there.
    """
    clocks, left = steps.clocks.finished, steps.clocks.left_after
    if not is_synchronous:
        return dict(clocks), dict(left)
    last = steps.step - 1
    return {rank: min(clock, last) for rank, clock in clocks.items()}, {rank: clock for rank, clock in left.items() if clock <= last}

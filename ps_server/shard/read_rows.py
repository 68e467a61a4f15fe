"""What ranks have read of tables whose optimizer looks at that: delay compensation the rows, staleness scaling how long ago it was."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps_proto.requests import Fence, Ids, Rows, push_name
from ps_server.shard.counters import Counters
from ps_server.shard.optimizers.optimizer import Origin
from ps_server.shard.table import Table
from sharding.arrays import read_only
from sharding.partition import deduplicate
from sharding.wire_format import FLOAT32, WireRows
from sharding.wire_rows import decode_rows

READ_BYTES_MAX = 64 << 20  # of one rank: a step's rows of one server, and those that it prefetches
READS_MAX = 32  # of one rank, table and step: a push may have to look through all of them
_ENTRY_BYTES = 512  # what an entry takes beside its arrays


@dataclass(frozen=True, slots=True)
class Read:
    """The answer to one pull of one table. `updates`: how many pushes the table had taken by then."""

    updates: int
    ids: Ids
    rows: Rows

    @property
    def nbytes(self) -> int:
        """Return the bytes that it keeps alive."""
        return _ENTRY_BYTES + self.ids.nbytes + self.rows.nbytes


class ReadRows:
    """The last answers to each rank's pulls, the arrays themselves where they are ours, by the clock of the step that they are for.

    A rank's answers are kept until it has finished their step; the oldest go first where there are more than `bytes_max` bytes of them, or
    than READS_MAX of one table for one step. Of an id that a rank pulled twice for a step the later answer counts. For other tables nothing
    is kept and nothing is done.
    """

    def __init__(self, counters: Counters, bytes_max: int = READ_BYTES_MAX) -> None:
        self._counters = counters
        self._bytes_max = bytes_max
        self._reads: dict[int, dict[tuple[str, int], deque[Read]]] = {}  # rank -> (table, clock) -> the oldest first
        self._nbytes: dict[int, int] = {}
        self._updates: dict[str, int] = {}  # table -> pushes applied so far

    @property
    def nbytes(self) -> int:
        """Return the bytes kept for all ranks."""
        return sum(self._nbytes.values())

    def keep(self, table: Table, fence: Fence, ids: Ids, rows: WireRows, is_borrowed: bool = False) -> None:
        """Take an answer that a rank is given, ids uint64[n] and rows as the table's `wire` has them; neither array may change any more.

        What is kept are the rows as the rank reads them, float32.

        `is_borrowed`: the rows do, and are copied.
        """
        if not table.optimizer.wants_staleness and not table.optimizer.wants_read_rows:
            return
        if not table.optimizer.wants_read_rows:
            ids, rows = ids[:0].copy(), rows[:0].copy()
        elif table.spec.wire != FLOAT32.name:
            rows = decode_rows(rows)
        elif is_borrowed:
            rows = rows.copy()
        name = table.spec.name
        reads = self._reads.setdefault(fence.rank, {}).setdefault((name, fence.clock), deque())
        reads.append(Read(self._updates.get(name, 0), read_only(ids), read_only(rows)))
        self._nbytes[fence.rank] = self._nbytes.get(fence.rank, 0) + reads[-1].nbytes
        if len(reads) > READS_MAX:
            self._nbytes[fence.rank] -= reads.popleft().nbytes
        self._shrink(fence.rank)

    def _shrink(self, rank: int) -> None:
        """Drop a rank's oldest answers until they are within their bytes."""
        by_step = self._reads[rank]
        while self._nbytes[rank] > self._bytes_max:
            key = next(iter(by_step))
            self._nbytes[rank] -= by_step[key].popleft().nbytes
            if not by_step[key]:
                del by_step[key]

    def origin(self, table: Table, fence: Fence, seq: int, ids: Ids) -> Origin:
        """Return where a push that is about to be applied comes from, and count it; its gradients are of `ids` uint64[n]."""
        step, rank = push_name(fence.clock, seq), fence.rank
        if not table.optimizer.wants_staleness and not table.optimizer.wants_read_rows:
            return Origin(step, rank)
        name = table.spec.name
        reads = list(reversed(self._reads.get(rank, {}).get((name, fence.clock), ())))
        updates = self._updates.get(name, 0)
        self._updates[name] = updates + (ids.size > 0)
        staleness = updates - reads[0].updates if reads else 0
        if not table.optimizer.wants_read_rows:
            self._counters.table(name).rows_unread += 0 if reads else ids.size
            return Origin(step, rank, staleness)
        rows, places = _find(reads, ids)
        self._counters.table(name).rows_unread += int(np.count_nonzero(places < 0))
        return Origin(step, rank, staleness, rows, places)

    def forget(self, rank: int, through: int | None = None) -> None:
        """Drop what the rank read for steps up to `through`, or all."""
        by_step = self._reads.pop(rank, {})
        kept = {key: reads for key, reads in by_step.items() if through is not None and key[1] > through}
        self._nbytes.pop(rank, None)
        if kept:
            self._reads[rank] = kept
            self._nbytes[rank] = sum([read.nbytes for reads in kept.values() for read in reads])

    def clear(self) -> None:
        """Drop everything: the job is over."""
        self._reads, self._nbytes, self._updates = {}, {}, {}


def _find(reads: list[Read], ids: Ids) -> tuple[Rows | None, npt.NDArray[np.int32]]:
    """Return the rows of the reads that know any of the ids, and the place of each id in them or -1; of two reads the first counts."""
    places = np.full(ids.size, -1, dtype=np.int32)
    found: list[Rows] = []
    for read in reads:
        missing = np.flatnonzero(places < 0)
        if not missing.size:
            break
        positions = _positions(read.ids, ids[missing])
        if np.any(positions >= 0):
            places[missing] = np.where(positions >= 0, positions + sum([len(rows) for rows in found]), -1)
            found.append(read.rows)
    return (read_only(np.concatenate(found)) if len(found) > 1 else found[0]) if found else None, places


def _positions(known: Ids, ids: Ids) -> npt.NDArray[np.int64]:
    """Return where in `known` each id lies first, int64[n]; -1 where it does not."""
    unique, inverse = deduplicate(read_only(np.concatenate([known, ids])))
    first = np.full(unique.size, -1, dtype=np.int64)
    first[inverse[: known.size][::-1]] = np.arange(known.size)[::-1]  # of a repeat the last to be written stays: the first in `known`
    return first[inverse[known.size :]]

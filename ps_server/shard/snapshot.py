"""One instant of a table, read part by part while updates go on (R19).

Copy on write: before a record changes, each open snapshot that has not kept it yet does. So a snapshot costs a copy of the ids when it is
taken, and a record for each row that changes while it is open.
"""

import numpy as np
import numpy.typing as npt

from ps_server.shard.record_layout import RecordLayout
from ps_server.shard.records import Records, Rows, Slots
from ps_server.shard.slab import Slab
from sharding.arrays import aligned_rows
from sharding.kernel import kernel

Ids = npt.NDArray[np.uint64]


class Snapshot:
    """The rows that a table had when the snapshot was taken, ascending by id. Close it, or drop it, when done."""

    def __init__(self, slab: Slab, slots: Slots, num_slots: int, layout: RecordLayout) -> None:
        """Take the rows in `slots` int32[n]. `num_slots`: no slot from there on was ever in use. `layout`: how they lie in the slab."""
        self._slab = slab
        self._layout = layout
        self._slots = slots
        self._ids: Ids = slab.ids[slots]  # a copy: a slot may change hands
        self._is_sorted = False
        self._kept_at = np.zeros(num_slots, dtype=np.int32)  # by slot: where in `_kept` its record is, counted from 1; 0: as it was
        self._kept: Slab | None = None
        self._num_kept = 0
        self.is_open = True

    def __len__(self) -> int:
        return self._ids.size

    @property
    def width(self) -> int:
        """Return the words of a record as `read_records` gives it."""
        return self._layout.width

    @property
    def num_kept(self) -> int:
        """Return how many records had to be kept because they changed."""
        return self._num_kept

    def read(self, begin: int, end: int) -> tuple[Ids, Rows]:
        """Return ids uint64[n] and rows float32[n, dim] number `begin` to `end`, as far as there are any; ascending by id.

        The first read sorts the ids. Raises ValueError once the snapshot is closed.
        """
        return self._read(begin, end, self._layout.row_words)

    def read_records(self, begin: int, end: int) -> tuple[Ids, Records]:
        """Return ids and whole records float32[n, width], row and state columns; otherwise as `read`."""
        return self._read(begin, end, self._layout.stored_width)

    def keep(self, slots: Slots) -> None:
        """Take note that the records in `slots` int32[n] are about to change. A table calls this, before it writes."""
        if self._kept is None:
            self._kept = Slab(self._slab.width, self._kept_at.size)
        self._num_kept = _keep(self._slab.records, slots, self._kept_at, self._kept.records, self._num_kept)

    def close(self) -> None:
        """Give the memory back; a second time does nothing."""
        self.is_open = False
        self._kept = None
        self._kept_at = np.zeros(0, dtype=np.int32)
        self._slots = self._slots[:0]
        self._ids = self._ids[:0]

    def _read(self, begin: int, end: int, stored_words: int) -> tuple[Ids, Rows]:
        if not self.is_open:
            raise ValueError("the snapshot is closed")
        if not self._is_sorted:
            order = np.argsort(self._ids)
            self._ids, self._slots = self._ids[order], self._slots[order]
            self._is_sorted = True
        ids, slots = self._ids[begin:end], self._slots[begin:end]
        stored = aligned_rows(ids.size, stored_words)
        kept = self._slab.records if self._kept is None else self._kept.records
        _read(self._slab.records, slots, self._kept_at, kept, stored)
        return ids, self._layout.opened(stored)


@kernel
def _keep(records: Records, slots: Slots, kept_at: Slots, kept: Records, num_kept: int) -> int:
    """Copy each record in `slots` that is not in `kept` yet, and that was in use, to its end; return how many it has now."""
    for i in range(slots.size):
        slot = slots[i]
        if slot >= kept_at.size or kept_at[slot] != 0:
            continue  # as in records.gather
        source = records[slot]
        target = kept[num_kept]
        for column in range(source.size):
            target[column] = source[column]
        num_kept += 1
        kept_at[slot] = num_kept
    return num_kept


@kernel
def _read(records: Records, slots: Slots, kept_at: Slots, kept: Records, out: Rows) -> None:
    """Copy the first columns of each record, the kept one where there is one, into `out` float32[n, columns]."""
    columns = out.shape[1]
    for i in range(slots.size):
        at = kept_at[slots[i]]
        source = kept[at - 1] if at > 0 else records[slots[i]]
        target = out[i]
        for column in range(columns):
            target[column] = source[column]

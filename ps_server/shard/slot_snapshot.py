"""One instant of a table, read once from end to end while updates go on (R19): what a save writes.

    include  uint64[⌈H/64⌉]     bit s % 64 of word s // 64: slot s is still to be read where it lies; H slots were in use at the instant
    cursor   0 .. H             the slots below were read
    kept     ids and records    those that were about to change, taken out of `include`; a stack

Copy on write: before a record changes, or its slot is freed, it is kept, if it is still to be read. The next piece begins with what was
kept, so that the same memory serves again, and no more is ever taken than the changes between two pieces need. So rows come in no order.
Unlike a Snapshot it copies no ids when it is taken and sorts nothing: a bit a slot is all that it costs.
"""

import numpy as np
import numpy.typing as npt

from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.records import Slots
from ps_server.shard.slab import Slab
from ps_server.shard.touched import WORD_SLOTS, Words, words_for
from sharding.arrays import empty_aligned
from sharding.kernel import kernel

Ids = npt.NDArray[np.uint64]
RecordWords = npt.NDArray[np.uint32]

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_BYTE = np.uint64(0xFF)
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_UINT64 = np.dtype(np.uint64)
_UINT32 = np.dtype(np.uint32)


class SlotSnapshot:
    """The rows that a table had when it was taken, or the touched ones among them, in no order. Close it, or drop it, when done."""

    def __init__(self, slab: Slab, num_slots: int, free: Slots, only: Words | None = None) -> None:
        """Take the slots below `num_slots`, or those of them in `only` uint64[⌈num_slots/64⌉], but the `free` ones int32[k].

        Neither array is changed nor kept. Raises MemoryError where the machine has no room to keep all of these rows, if all change.
        """
        self._slab = slab
        self._num_slots = num_slots
        self._include = np.full(words_for(num_slots), _ALL) if only is None else only.copy()
        if num_slots % WORD_SLOTS:
            self._include[-1] &= (_ONE << np.uint64(num_slots % WORD_SLOTS)) - _ONE  # slots that come to be used later
        _exclude(self._include, free)
        self._cursor = 0
        self._kept: Slab | None = _room_for(int(np.bitwise_count(self._include).sum()), slab.width)
        self._num_kept = 0
        self._is_closed = False

    @property
    def width(self) -> int:
        """Return the words of a record."""
        return self._slab.width

    @property
    def is_open(self) -> bool:
        """Whether there may be records to read where they lie, so that it has to hear of those that are about to change."""
        return self._cursor < self._num_slots

    @property
    def num_kept(self) -> int:
        """Return how many records changed, and are still to be read."""
        return self._num_kept

    def keep(self, slots: Slots) -> None:
        """Take note that the records in `slots` int32[n] are about to change, or to be dropped. A table calls this, before it does."""
        if not self.is_open:
            return
        assert self._kept is not None, "it is there until the end"
        slab, kept = self._slab, self._kept
        self._num_kept = _keep(slab.ids, slab.words, slots, self._cursor, self._include, kept.ids, kept.words, self._num_kept)

    def read(self, bytes_max: int) -> tuple[Ids, RecordWords] | None:
        """Return the next ids uint64[n] and records uint32[n, stored width], as they lie in a slab; None: there are no more.

        n is one at least, and as many as fit `bytes_max`. The arrays are the caller's. Raises ValueError once the snapshot is closed.
        """
        if self._is_closed:
            raise ValueError("the snapshot is closed")
        rows_max = max(1, bytes_max // (8 + 4 * self._slab.width))
        num_kept = min(self._num_kept, rows_max)
        slots = self._next(rows_max - num_kept)
        size = num_kept + slots.size
        if size == 0:
            self._kept = None
            return None
        ids, records = empty_aligned((size,), _UINT64), empty_aligned((size, self._slab.width), _UINT32)
        if self._kept is not None:
            self._num_kept -= num_kept
            part = slice(self._num_kept, self._num_kept + num_kept)
            ids[:num_kept], records[:num_kept] = self._kept.ids[part], self._kept.words[part]
        _read(self._slab.ids, self._slab.words, slots, ids[num_kept:], records[num_kept:])
        return ids, records

    def _next(self, slots_max: int) -> Slots:
        """Return the next slots to read, int32[n], and move the cursor beyond them."""
        slots = np.empty(min(slots_max, self._num_slots - self._cursor), dtype=np.int32)
        slots = slots[: _next_slots(self._include, self._cursor, self._num_slots, slots)]
        if slots.size == slots_max:
            self._cursor = int(slots[-1]) + 1 if slots_max else self._cursor
        else:
            self._cursor = self._num_slots
        return slots

    def close(self) -> None:
        """Give the memory back; a second time does nothing."""
        self._is_closed = True
        self._cursor = self._num_slots
        self._kept, self._num_kept = None, 0
        self._include = np.zeros(0, dtype=np.uint64)


def _room_for(num_rows: int, width: int) -> Slab:
    """Return a slab with room for so many records: it costs what is written to. It is there from the start, as a push must not fail."""
    slab = Slab(width, num_rows)
    if slab.capacity < num_rows:
        raise MemoryError(f"The machine refuses to reserve room for {num_rows:,} rows, which may change while they are saved.")
    return slab


@kernel
def _exclude(include: Words, free: Slots) -> None:
    """Take the bit of each free slot away."""
    for i in range(free.size):
        include[free[i] >> 6] &= ~(_ONE << np.uint64(free[i] & 63))


@kernel
def _keep(
    ids: Ids, records: RecordWords, slots: Slots, cursor: int, include: Words, kept_ids: Ids, kept: RecordWords, num_kept: int
) -> int:
    """Move each slot in `slots` that is still to be read from `include` to the end of `kept`; return how many are there now."""
    for i in range(slots.size):
        slot = slots[i]
        if slot < cursor or slot >> 6 >= include.size:
            continue  # as in records.gather
        bit = _ONE << np.uint64(slot & 63)
        if include[slot >> 6] & bit == _ZERO:
            continue
        include[slot >> 6] &= ~bit
        source = records[slot]
        target = kept[num_kept]
        for column in range(source.size):
            target[column] = source[column]
        kept_ids[num_kept] = ids[slot]
        num_kept += 1
    return num_kept


@kernel
def _next_slots(include: Words, cursor: int, num_slots: int, slots: Slots) -> int:
    """Write the next slots in `include` from `cursor` on, below `num_slots`, to `slots`, as many as it has room for; return how many."""
    count = 0
    slot = cursor
    while slot < num_slots and count < slots.size:
        rest = include[slot >> 6] >> np.uint64(slot & 63)
        if rest == _ZERO:
            slot = ((slot >> 6) + 1) << 6
        elif rest & _BYTE == _ZERO:
            slot += 8  # of an increment most are not in it
        else:
            if rest & _ONE != _ZERO:
                slots[count] = slot
                count += 1
            slot += 1
    return count


@kernel
def _read(ids: Ids, records: RecordWords, slots: Slots, out_ids: Ids, out: RecordWords) -> None:
    """Copy the id and the record of each slot into `out_ids` uint64[n] and `out` uint32[n, width]."""
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], out.shape[1])
        out_ids[i] = ids[slots[i]]
        source = records[slots[i]]
        target = out[i]
        for column in range(target.size):
            target[column] = source[column]

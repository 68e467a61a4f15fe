"""From id to slot: open addressing with linear probing, over arrays that grow a little with each batch.

An entry is one uint64:

    63            32  31  30           0
    [ hash, low half | dead | slot + 1 ]          0 is an empty entry: fresh memory is an empty index, and every id is legal

The id itself lies in the slab, by slot. Unlike an index with its ids inside, an entry takes 8 bytes rather than 12, and an id is
compared only where 32 bits of its hash agree. The position is the low bits of the hash, so entries move to a bigger array without a look at
their ids; the high bits are the bucket, which a server's ids have in common.

Growth (as Redis does it): a second, bigger array takes all new entries; each batch moves on some of the old ones, at least four for each of
its ids, so the old array is empty long before the new one is full. Meanwhile lookups read the new array, then the old one.
"""

import contextlib
import mmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ps_server.shard.prefetch import prefetch
from sharding.arrays import read_only
from sharding.hashing import hash_id
from sharding.kernel import kernel

Ids = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.int32]
Entries = npt.NDArray[np.uint64]
Counters = npt.NDArray[np.int64]

ENTRIES_MIN = 64
LOAD_NUMERATOR, LOAD_DENOMINATOR = 7, 10  # beyond, linear probing gets long: 6 entries for an absent id at 0.7, 13 at 0.8 (Knuth 6.4)
MOVED_PER_ID = 4
MOVED_MIN = 1_024  # entries in one go, whatever the batch: a microsecond or two
BLOCK = 128  # ids in each pass of a lookup: 64 to 256 are as fast

_HIGH, _FREE, _MOVED = 0, 1, 2  # Counters: slots ever used; of them free now; old entries already looked at

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_SLOT_MASK = np.uint64(0x7FFF_FFFF)
_DEAD = np.uint64(0x8000_0000)
_TAG_SHIFT = np.uint64(32)
_LIVE_SHIFT = np.uint64(31)  # leaves the tag and the dead bit
_TAG_MASK = np.uint64(0xFFFF_FFFF)
_LINE_ENTRIES = np.uint64(8)  # in a cache line

_NOTHING = np.empty(0, dtype=np.int32)
_NO_ENTRIES = np.zeros(1, dtype=np.uint64)  # looks like an array in which nothing is ever found


class Found(NamedTuple):
    """slots int32[n]: -1 where absent; `absent`: how many of them are."""

    slots: Slots
    absent: int


class Inserted(NamedTuple):
    """slots int32[n]: of each id. created int32[k]: the positions in the batch that got a new slot, ascending."""

    slots: Slots
    created: npt.NDArray[np.int32]


class SlotIndex:
    """Which slot holds the row of an id. Slots are given out from 0 on; those of removed ids first."""

    def __init__(self, salt: np.uint64, ids_by_slot: Ids) -> None:
        """Start empty. `ids_by_slot` uint64[capacity] is written to: the id in each slot."""
        self._salt = salt
        self._ids_by_slot = ids_by_slot
        self._entries = np.zeros(ENTRIES_MIN, dtype=np.uint64)
        self._old_entries = _NO_ENTRIES
        self._free = np.empty(0, dtype=np.int32)
        self._counters = np.zeros(3, dtype=np.int64)
        self.growths = 0

    def __len__(self) -> int:
        return int(self._counters[_HIGH] - self._counters[_FREE])

    @property
    def num_slots(self) -> int:
        """Return how many slots were ever in use: every slot is below."""
        return int(self._counters[_HIGH])

    @property
    def is_growing(self) -> bool:
        """Whether entries are still to be moved to a bigger array."""
        return self._old_entries is not _NO_ENTRIES

    @property
    def nbytes(self) -> int:
        """Return the bytes that entries and free slots take; the ids by slot are the slab's."""
        return self._entries.nbytes + self._old_entries.nbytes + self._free.nbytes

    def find(self, ids: Ids) -> Found:
        """Look the ids up; nothing is changed. `ids` uint64[n], read-only, any order, repeats allowed."""
        slots = np.empty(ids.size, dtype=np.int32)
        absent = _find(self._entries, self._ids_by_slot, self._salt, ids, slots)
        if absent and self.is_growing:
            missing = np.flatnonzero(slots < 0)
            old_slots = np.empty(missing.size, dtype=np.int32)
            absent = _find(self._old_entries, self._ids_by_slot, self._salt, read_only(ids[missing]), old_slots)
            slots[missing] = old_slots
        return Found(slots, absent)

    def find_again(self, ids: Ids, found: Found) -> Found:
        """Return what `find` would now, given what it was for these ids: only those that were absent are looked up.

        No id may have been removed since.
        """
        slots, absent = found.slots.copy(), 0
        if found.absent:
            missing = np.flatnonzero(slots < 0)
            slots[missing], absent = self.find(read_only(ids[missing]))
        return Found(slots, absent)

    def find_or_insert(self, ids: Ids, found: Found | None = None) -> Inserted:
        """Look the ids up and give a slot to each absent one. `ids` as for `find`.

        `found`: what `find` has given for them since the last change, where it was asked; its slots are written to.
        Raises ValueError, and changes nothing, where the slab could not take as many new ids.
        """
        slots, absent = self.find(ids) if found is None else found
        if absent == 0:
            created = _NOTHING
        else:
            self._make_room(ids, slots, absent)
            created = np.empty(absent, dtype=np.int32)
            num_created = _insert(self._entries, self._ids_by_slot, self._free, self._counters, self._salt, ids, slots, created)
            created = created[:num_created]
        if self.is_growing:
            self._move(max(MOVED_PER_ID * ids.size, MOVED_MIN))
        return Inserted(slots, created)

    def insert(self, ids: Ids) -> Slots:
        """Return the slot of each id, a new one where it is absent, as nearly all of them are: none is looked up beforehand.

        `ids` and errors as for `find_or_insert`. Every entry is moved first where it grows: `reserve` makes that rare.
        As long as no slot is free, each gets the next one without a look whether it is there; the first that is ends that.
        """
        if len(self) + ids.size > self._ids_by_slot.size:
            return self.find_or_insert(ids).slots
        self.reserve(len(self) + ids.size)
        self._move(self._old_entries.size)
        slots = np.empty(ids.size, dtype=np.int32)
        begin = 0
        if self._counters[_FREE] == 0:
            unused = np.empty(2 * BLOCK, dtype=np.int32)
            begin = _insert_absent(self._entries, self._ids_by_slot, unused, self._counters, self._salt, ids, slots)
            if self._counters[_FREE]:
                self._free = unused
        if begin < ids.size:
            slots[begin:] = -1
            created = np.empty(ids.size - begin, dtype=np.int32)
            _insert(
                self._entries, self._ids_by_slot, self._free, self._counters, self._salt, read_only(ids[begin:]), slots[begin:], created
            )
        return slots

    def reserve(self, num_ids: int) -> None:
        """Make room for `num_ids` in all, as far as the slab has any, so that it need not grow by and by as they come: all are about to."""
        num_ids = min(num_ids, self._ids_by_slot.size)
        if num_ids > self._load_max():
            self._grow(num_ids, in_huge_pages=True)

    def remove(self, ids: Ids) -> int:
        """Forget the ids and free their slots; return how many were there. `ids` as for `find`."""
        slots = self.find(ids).slots
        # An entry that was moved is in both arrays. The old one is only marked: closing the gap there could carry an entry that is
        # still to be moved back to where `_move` has been.
        _erase(self._entries, self._salt, ids, slots)
        _mark_dead(self._old_entries, self._salt, ids, slots)
        freed = np.unique(slots[slots >= 0])
        num_free = int(self._counters[_FREE])
        if num_free + freed.size > self._free.size:
            free = np.empty(num_free + max(freed.size, num_free), dtype=np.int32)
            free[:num_free] = self._free[:num_free]
            self._free = free
        self._free[num_free : num_free + freed.size] = freed
        self._counters[_FREE] += freed.size
        return freed.size

    def live_slots(self) -> Slots:
        """Return the slots in use, int32[len], ascending. O(slots ever used)."""
        is_live = np.ones(self._counters[_HIGH], dtype=np.bool_)
        is_live[self.free_slots()] = False
        return np.flatnonzero(is_live).astype(np.int32)

    def free_slots(self) -> Slots:
        """Return those of the slots below `num_slots` that are not in use, int32[k], in no order: a view, until the next change."""
        return self._free[: self._counters[_FREE]]

    def _make_room(self, ids: Ids, slots: Slots, absent: int) -> None:
        num_ids = len(self) + absent
        if num_ids > self._ids_by_slot.size:
            num_ids = len(self) + np.unique(ids[slots < 0]).size  # a repeat needs no slot of its own
        if num_ids > self._ids_by_slot.size:
            raise ValueError(f"{num_ids} ids do not fit {self._ids_by_slot.size} slots")
        if num_ids > self._load_max():
            self._grow(num_ids)

    def _load_max(self) -> int:
        return self._entries.size * LOAD_NUMERATOR // LOAD_DENOMINATOR

    def _grow(self, num_ids: int, in_huge_pages: bool = False) -> None:
        # A growth that is still under way ends first; only a batch about as big as the index itself can need that.
        self._move(self._old_entries.size)
        size = self._entries.size
        while size * LOAD_NUMERATOR // LOAD_DENOMINATOR < num_ids:
            size *= 2
        self._old_entries, self._entries = self._entries, _empty_entries(size, in_huge_pages)
        self._counters[_MOVED] = 0
        self.growths += 1

    def _move(self, num_entries: int) -> None:
        if _move(self._entries, self._old_entries, self._counters, num_entries) == self._old_entries.size:
            self._old_entries = _NO_ENTRIES


def _empty_entries(size: int, in_huge_pages: bool) -> Entries:
    # Not np.zeros: numpy asks for huge pages, so a few scattered inserts would zero the whole array at once. Where the array is about to be
    # filled, that is what makes it quick: ids are inserted at random places, and each page of 4 KiB is one more miss.
    mapping = mmap.mmap(-1, 8 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if in_huge_pages:
        with contextlib.suppress(OSError):  # a kernel built without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype=np.uint64)


@kernel
def _find(entries: Entries, ids_by_slot: Ids, salt: np.uint64, ids: Ids, slots: Slots) -> int:
    """Write the slot of each id, -1 where absent; return how many are.

    Block after block goes through three passes, each of which asks for the memory that the next one needs: hash, then the first entry with
    the hash's tag, then the id in that slot. So nobody waits for a miss, and few branches are guessed wrong. Only where two ids share their
    tag is an id looked up again on its own.
    """
    mask = np.uint64(entries.size - 1)
    hashes = np.empty(2 * BLOCK, dtype=np.uint64)
    num_blocks = (ids.size + BLOCK - 1) // BLOCK
    absent = 0
    for block in range(num_blocks + 2):
        for i in range(block * BLOCK, min(ids.size, (block + 1) * BLOCK)):
            hash = hash_id(salt, ids[i])
            hashes[i % (2 * BLOCK)] = hash
            prefetch(entries, hash & mask)
        for i in range(max(0, (block - 1) * BLOCK), min(ids.size, block * BLOCK)):
            hash = hashes[i % (2 * BLOCK)]
            wanted = (hash & _TAG_MASK) << _ONE  # the tag, and a dead bit of 0
            position = hash & mask
            entry = entries[position]
            while entry != _ZERO and entry >> _LIVE_SHIFT != wanted:
                position = (position + _ONE) & mask
                entry = entries[position]
            slot = (entry & _SLOT_MASK) - _ONE  # of an empty entry, -1
            slots[i] = np.int32(slot)
            prefetch(ids_by_slot, slot)
        for i in range(max(0, (block - 2) * BLOCK), min(ids.size, (block - 1) * BLOCK)):
            if slots[i] >= 0 and ids_by_slot[slots[i]] != ids[i]:
                slots[i] = _find_one(entries, ids_by_slot, salt, ids[i])
            if slots[i] < 0:
                absent += 1
    return absent


@kernel
def _find_one(entries: Entries, ids_by_slot: Ids, salt: np.uint64, id: np.uint64) -> np.int32:
    """Return the slot of an id, -1 where absent."""
    mask = np.uint64(entries.size - 1)
    hash = hash_id(salt, id)
    wanted = (hash & _TAG_MASK) << _ONE
    position = hash & mask
    entry = entries[position]
    while entry != _ZERO:
        if entry >> _LIVE_SHIFT == wanted:
            candidate = (entry & _SLOT_MASK) - _ONE
            if ids_by_slot[candidate] == id:
                return np.int32(candidate)
        position = (position + _ONE) & mask
        entry = entries[position]
    return np.int32(-1)


@kernel
def _insert(
    entries: Entries, ids_by_slot: Ids, free: Slots, counters: Counters, salt: np.uint64, ids: Ids, slots: Slots, created: Slots
) -> int:
    """Give a slot to each id whose slot is -1; write the positions in the batch that got one to `created` and return how many.

    Such an id may have its slot already, as a repeat within the batch has by the time that it comes. In blocks, as in `_find`.
    """
    mask = np.uint64(entries.size - 1)
    hashes = np.empty(2 * BLOCK, dtype=np.uint64)
    num_blocks = (ids.size + BLOCK - 1) // BLOCK
    num_created = 0
    for block in range(num_blocks + 1):
        for i in range(block * BLOCK, min(ids.size, (block + 1) * BLOCK)):
            if slots[i] < 0:
                hash = hash_id(salt, ids[i])
                hashes[i % (2 * BLOCK)] = hash
                prefetch(entries, hash & mask)
        for i in range(max(0, (block - 1) * BLOCK), min(ids.size, block * BLOCK)):
            if slots[i] >= 0:
                continue
            id = ids[i]
            hash = hashes[i % (2 * BLOCK)]
            wanted = (hash & _TAG_MASK) << _ONE
            position = hash & mask
            slot = np.int32(-1)
            entry = entries[position]
            while entry != _ZERO:
                if entry >> _LIVE_SHIFT == wanted:
                    candidate = (entry & _SLOT_MASK) - _ONE
                    if ids_by_slot[candidate] == id:
                        slot = np.int32(candidate)
                        break
                position = (position + _ONE) & mask
                entry = entries[position]
            if slot < 0:
                if counters[_FREE] > 0:
                    counters[_FREE] -= 1
                    slot = free[counters[_FREE]]
                else:
                    slot = np.int32(counters[_HIGH])
                    counters[_HIGH] += 1
                ids_by_slot[slot] = id
                entries[position] = hash << _TAG_SHIFT | np.uint64(slot + 1)
                created[num_created] = i
                num_created += 1
            slots[i] = slot
    return num_created


@kernel
def _insert_absent(entries: Entries, ids_by_slot: Ids, unused: Slots, counters: Counters, salt: np.uint64, ids: Ids, slots: Slots) -> int:
    """Give the next slots to ids that are absent, as far as they are; write them to `slots`, and return how many ids that were.

    It ends, at most two blocks later, after an id that is there: that gets its own slot, and the one meant for it is free. No slot may be
    so before: `unused` int32[2 * BLOCK] becomes the list of them.

    In blocks, as in `_find`; a third pass is for those that found another in their first place, a few in a hundred to one half. Their
    entries lie where nobody can tell beforehand, often in the next cache line: it is asked for a block ahead. The second pass writes back
    what is there where it is no empty entry: it would guess wrong too often whether it is.
    """
    mask = np.uint64(entries.size - 1)
    hashes = np.empty(4 * BLOCK, dtype=np.uint64)
    late = np.empty(2 * BLOCK + 1, dtype=np.int64)  # ids of the third pass: the block before the last one's, then the last one's
    num_late = 0
    first = counters[_HIGH]
    end = ids.size
    num_blocks = (ids.size + BLOCK - 1) // BLOCK
    for block in range(num_blocks + 2):
        for i in range(block * BLOCK, min(end, (block + 1) * BLOCK)):
            hash = hash_id(salt, ids[i])
            hashes[i % (4 * BLOCK)] = hash
            prefetch(entries, hash & mask)
            ids_by_slot[first + i] = ids[i]
            slots[i] = np.int32(first + i)
        num_both = num_late
        for i in range(max(0, (block - 1) * BLOCK), min(end, block * BLOCK)):
            hash = hashes[i % (4 * BLOCK)]
            position = hash & mask
            entry = entries[position]
            entries[position] = entry if entry != _ZERO else hash << _TAG_SHIFT | np.uint64(first + i + 1)
            late[num_both] = i
            num_both += 1 if entry != _ZERO else 0
        for k in range(num_late, num_both):
            prefetch(entries, (hashes[late[k] % (4 * BLOCK)] & mask) + _LINE_ENTRIES)
        for k in range(num_late):
            i = late[k]
            hash = hashes[i % (4 * BLOCK)]
            wanted = (hash & _TAG_MASK) << _ONE
            position = hash & mask
            entry = entries[position]
            while entry != _ZERO:
                if entry >> _LIVE_SHIFT == wanted:
                    candidate = (entry & _SLOT_MASK) - _ONE
                    if ids_by_slot[candidate] == ids[i]:
                        slots[i] = np.int32(candidate)
                        break
                position = (position + _ONE) & mask
                entry = entries[position]
            if entry == _ZERO:
                entries[position] = hash << _TAG_SHIFT | np.uint64(first + i + 1)
            else:
                unused[counters[_FREE]] = np.int32(first + i)
                counters[_FREE] += 1
                end = min(end, block * BLOCK)  # what the second pass has placed by now
        for k in range(num_late, num_both):
            late[k - num_late] = late[k]
        num_late = num_both - num_late
    counters[_HIGH] = first + end
    return end


@kernel
def _move(entries: Entries, old_entries: Entries, counters: Counters, num_entries: int) -> int:
    """Copy the next `num_entries` old entries into the new array; return how many have been looked at in all.

    They stay in the old array too: a hole there would cut the probe sequences of those that are still to be moved.
    """
    mask = np.uint64(entries.size - 1)
    begin = counters[_MOVED]
    end = min(begin + num_entries, old_entries.size)
    for old_position in range(begin, end):
        entry = old_entries[old_position]
        if entry != _ZERO and entry & _DEAD == _ZERO:
            position = (entry >> _TAG_SHIFT) & mask
            while entries[position] != _ZERO:
                position = (position + _ONE) & mask
            entries[position] = entry
    counters[_MOVED] = end
    return int(end)


@kernel
def _erase(entries: Entries, salt: np.uint64, ids: Ids, slots: Slots) -> None:
    """Take out the entry of each id that has a slot, where it is here, and close the gap.

    An entry further on moves back into the gap, unless that puts it before its own position (Knuth, TAOCP 3, 6.4, algorithm R).
    """
    mask = np.uint64(entries.size - 1)
    for i in range(ids.size):
        if slots[i] < 0:
            continue
        wanted = np.uint64(slots[i] + 1)
        hole = hash_id(salt, ids[i]) & mask
        while entries[hole] != _ZERO and entries[hole] & _SLOT_MASK != wanted:
            hole = (hole + _ONE) & mask
        if entries[hole] == _ZERO:
            continue
        position = (hole + _ONE) & mask
        while entries[position] != _ZERO:
            entry = entries[position]
            home = (entry >> _TAG_SHIFT) & mask
            if (position - home) & mask >= (position - hole) & mask:
                entries[hole] = entry
                hole = position
            position = (position + _ONE) & mask
        entries[hole] = _ZERO


@kernel
def _mark_dead(entries: Entries, salt: np.uint64, ids: Ids, slots: Slots) -> None:
    """Mark the entry of each id that has a slot as dead, where it is here; the probe sequences that lead past it stay whole."""
    mask = np.uint64(entries.size - 1)
    for i in range(ids.size):
        wanted = np.uint64(slots[i] + 1)
        position = hash_id(salt, ids[i]) & mask
        while slots[i] >= 0 and entries[position] != _ZERO:
            if entries[position] & _SLOT_MASK == wanted:
                entries[position] |= _DEAD
            position = (position + _ONE) & mask

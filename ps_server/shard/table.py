"""A table's rows on one server: which slot is whose, and the rows in their slots, joined."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps_proto.errors import TableFull
from ps_proto.requests import ColumnLayout
from ps_proto.values import TableSpec
from ps_server.events import MakeRows
from ps_server.shard.blocks import rows_per_block
from ps_server.shard.index import Found, SlotIndex
from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer
from ps_server.shard.records import Records, Rows, Slots, gather, scatter
from ps_server.shard.slot_snapshot import RecordWords, SlotSnapshot
from ps_server.shard.snapshot import Snapshot
from ps_server.shard.stored_rows import stored_rows
from ps_server.shard.touched import Touched
from sharding.arrays import aligned_rows, empty_aligned, read_only
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sharding.wire_format import FLOAT32, FORMATS, WireRows
from sharding.wire_rows import encode_to

Ids = npt.NDArray[np.uint64]

NO_ORIGIN = Origin()


@dataclass(frozen=True, slots=True)
class Places:
    """Where the rows of some ids lay when they were pulled. `standing`: what the table had to show then.

    A slot stays its row's until the table drops rows; from then on it has another standing, which no table ever had.
    """

    found: Found
    standing: object

    @property
    def nbytes(self) -> int:
        """Return the bytes of the slots."""
        return self.found.slots.nbytes

    def of(self, chosen: npt.NDArray[np.bool_]) -> "Places":
        """Return the places of the ids that are True in bool[n]."""
        slots = self.found.slots[chosen]
        return Places(Found(slots, int(np.count_nonzero(slots < 0))), self.standing)

    @classmethod
    def joined(cls, parts: Sequence["Places"], inverse: npt.NDArray[np.int64], size: int) -> "Places":
        """Return the places of `size` ids of one standing; inverse int64[n]: which of them each of the parts' ids is, one after another."""
        slots = np.full(size, -1, dtype=np.int32)
        slots[inverse] = np.concatenate([part.found.slots for part in parts])
        return cls(Found(slots, int(np.count_nonzero(slots < 0))), parts[0].standing)


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows on their way to another server. ids uint64[n], ascending; records float32[n, stored width], as they lie in a slab."""

    ids: Ids
    records: Records


class Table:
    """The rows that a server holds of one table.

    Ids are uint64[n] in any order; a repeat is legal everywhere but in `adopt`. Arrays handed in are neither changed nor kept. A wrong
    shape or dtype raises ValueError before anything is changed. Not for two threads at a time.
    """

    def __init__(self, spec: TableSpec, rows_max: int | None = None) -> None:
        """Start without rows; `rows_max` bounds how many there may be. Memory is taken as rows come."""
        self.spec = spec
        self._dim = spec.dim
        self._wire = FORMATS[spec.wire]
        self._salt = table_salt(spec.name)
        self._rows = stored_rows(spec, rows_max)
        self._slab = self._rows.slab
        self._index = SlotIndex(self._salt, self._slab.ids)
        self._standing = object()
        self._snapshots: list[weakref.ref[Snapshot | SlotSnapshot]] = []
        self._touched = Touched()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the records held."""
        return len(self) * 4 * self._slab.width

    @property
    def index_nbytes(self) -> int:
        """Return the bytes of what finds the records: the index, and the id of each."""
        return self._index.nbytes + 8 * len(self)

    @property
    def growths(self) -> int:
        """Return how often the index has grown."""
        return self._index.growths

    @property
    def rows_max(self) -> int:
        """Return how many rows there may be."""
        return self._slab.capacity

    @property
    def optimizer(self) -> RowOptimizer:
        """Return what applies gradients."""
        return self._rows.optimizer

    @property
    def record_words(self) -> int:
        """Return the 32-bit words of a record as it lies in the slab."""
        return self._slab.width

    @property
    def columns(self) -> tuple[ColumnLayout, ...]:
        """Return the state columns behind each row, in their order."""
        return tuple([ColumnLayout(column.name, column.words, column.dtype) for column in self._rows.optimizer.columns])

    def pull(self, ids: Ids, make_rows: MakeRows = empty_aligned) -> WireRows:
        """Return the rows as the spec's `wire` has them, C-contiguous, at a multiple of 64 bytes, in what `make_rows` makes for them.

        No row is made: an absent id reads as its initial value. Where the table has no initial values (Assigned), it raises ValueError;
        `count_absent` tells beforehand.
        """
        return self.pull_with_places(ids, make_rows)[0]

    def pull_with_places(self, ids: Ids, make_rows: MakeRows = empty_aligned) -> tuple[WireRows, Places]:
        """Return what `pull` does, and where the rows lie."""
        ids = _checked_ids(ids)
        found = self._index.find(ids)
        return self._rows_at(found, ids, make_rows), Places(found, self._standing)

    def _rows_at(self, found: Found, ids: Ids, make_rows: MakeRows) -> WireRows:
        slots, absent = found
        rows = make_rows(self._wire.shape(ids.size, self._dim), self._wire.dtype)
        if self._wire is FLOAT32:
            self._read(slots, ids, absent > 0, rows)
            return rows
        block = aligned_rows(min(ids.size, rows_per_block(self._dim)), self._dim)
        for begin in range(0, ids.size, max(len(block), 1)):
            part = slice(begin, begin + len(block))
            read = block[: slots[part].size]
            self._read(slots[part], ids[part], absent > 0, read)
            encode_to(read, rows[part])
        return rows

    def _read(self, slots: Slots, ids: Ids, has_absent: bool, out: Rows) -> None:
        """Write the rows to `out` float32[n, dim]; where a slot is -1, the id's initial one."""
        self._rows.read(slots, out)
        if has_absent:
            places = np.flatnonzero(slots < 0).astype(np.int32)
            self._rows.fill(out, places, ids[places])

    def count_absent(self, ids: Ids, places: Places | None = None) -> int:
        """Return how many of the ids have no row; a repeat counts again. `places`: as for `update`."""
        return self._find(_checked_ids(ids), places).absent

    def _find(self, ids: Ids, places: Places | None) -> Found:
        """Look the ids up, of those that a pull has found and that stay where they were none again; the slots are the caller's."""
        if places is None or places.standing is not self._standing:
            return self._index.find(ids)
        return self._index.find_again(ids, places.found)

    def make_room(self, ids: Ids) -> None:
        """Raise TableFull where rows for all these ids would not fit; change nothing."""
        rows_max = self._slab.capacity
        if len(self) + ids.size <= rows_max:
            return
        ids = _checked_ids(ids)
        absent = ids[self._index.find(ids).slots < 0]
        if len(self) + np.unique(absent).size > rows_max:
            raise TableFull(self.spec.name, rows_max)

    def update(
        self, ids: Ids, gradients: Rows, parameters: dict[str, float], origin: Origin = NO_ORIGIN, places: Places | None = None
    ) -> None:
        """Apply the optimizer once for each id with its gradient, float32[n, dim]; an absent one is made first, at its initial value.

        `parameters` are the optimizer's numbers for this step, `origin` where the gradients come from, `places` what a pull of the same
        ids has given, which saves a lookup while it holds. A repeat is applied one after another. Raises TableFull, or ValueError for an
        absent id of a table without initial values; nothing is applied then.
        """
        ids, gradients = _checked_ids(ids), _checked_rows(gradients, ids.size, self._dim)
        found = self._find(ids, places)
        if found.absent and not self._rows.initializer.has_values:
            raise ValueError(f"{found.absent} rows of table {self.spec.name!r} have no value yet, so no gradient can be applied")
        slots, created = self._find_or_insert(ids, found)
        if created.size:
            self._rows.make(slots[created], ids[created])
        self._rows.update(slots, ids, gradients, parameters, origin)

    def assign(self, ids: Ids, rows: Rows, only_absent: bool = False) -> None:
        """Set the rows, float32[n, dim]; of a repeat the last stays. State columns stay as they are; a new row's are initial.

        With `only_absent`, rows that are there are left as they are, and of a repeat the first stays. Raises TableFull, changing nothing.
        """
        self._set(ids, _checked_rows(rows, ids.size, self._dim), only_absent)

    def restore(self, ids: Ids, records: Records, only_absent: bool = False) -> None:
        """Set whole records, float32[n, dim + state], row and state columns; otherwise as `assign`."""
        self._set(ids, _checked_rows(records, ids.size, self._rows.layout.width), only_absent)

    def clear(self, buckets: npt.NDArray[np.bool_]) -> None:
        """Drop the rows of the buckets that are True in bool[16384], with their state. O(rows)."""
        ids, slots = self._rows_in(buckets)
        if ids.size:
            self._remove(ids, slots)
            self._touched.lose_base()  # whoever loads an increment would find the rows in its base

    def clear_all(self) -> None:
        """Drop all rows, with their state: as `clear` of all buckets, but in O(1), since the memory goes with them.

        Snapshots that are open go on to read it: nobody writes there any more.
        """
        if len(self) == 0:
            return
        slab = self._rows.new_slab()
        if slab.capacity < self._slab.capacity:  # the machine refuses as much once more
            self.clear(np.ones(NUM_BUCKETS, np.bool_))
            return
        index = SlotIndex(self._salt, slab.ids)
        index.growths = self._index.growths
        self._rows.slab, self._slab, self._index = slab, slab, index
        self._standing = object()
        self._snapshots = []
        self._touched.lose_base()

    def _rows_in(self, buckets: npt.NDArray[np.bool_]) -> tuple[Ids, Slots]:
        """Return the ids, uint64[n], of the rows in the buckets that are True in bool[16384], and their slots."""
        slots = self._index.live_slots()
        ids = self._slab.ids[slots]
        chosen = buckets[buckets_of(self._salt, read_only(ids))]
        return ids[chosen], slots[chosen]

    def _remove(self, ids: Ids, slots: Slots) -> None:
        """Drop the rows of these ids in these slots, which may become those of others."""
        self._standing = object()
        if self._snapshots:
            self._keep(slots)  # now, since a slot has lost its id by the time that another's record is written there
        self._index.remove(read_only(ids))

    def snapshot(self) -> Snapshot:
        """Return this instant of the table, which stays while the table goes on. O(rows): it copies the ids."""
        snapshot = Snapshot(self._slab, self._index.live_slots(), self._index.num_slots, self._rows.layout)
        self._snapshots.append(weakref.ref(snapshot))
        return snapshot

    def begin_save(self, incremental: bool, tracks: bool = True) -> tuple[SlotSnapshot, bool]:
        """Return this instant of the table, to be saved while the table goes on, and whether it has all rows. O(slots / 64).

        `incremental`: the rows touched since the last committed save would do; they do not where none is known, or rows were dropped
        since. `tracks`: the next increment is to stand on this save, once `settle_save` has told that it is complete; a save before it
        that was not settled counts as failed. Otherwise it is full, and nothing else is changed. Raises MemoryError as SlotSnapshot does;
        it counts as a save that failed.
        """
        only = self._touched.begin(incremental, self._index.num_slots) if tracks else None
        snapshot = SlotSnapshot(self._slab, self._index.num_slots, self._index.free_slots(), only)
        self._snapshots.append(weakref.ref(snapshot))
        return snapshot, only is None

    def settle_save(self, is_committed: bool) -> None:
        """Hear what became of the last tracked save: it is complete, or what was touched before it is for the next one to save.

        Without one that waits for it, nothing is done.
        """
        self._touched.settle(is_committed)

    def load(self, ids: Ids, records: RecordWords, expected: int) -> None:
        """Set whole records uint32[n, stored width], as they lay in a slab that was saved, to the last bit.

        A row that is here already gets the new record; of a repeat the last stays. `expected`: how many rows are still to come, these
        included: the index makes room for them at once. Raises TableFull, changing nothing. The next save is full, unless `count_as_saved`
        says that it need not be.
        """
        ids = _checked_ids(ids)
        if records.dtype != np.uint32 or records.shape != (ids.size, self._slab.width) or not records.flags.c_contiguous:
            wanted = f"uint32[{ids.size}, {self._slab.width}]"
            raise ValueError(f"records must be a C-contiguous {wanted}, not {records.dtype}{list(records.shape)}")
        self.make_room(ids)
        self._index.reserve(max(len(self), expected))
        slots = self._index.insert(ids)
        if self._snapshots:
            self._keep(slots)
        scatter(self._slab.records, slots, read_only(records.view(np.float32)))
        self._touched.lose_base()

    def count_as_saved(self) -> None:
        """Take what is here for what the save has that the next increment stands on: the table was loaded from it, to the last row."""
        self._touched.count_as_saved()

    def extract(self, owned_out: npt.NDArray[np.bool_]) -> TablePart:
        """Take out the rows of the buckets that are True in `owned_out` bool[16384], with their state, and return them. O(rows)."""
        ids, slots = self._rows_in(owned_out)
        order = np.argsort(ids)
        ids, slots = ids[order], slots[order]
        records = aligned_rows(ids.size, self._slab.width)
        gather(self._slab.records, slots, records)
        self._remove(ids, slots)
        return TablePart(ids, records)

    def adopt(self, part: TablePart) -> None:
        """Take in what another server extracted. Raises TableFull, or ValueError where a row is here already; nothing is changed then."""
        ids, records = _checked_ids(part.ids), _checked_rows(part.records, part.ids.size, self._slab.width)
        if self.count_absent(ids) < ids.size or np.unique(ids).size < ids.size:
            raise ValueError(f"some rows of the part are in table {self.spec.name!r} already, or in the part twice")
        slots, _ = self._find_or_insert(ids)
        scatter(self._slab.records, slots, records)
        self._touched.lose_base()  # of a bucket of the part, older rows may have been dropped where it was: an increment would not tell

    def _set(self, ids: Ids, given: Rows, only_absent: bool) -> None:
        slots, created = self._find_or_insert(_checked_ids(ids))
        if only_absent:
            slots, given = slots[created], read_only(given[created])
        self._rows.set(slots, given)

    def _find_or_insert(self, ids: Ids, found: Found | None = None) -> tuple[Slots, npt.NDArray[np.int32]]:
        """Return the slots, about to be written, and the positions in the batch that got a new one, its state set."""
        self.make_room(ids)
        slots, created = self._index.find_or_insert(ids, found)
        self._touched.mark(slots, self._index.num_slots)
        if self._snapshots:
            self._keep(slots)
        if created.size:
            self._rows.reset_state(slots[created])
        return slots, created

    def _keep(self, slots: Slots) -> None:
        snapshots = [snapshot for snapshot in (reference() for reference in self._snapshots) if snapshot is not None and snapshot.is_open]
        for snapshot in snapshots:
            snapshot.keep(slots)
        if len(snapshots) < len(self._snapshots):
            self._snapshots = [weakref.ref(snapshot) for snapshot in snapshots]


def _checked_ids(ids: Ids) -> Ids:
    if ids.dtype != np.uint64 or ids.ndim != 1 or not ids.flags.c_contiguous:
        raise ValueError(f"ids must be a contiguous uint64[n], not {ids.dtype}{list(ids.shape)}")
    return read_only(ids)


def _checked_rows(rows: Rows, num_rows: int, width: int) -> Rows:
    if rows.dtype != np.float32 or rows.shape != (num_rows, width) or not rows.flags.c_contiguous:
        raise ValueError(f"rows must be a C-contiguous float32[{num_rows}, {width}], not {rows.dtype}{list(rows.shape)}")
    return read_only(rows)

"""What a save gets of a table: an instant of all rows, or of those touched since the save that it stands on."""

import gc

import numpy as np
import numpy.typing as npt
import pytest

from naive.sharding import bucket_of
from ps_proto.errors import TableFull
from ps_proto.values import SGD, Adagrad, Adam, Constant, Optimizer, TableSpec
from ps_server.shard import stored_rows
from ps_server.shard.slab import Slab
from ps_server.shard.slot_snapshot import RecordWords, SlotSnapshot
from ps_server.shard.table import Table, TablePart
from sharding.hashing import NUM_BUCKETS

PLAIN = SGD(lr=1.0)


def make_table(optimizer: Optimizer = PLAIN, dtype: str = "float32", rows_max: int | None = None, max_norm: float | None = None) -> Table:
    """Return a table "user" of dim 2 whose rows start as [1, 1]."""
    return Table(TableSpec("user", 2, optimizer=optimizer, initializer=Constant(1.0), dtype=dtype, max_norm=max_norm), rows_max)


def ids_of(*ids: int) -> npt.NDArray[np.uint64]:
    return np.array(ids, dtype=np.uint64)


def rows_of(*rows: float) -> npt.NDArray[np.float32]:
    """Return one row of dim 2 for each number."""
    return np.array([[row, row] for row in rows], dtype=np.float32)


def assign(table: Table, rows: dict[int, float]) -> None:
    table.assign(ids_of(*rows), rows_of(*rows.values()))


def buckets(*ids: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(NUM_BUCKETS, dtype=np.bool_)
    mask[[bucket_of("user", id) for id in ids]] = True
    return mask


def read(snapshot: SlotSnapshot, bytes_max: int = 40) -> dict[int, float]:
    """Return what is left to read: the first number of each row, by id."""
    held: dict[int, float] = {}
    while (piece := snapshot.read(bytes_max)) is not None:
        held.update(zip(piece[0].tolist(), piece[1].view(np.float32)[:, 0].tolist(), strict=True))
    return held


def saved(table: Table, incremental: bool = True, is_committed: bool = True) -> tuple[dict[int, float], bool]:
    """Save the table at once; return what the save has, and whether it is full."""
    snapshot, is_full = table.begin_save(incremental)
    table.settle_save(is_committed)
    return read(snapshot), is_full


# --- one instant -------------------------------------------------------------------------------------------------------------


def test_a_save_has_the_rows_of_its_instant_whatever_happens_before_they_are_read() -> None:
    table = make_table()
    assign(table, {1: 1, 2: 2, 3: 3, 4: 4})
    snapshot, is_full = table.begin_save(incremental=False)
    first = snapshot.read(1)
    assert first is not None
    assert first[0].tolist() == [1]
    table.update(ids_of(2, 9), rows_of(1, 1), PLAIN.parameters())
    assign(table, {1: 70, 4: 80})
    assert read(snapshot) == {2: 2, 3: 3, 4: 4}
    assert is_full


def test_rows_that_are_dropped_and_slots_that_are_used_again_show_in_a_save_as_they_were() -> None:
    table = make_table()
    assign(table, {1: 1, 2: 2, 3: 3})
    snapshot, _ = table.begin_save(incremental=False)
    table.clear(buckets(1))
    table.extract(buckets(3))
    assign(table, {8: 8, 9: 9})  # into the slots of 1 and 3
    assert len(table) == 3
    assert read(snapshot) == {1: 1, 2: 2, 3: 3}


def test_a_table_that_is_emptied_drops_its_memory_and_copies_nothing_for_those_who_read_it() -> None:
    table = make_table(Adagrad(lr=1.0))
    assign(table, {7: 7, 8: 8})
    _, places = table.pull_with_places(ids_of(7, 8))
    save, reader = table.begin_save(incremental=False)[0], table.snapshot()
    table.clear_all()
    assert (len(table), save.num_kept, reader.num_kept) == (0, 0, 0)
    assert table.count_absent(ids_of(7, 8), places) == 2
    assign(table, {9: 9, 8: -8})
    assert reader.read(0, 2)[1][:, 0].tolist() == [7, 8]
    assert read(save) == {7: 7, 8: 8}
    assert saved(table) == ({8: -8, 9: 9}, True)
    table.clear_all()
    assert saved(table) == ({}, True)
    table.clear_all()  # of nothing
    assert saved(table) == ({}, False)


def test_where_the_machine_has_no_room_for_another_slab_rows_are_dropped_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(rows_max=4)
    assign(table, {1: 1, 2: 2, 3: 3, 4: 4})
    monkeypatch.setattr(stored_rows, "Slab", lambda width, rows_max: Slab(width, 2))
    table.clear_all()
    assign(table, {5: 5, 6: 6, 7: 7, 8: 8})
    assert saved(table) == ({5: 5, 6: 6, 7: 7, 8: 8}, True)


def test_slots_that_were_free_are_not_saved() -> None:
    table = make_table()
    assign(table, {1: 1, 2: 2, 3: 3})
    table.clear(buckets(2))
    snapshot, _ = table.begin_save(incremental=False)
    assign(table, {8: 8})  # into the slot of 2
    assert read(snapshot) == {1: 1, 3: 3}


def test_state_columns_are_saved_as_they_lie() -> None:
    table = make_table(Adam(), dtype="bfloat16")
    table.update(ids_of(5), rows_of(1), Adam(lr=0.5).parameters())
    piece = table.begin_save(incremental=False)[0].read(100)
    assert piece is not None
    assert piece[1].shape == (1, 1 + 5)  # two numbers of a row in a word; m and v of each, and how many steps there were
    assert piece[1].tobytes() == table.extract(buckets(5)).records.tobytes()


def test_a_save_that_is_closed_or_dropped_costs_no_more() -> None:
    table = make_table()
    assign(table, {1: 1})
    closed, dropped = table.begin_save(incremental=False)[0], table.begin_save(incremental=False)[0]
    closed.close()
    del dropped
    gc.collect()
    assign(table, {1: 2})
    assert table._snapshots == []


def test_a_snapshot_for_readers_and_a_save_are_open_side_by_side() -> None:
    table = make_table(Adagrad())
    assign(table, {1: 1, 2: 2})
    taken, (snapshot, _) = table.snapshot(), table.begin_save(incremental=False)
    table.clear(buckets(1))
    assign(table, {2: 20, 3: 3})
    assert taken.read(0, 9)[1][:, 0].tolist() == [1, 2]
    assert read(snapshot) == {1: 1, 2: 2}


# --- what was touched since --------------------------------------------------------------------------------------------------


def test_an_increment_has_what_was_updated_assigned_restored_or_made_since_the_save_before() -> None:
    table = make_table()
    assign(table, dict.fromkeys(range(100), 0.0))
    assert saved(table) == (dict.fromkeys(range(100), 0.0), True)
    table.pull(ids_of(1, 500))
    table.update(ids_of(2, 300), rows_of(1, 1), PLAIN.parameters())
    assign(table, {3: 3, 301: 31})
    table.restore(ids_of(4), rows_of(4))
    assert saved(table) == ({2: -1, 300: 0, 3: 3, 301: 31, 4: 4}, False)
    assert saved(table) == ({}, False)


def test_an_increment_has_the_rows_that_were_touched_by_places() -> None:
    table = make_table()
    assign(table, {1: 1, 2: 2})
    saved(table)
    _, places = table.pull_with_places(ids_of(2, 5))
    table.update(ids_of(2, 5), rows_of(1, 1), PLAIN.parameters(), places=places)
    assert saved(table) == ({2: 1, 5: 0}, False)


def test_what_is_touched_while_a_save_is_under_way_is_in_the_next_one() -> None:
    table = make_table()
    assign(table, {1: 1, 2: 2})
    saved(table)
    assign(table, {1: 10})
    snapshot, _ = table.begin_save(incremental=True)
    assign(table, {2: 20})
    table.settle_save(True)
    assert read(snapshot) == {1: 10}
    assert saved(table) == ({2: 20}, False)


def test_after_a_save_that_failed_the_next_one_has_its_rows_too() -> None:
    table = make_table()
    assert saved(table, is_committed=False) == ({}, True)
    assign(table, {1: 1})
    assert saved(table) == ({1: 1}, True)  # there is still none to stand on
    assign(table, {2: 2})
    saved(table, is_committed=False)
    assign(table, {3: 3})
    table.begin_save(incremental=False)  # nobody says what became of it
    assert saved(table) == ({2: 2, 3: 3}, False)


def test_a_save_that_is_not_tracked_is_full_and_changes_nothing() -> None:
    table = make_table()
    assign(table, {1: 1, 2: 2})
    saved(table)
    assign(table, {1: 10})
    first, _ = table.begin_save(incremental=True)
    elsewhere, is_full = table.begin_save(incremental=True, tracks=False)
    table.settle_save(False)  # of the first
    assert (read(elsewhere), is_full) == ({1: 10, 2: 2}, True)
    assert saved(table) == (read(first), False) == ({1: 10}, False)


def test_rows_that_are_not_tracked_cost_nothing() -> None:
    table = make_table()
    table.begin_save(incremental=False, tracks=False)
    assign(table, dict.fromkeys(range(100), 0.0))
    assert table._touched.nbytes == 0


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_once_rows_are_dropped_the_next_save_is_full(when: str) -> None:
    table = make_table()
    assign(table, {1: 1, 2: 2})
    saved(table)
    if when == "before":
        table.clear(buckets(1))
    table.begin_save(incremental=True)
    if when == "meanwhile":
        table.clear(buckets(1))
        table.settle_save(True)
    assert saved(table) == ({2: 2}, True)
    assert saved(table) == ({}, False)


def test_clearing_buckets_without_rows_leaves_increments_possible() -> None:
    table = make_table()
    assign(table, {1: 1})
    saved(table)
    table.clear(buckets(2))
    assert saved(table) == ({}, False)


def test_buckets_that_leave_are_no_longer_saved_and_those_that_come_need_a_full_save() -> None:
    """Where they were, rows of these buckets may have been dropped since the save before: in an increment nobody would say so."""
    table, other = make_table(), make_table()
    assign(table, {1: 1, 2: 2})
    saved(table)
    assign(table, {1: 10, 2: 20})
    part = table.extract(buckets(1))
    assert saved(table) == ({2: 20}, False)
    saved(other)
    other.adopt(part)
    assert saved(other) == ({1: 10}, True)
    other.adopt(TablePart(part.ids[:0].copy(), part.records[:0].copy()))
    assert saved(other) == ({1: 10}, True)


# --- loading -----------------------------------------------------------------------------------------------------------------


def words_of(*rows: float) -> RecordWords:
    """Return the records of one row of dim 2 for each number, without state."""
    return rows_of(*rows).view(np.uint32)


def held(table: Table) -> dict[int, float]:
    return read(table.begin_save(incremental=False, tracks=False)[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_was_saved_is_loaded_to_the_last_bit_in_pieces(dtype: str) -> None:
    parameters = Adam(lr=0.1).parameters()
    table, loaded = make_table(Adam(), dtype), make_table(Adam(), dtype)
    ids = np.random.default_rng(0).integers(0, 2**64, 1_000, dtype=np.uint64)
    for _ in range(2):
        table.update(ids, np.random.default_rng(1).normal(size=(ids.size, 2)).astype(np.float32), parameters)
    snapshot, _ = table.begin_save(incremental=False)
    expected = len(table)
    while (piece := snapshot.read(4_000)) is not None:
        loaded.load(*piece, expected=expected)
        expected -= piece[0].size
    assert expected == 0
    assert loaded.growths == 1
    for each in (table, loaded):
        each.update(ids, np.ones((ids.size, 2), dtype=np.float32), parameters)
    everywhere = np.ones(NUM_BUCKETS, dtype=np.bool_)
    part, wanted = loaded.extract(everywhere), table.extract(everywhere)
    assert part.ids.tolist() == wanted.ids.tolist()
    assert part.records.tobytes() == wanted.records.tobytes()


def test_loaded_rows_take_the_place_of_those_that_are_there() -> None:
    table = make_table()
    assign(table, {1: 1, 2: 2})
    table.load(ids_of(2, 3, 4, 4), words_of(20, 30, 40, 41), expected=0)
    assert held(table) == {1: 1, 2: 20, 3: 30, 4: 41}


def test_no_bit_of_a_loaded_record_is_changed() -> None:
    """Nor is a row made to fit `max_norm` again, nor a signalling NaN made a quiet one."""
    table = make_table(max_norm=0.5)
    words = np.array([[0x7F800001, 0xFF800001], [0x42F60000, 0x80000000]], dtype=np.uint32)
    table.load(ids_of(7, 8), words, expected=2)
    piece = table.begin_save(incremental=False)[0].read(1_000)
    assert piece is not None
    assert piece[1].tolist() == words.tolist()


def test_a_load_in_the_middle_of_growth_finds_every_row() -> None:
    table = make_table()
    assign(table, dict.fromkeys(range(2_867), 0.0))  # as many as fill an index of 4,096 entries
    assign(table, {2_867: 0.0})
    assert table._index.is_growing
    table.load(np.arange(2_868, dtype=np.uint64), np.ones((2_868, 2), dtype=np.uint32), expected=2_868)
    assert len(table) == 2_868
    assert table.count_absent(np.arange(2_868, dtype=np.uint64)) == 0


def test_rows_that_are_loaded_do_not_show_in_what_was_taken_before() -> None:
    table = make_table()
    assign(table, {1: 1})
    taken, (snapshot, _) = table.snapshot(), table.begin_save(incremental=False)
    table.load(ids_of(1, 2), words_of(10, 20), expected=2)
    assert taken.read(0, 9)[1].tolist() == [[1, 1]]
    assert read(snapshot) == {1: 1}


def test_places_of_a_pull_hold_through_a_load_and_no_longer_once_rows_are_cleared_for_it() -> None:
    table = make_table()
    assign(table, {1: 1, 2: 2})
    _, places = table.pull_with_places(ids_of(1, 2, 3))
    table.load(ids_of(3, 1), words_of(30, 10), expected=2)
    assert table.count_absent(ids_of(1, 2, 3), places) == 0
    table.update(ids_of(1, 2, 3), rows_of(1, 1, 1), PLAIN.parameters(), places=places)
    assert held(table) == {1: 9, 2: 1, 3: 29}
    table.clear(buckets(1, 2))
    table.load(ids_of(8, 9), words_of(8, 9), expected=2)  # into the slots of 1 and 2
    table.update(ids_of(1, 2, 3), rows_of(0, 0, 1), PLAIN.parameters(), places=places)
    assert held(table) == {1: 1, 2: 1, 3: 28, 8: 8, 9: 9}


def test_an_increment_stands_on_what_was_loaded_once_that_counts_as_saved() -> None:
    table = make_table()
    table.load(ids_of(1, 2), words_of(1, 2), expected=2)
    table.count_as_saved()
    assign(table, {2: 20})
    assert saved(table) == ({2: 20}, False)


def test_a_save_after_a_load_that_counts_for_nothing_is_full() -> None:
    table = make_table()
    saved(table)
    table.load(ids_of(1, 2), words_of(1, 2), expected=2)
    assert saved(table) == ({1: 1, 2: 2}, True)
    assert saved(table) == ({}, False)


def test_rows_that_do_not_fit_are_refused_and_change_nothing() -> None:
    table = make_table(rows_max=2)
    table.load(ids_of(1), words_of(1), expected=10**9)
    with pytest.raises(TableFull):
        table.load(ids_of(1, 2, 3), words_of(10, 20, 30), expected=3)
    table.load(ids_of(1, 2, 2), words_of(11, 21, 22), expected=3)
    assert held(table) == {1: 11, 2: 22}


@pytest.mark.parametrize(
    ("ids", "records"),
    [
        (ids_of(1, 2), words_of(1)),
        (ids_of(1), np.zeros((1, 3), dtype=np.uint32)),
        (ids_of(1), np.zeros(2, dtype=np.uint32)),
        (ids_of(1), words_of(1).view(np.int32)),
        (ids_of(1, 2), np.asfortranarray(words_of(1, 2))),
        (ids_of(1).view(np.int64), words_of(1)),
    ],
)
def test_records_of_another_shape_or_kind_are_refused(ids: npt.NDArray[np.uint64], records: RecordWords) -> None:
    table = make_table()
    with pytest.raises(ValueError, match="must be a"):
        table.load(ids, records, expected=1)
    assert len(table) == 0

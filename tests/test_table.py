"""A table: rows that are made by pushes, read without being made, and kept as they were for whoever holds a snapshot."""

import gc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from naive.initializers import initial_row
from naive.sharding import bucket_of
from ps_proto.errors import TableFull
from ps_proto.values import SGD, Adagrad, Adam, Assigned, Constant, Normal, Optimizer, TableSpec, Uniform
from ps_server.shard import records, slot_snapshot, snapshot, touched
from ps_server.shard.table import Table, TablePart
from ps_server.shard.warm_up import warm_up_tables
from sharding.arrays import read_only
from sharding.hashing import NUM_BUCKETS

PLAIN = SGD(lr=1.0)
SGD_1 = PLAIN.parameters()


def make_table(optimizer: Optimizer = PLAIN, rows_max: int | None = None) -> Table:
    """Return a table "user" of dim 2 whose rows start as [1, 1]."""
    return Table(TableSpec("user", 2, optimizer=optimizer, initializer=Constant(1.0)), rows_max)


def ids_of(*ids: int) -> npt.NDArray[np.uint64]:
    return np.array(ids, dtype=np.uint64)


def rows_of(*rows: float) -> npt.NDArray[np.float32]:
    """Return one row of dim 2 for each number."""
    return np.array([[row, row] for row in rows], dtype=np.float32)


def held(table: Table) -> dict[int, list[float]]:
    ids, rows = table.snapshot().read(0, len(table))
    return dict(zip(ids.tolist(), rows.tolist(), strict=True))


def buckets(*ids: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(NUM_BUCKETS, dtype=np.bool_)
    mask[[bucket_of("user", id) for id in ids]] = True
    return mask


# --- pull and update ---------------------------------------------------------------------------------------------------------


def test_an_update_at_the_places_of_a_pull_makes_the_rows_that_were_absent_and_finds_those_made_since() -> None:
    table = make_table()
    table.update(ids_of(7), rows_of(3), SGD_1)
    _, places = table.pull_with_places(ids_of(8, 7, 9))
    table.update(ids_of(9), rows_of(1), SGD_1)
    for _ in range(2):  # what was pulled stays as it was
        table.update(ids_of(8, 7, 9), rows_of(1, 1, 1), SGD_1, places=places)
        assert places.found.slots.tolist() == [-1, 0, -1]
    assert held(table) == {7: [-4, -4], 8: [-1, -1], 9: [-2, -2]}


def test_places_of_a_pull_count_no_more_once_a_row_is_dropped() -> None:
    table = make_table()
    table.update(ids_of(7, 8), rows_of(1, 1), SGD_1)
    _, places = table.pull_with_places(ids_of(7, 8))
    table.clear(buckets(7))
    table.update(ids_of(5), rows_of(3), SGD_1)  # in the slot that 7 had
    assert table.count_absent(ids_of(7, 8), places) == 1
    table.update(ids_of(7, 8), rows_of(10, 10), SGD_1, places=places)
    assert held(table) == {5: [-2, -2], 7: [-9, -9], 8: [-10, -10]}


def test_a_pull_makes_no_row_and_an_update_does() -> None:
    table = make_table()
    assert table.pull(ids_of(7)).tolist() == [[1, 1]]
    assert len(table) == 0
    table.update(ids_of(7), rows_of(3), SGD_1)
    assert len(table) == 1
    assert table.pull(ids_of(8, 7, 7)).tolist() == [[1, 1], [-2, -2], [-2, -2]]
    assert len(table) == 1


def test_an_absent_row_reads_as_what_an_update_starts_from() -> None:
    spec = TableSpec("user", 5, initializer=Normal(), seed=3)
    table = Table(spec)
    ids = ids_of(0, 2**64 - 1, 12)
    before = table.pull(ids)
    assert before.tobytes() == np.array([initial_row(spec, int(id)) for id in ids]).tobytes()
    table.update(ids, np.zeros((3, 5), dtype=np.float32), SGD_1)
    assert table.pull(ids).tobytes() == before.tobytes()


def test_a_repeat_within_one_update_is_applied_one_after_another() -> None:
    table = make_table(Adam())
    table.update(ids_of(4, 4), rows_of(1, 1), Adam(lr=0.5).parameters())
    assert table.pull(ids_of(4)) == pytest.approx(rows_of(0.0), abs=1e-6)  # two steps of the learning rate each


def test_pulled_rows_are_fresh_and_start_at_a_multiple_of_64_bytes() -> None:
    table = Table(TableSpec("user", 3))
    pulled = [table.pull(np.arange(num_ids, dtype=np.uint64)) for num_ids in range(1, 40)]  # all kept: each has memory of its own
    for num_ids, rows in enumerate(pulled, start=1):
        assert rows.ctypes.data % 64 == 0
        assert rows.flags.c_contiguous
        assert rows.shape == (num_ids, 3)
    rows[:] = 9.0
    assert not table.pull(ids_of(1)).any()


def test_arrays_off_the_wire_may_be_read_only() -> None:
    table = make_table()
    ids = np.frombuffer(ids_of(1, 2).tobytes(), dtype=np.uint64)
    gradients = np.frombuffer(rows_of(1, 2).tobytes(), dtype=np.float32).reshape(2, 2)
    table.update(ids, gradients, SGD_1)
    assert table.pull(ids).tolist() == [[0, 0], [-1, -1]]


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        (ids_of(1).astype(np.int64), rows_of(1)),
        (ids_of(1, 2), rows_of(1)),
        (ids_of(1), rows_of(1).astype(np.float64)),
        (ids_of(1), np.ones((1, 3), dtype=np.float32)),
        (ids_of(1, 2), np.asfortranarray(np.ones((2, 2), dtype=np.float32))),
        (ids_of(1, 2, 3, 4)[::2], rows_of(1, 2)),
    ],
)
def test_arrays_of_another_shape_or_kind_are_refused(ids: npt.NDArray[Any], rows: npt.NDArray[Any]) -> None:
    table = make_table()
    with pytest.raises(ValueError, match="must be a"):
        table.update(ids, rows, SGD_1)
    with pytest.raises(ValueError, match="must be a"):
        table.assign(ids, rows)
    with pytest.raises(ValueError, match="must be a"):
        table.adopt(TablePart(ids, rows))
    assert len(table) == 0


# --- tables without initial values -------------------------------------------------------------------------------------------


def test_a_row_of_an_assigned_table_is_there_once_it_was_assigned() -> None:
    table = Table(TableSpec("dense", 2, initializer=Assigned()))
    assert table.count_absent(ids_of(0, 1)) == 2
    with pytest.raises(ValueError, match="no value"):
        table.pull(ids_of(0))
    with pytest.raises(ValueError, match="1 rows of table 'dense' have no value yet"):
        table.update(ids_of(0), rows_of(1), SGD_1)
    table.assign(ids_of(0), rows_of(5))
    assert len(table) == 1
    table.update(ids_of(0), rows_of(1), SGD_1)
    assert table.pull(ids_of(0)).tolist() == [[4, 4]]


# --- assign ------------------------------------------------------------------------------------------------------------------


def test_assign_sets_rows_and_leaves_the_state_of_those_that_were_there() -> None:
    table = make_table(Adagrad(lr=1.0, initial_accumulator_value=7.0, eps=0.0))
    table.update(ids_of(1), rows_of(3), Adagrad(lr=1.0).parameters())  # a = 7 + 9
    table.assign(ids_of(1, 2), rows_of(10, 20))
    ids, found = table.snapshot().read_records(0, 2)
    assert ids.tolist() == [1, 2]
    assert found.tolist() == [[10, 10, 16, 16], [20, 20, 7, 7]]


def test_of_a_repeat_the_last_assigned_row_stays_and_with_only_absent_the_first() -> None:
    table = make_table()
    table.assign(ids_of(1, 1), rows_of(2, 3))
    table.assign(ids_of(1, 2, 2), rows_of(4, 5, 6), only_absent=True)
    assert held(table) == {1: [3, 3], 2: [5, 5]}


# --- room --------------------------------------------------------------------------------------------------------------------


def test_a_full_table_refuses_new_rows_and_applies_nothing() -> None:
    table = make_table(rows_max=2)
    table.update(ids_of(1, 2), rows_of(1, 1), SGD_1)
    table.make_room(ids_of(1, 2, 2, 1))
    for change in (table.make_room, lambda ids: table.update(ids, rows_of(1, 1), SGD_1), lambda ids: table.assign(ids, rows_of(1, 1))):
        with pytest.raises(TableFull) as raised:
            change(ids_of(1, 3))
        assert (raised.value.table, raised.value.rows_max) == ("user", 2)
    assert held(table) == {1: [0, 0], 2: [0, 0]}
    table.update(ids_of(2, 1), rows_of(1, 1), SGD_1)  # rows that are there need no room


def test_a_repeated_new_id_needs_room_once() -> None:
    table = make_table(rows_max=2)
    table.update(ids_of(1, 2, 2, 2), rows_of(1, 1, 1, 1), SGD_1)
    assert held(table) == {1: [0, 0], 2: [-2, -2]}


def test_it_counts_its_rows_and_bytes() -> None:
    table = make_table(Adam())
    table.update(np.arange(100, dtype=np.uint64), np.ones((100, 2), dtype=np.float32), Adam().parameters())
    assert (len(table), table.nbytes, table.growths) == (100, 100 * 4 * 7, 1)
    assert table.index_nbytes >= 100 * 16


# --- whole records -----------------------------------------------------------------------------------------------------------


def test_restored_records_bring_their_state() -> None:
    spec = TableSpec("user", 2, Adagrad(lr=1.0))
    source, target = Table(spec), Table(spec)
    ids = np.array([3, 2**64 - 1], np.uint64)
    source.update(ids, np.array([[1, 2], [3, 4]], np.float32), spec.optimizer.parameters())
    taken = source.snapshot().read_records(0, 2)
    target.assign(ids[:1], np.ones((1, 2), np.float32))
    target.restore(*taken)
    assert [column.name for column in target.columns] == ["sum_of_squares"]
    assert target.snapshot().read_records(0, 2)[1].tobytes() == taken[1].tobytes()
    with pytest.raises(ValueError, match=r"float32\[2, 4\]"):
        target.restore(ids, np.ones((2, 2), np.float32))


def test_clearing_drops_the_rows_of_the_buckets_and_no_other() -> None:
    table = Table(TableSpec("user", 1))
    ids = np.arange(100, dtype=np.uint64)
    table.assign(ids, np.ones((100, 1), np.float32))
    upper = np.arange(NUM_BUCKETS) >= NUM_BUCKETS // 2
    table.clear(upper)
    left = [id for id in range(100) if not upper[bucket_of("user", id)]]
    assert 0 < len(left) < 100
    assert table.snapshot().read(0, 100)[0].tolist() == left
    table.clear(np.ones(NUM_BUCKETS, np.bool_))
    assert len(table) == 0
    assert table.pull(ids).tolist() == [[0.0]] * 100


# --- snapshots ---------------------------------------------------------------------------------------------------------------


def test_a_snapshot_stays_while_the_table_goes_on() -> None:
    table = make_table()
    table.assign(ids_of(2**64 - 1, 0, 5), rows_of(1, 2, 3))
    first = table.snapshot()
    table.update(ids_of(0, 9), rows_of(1, 1), SGD_1)
    second = table.snapshot()
    table.assign(ids_of(0, 5), rows_of(70, 80))
    assert first.read(0, 9)[0].tolist() == [0, 5, 2**64 - 1]
    assert first.read(0, 9)[1].tolist() == rows_of(2, 3, 1).tolist()
    assert second.read(0, 9)[1].tolist() == rows_of(1, 3, 0, 1).tolist()
    assert held(table) == {0: [70, 70], 5: [80, 80], 9: [0, 0], 2**64 - 1: [1, 1]}
    assert (len(first), len(second)) == (3, 4)


def test_a_snapshot_is_read_in_parts() -> None:
    table = make_table()
    table.assign(np.arange(10, dtype=np.uint64)[::-1].copy(), rows_of(*range(10)))
    taken = table.snapshot()
    assert taken.read(8, 20)[0].tolist() == [8, 9]
    assert taken.read(2, 4)[1].tolist() == rows_of(7, 6).tolist()
    assert taken.read(10, 20)[0].size == 0


def test_rows_that_leave_and_slots_that_are_used_again_do_not_show_in_a_snapshot() -> None:
    table = make_table(Adagrad())
    table.assign(ids_of(1, 2, 3), rows_of(1, 2, 3))
    taken = table.snapshot()
    table.extract(buckets(1, 3))
    table.assign(ids_of(8, 9), rows_of(8, 9))  # into the slots of 1 and 3
    assert taken.read(0, 3)[0].tolist() == [1, 2, 3]
    assert taken.read(0, 3)[1].tolist() == rows_of(1, 2, 3).tolist()
    assert taken.num_kept == 2
    assert sorted(held(table)) == [2, 8, 9]


def test_a_row_is_kept_once_however_often_it_changes() -> None:
    table = make_table()
    table.assign(ids_of(1, 2), rows_of(1, 2))
    taken = table.snapshot()
    for _ in range(3):
        table.update(ids_of(1, 1, 7), rows_of(1, 1, 1), SGD_1)
    assert taken.num_kept == 1


def test_a_closed_or_dropped_snapshot_keeps_nothing() -> None:
    table = make_table()
    table.assign(ids_of(1, 2), rows_of(1, 2))
    closed, dropped, held_on = table.snapshot(), table.snapshot(), table.snapshot()
    closed.close()
    closed.close()
    del dropped
    gc.collect()
    table.update(ids_of(1), rows_of(1), SGD_1)
    assert (closed.num_kept, held_on.num_kept) == (0, 1)
    assert len(table._snapshots) == 1
    with pytest.raises(ValueError, match="closed"):
        closed.read(0, 1)


def test_a_snapshot_outlives_its_table() -> None:
    table = make_table()
    table.assign(ids_of(1), rows_of(5))
    taken = table.snapshot()
    del table
    gc.collect()
    assert taken.read(0, 1)[1].tolist() == [[5, 5]]


def test_the_snapshot_of_an_empty_table_is_empty() -> None:
    table = make_table()
    taken = table.snapshot()
    table.update(ids_of(1), rows_of(1), SGD_1)
    assert len(taken) == taken.read(0, 5)[0].size == 0


# --- buckets that move -------------------------------------------------------------------------------------------------------


def test_buckets_move_with_their_rows_and_state() -> None:
    parameters = Adam(lr=0.1).parameters()
    stays, source, target = make_table(Adam()), make_table(Adam()), make_table(Adam())
    ids = np.arange(200, dtype=np.uint64)
    gradients = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    moving = np.zeros(NUM_BUCKETS, dtype=np.bool_)
    moving[: NUM_BUCKETS // 3] = True
    for table in (stays, source):
        table.update(ids, gradients, parameters)
    part = source.extract(moving)
    assert part.ids.tolist() == [id for id in range(200) if bucket_of("user", id) < NUM_BUCKETS // 3]
    assert part.records.shape == (part.ids.size, 7)
    target.adopt(part)
    for table in (stays, target):
        table.update(part.ids, gradients[: part.ids.size], parameters)
    assert target.pull(part.ids).tobytes() == stays.pull(part.ids).tobytes()
    assert (len(source), len(target)) == (200 - part.ids.size, part.ids.size)
    assert source.count_absent(part.ids) == part.ids.size


def test_a_part_whose_rows_are_there_or_twice_is_refused() -> None:
    table, other = make_table(), make_table()
    table.assign(ids_of(1, 2), rows_of(1, 2))
    other.assign(ids_of(2), rows_of(9))
    part = table.extract(buckets(1, 2))
    with pytest.raises(ValueError, match="already"):
        other.adopt(part)
    with pytest.raises(ValueError, match="twice"):
        other.adopt(TablePart(ids_of(4, 4), rows_of(1, 1)))
    assert held(other) == {2: [9, 9]}


def test_a_part_that_does_not_fit_is_refused() -> None:
    table = make_table(rows_max=1)
    with pytest.raises(TableFull):
        table.adopt(TablePart(ids_of(4, 5), rows_of(1, 1)))
    assert len(table) == 0


# --- warm up -----------------------------------------------------------------------------------------------------------------


def test_after_the_warm_up_no_kernel_is_compiled_again() -> None:
    warm_up_tables()
    for initializer in (Uniform(-1.0, 1.0), Normal(), Constant(0.5)):
        for optimizer in (SGD(), Adagrad(), Adam()):
            table = Table(TableSpec("user", 2, optimizer=optimizer, initializer=initializer))
            ids = np.frombuffer(np.arange(300, dtype=np.uint64).tobytes(), dtype=np.uint64)
            table.update(ids, np.ones((300, 2), dtype=np.float32), optimizer.parameters())
            taken, (saved, _) = table.snapshot(), table.begin_save(incremental=True)
            table.pull(ids)
            table.assign(ids[:5], rows_of(*range(5)), only_absent=True)
            table.update(ids[5:9].copy(), rows_of(*range(4)), optimizer.parameters())
            taken.read_records(0, 300)
            if (piece := saved.read(1_000)) is not None:
                Table(table.spec).load(read_only(piece[0]), read_only(piece[1]), expected=300)  # as they come from a file
            table.adopt(table.extract(buckets(1, 2, 3)))
    kernels = (
        *(records.gather, records.scatter, records.reset_state, snapshot._keep, snapshot._read, touched._mark),
        *(slot_snapshot._exclude, slot_snapshot._keep, slot_snapshot._next_slots, slot_snapshot._read),
    )
    assert [len(getattr(kernel, "signatures", [()])) for kernel in kernels] == [1] * len(kernels)

"""An instant of a slab, read in pieces while its records change, against a copy of then."""

import numpy as np
import numpy.typing as npt
import pytest

from ps_server.shard import slot_snapshot
from ps_server.shard.records import Slots
from ps_server.shard.slab import Slab
from ps_server.shard.slot_snapshot import SlotSnapshot
from ps_server.shard.touched import Words, words_for

WIDTH = 3
ROW_BYTES = 8 + 4 * WIDTH
NONE_FREE = np.zeros(0, dtype=np.int32)

Held = dict[int, list[int]]


def slots_of(*slots: int) -> Slots:
    return np.array(slots, dtype=np.int32)


def words_of(num_slots: int, slots: npt.NDArray[np.int32]) -> Words:
    words = np.zeros(words_for(num_slots), dtype=np.uint64)
    for slot in slots.tolist():
        words[slot // 64] |= np.uint64(1 << slot % 64)
    return words


def filled(num_slots: int, capacity: int | None = None) -> Slab:
    """Return a slab in whose slot s lies the record [s, s + 0.5, -s] of the id 1000 + s."""
    slab = Slab(WIDTH, capacity or max(num_slots, 1))
    for slot in range(num_slots):
        slab.ids[slot] = 1000 + slot
        slab.records[slot] = slot, slot + 0.5, -slot
    return slab


def copied(slab: Slab, slots: list[int]) -> Held:
    return {int(slab.ids[slot]): slab.words[slot].tolist() for slot in slots}


def rest_of(snapshot: SlotSnapshot, rows_max: int = 7) -> Held:
    """Read what is left, and check the pieces: each id once, no piece larger than asked for."""
    held: Held = {}
    while (piece := snapshot.read(rows_max * ROW_BYTES)) is not None:
        ids, records = piece
        assert 1 <= ids.size <= rows_max
        assert records.dtype == np.uint32
        assert records.shape == (ids.size, WIDTH)
        assert not held.keys() & set(ids.tolist())
        held.update(zip(ids.tolist(), records.tolist(), strict=True))
    return held


@pytest.mark.parametrize("num_slots", [0, 1, 6, 7, 8, 63, 64, 65, 200])
def test_it_has_every_slot_but_the_free_ones(num_slots: int) -> None:
    slab = filled(num_slots, capacity=300)
    free = slots_of(*range(2, num_slots, 5))
    snapshot = SlotSnapshot(slab, num_slots, free)
    assert rest_of(snapshot) == copied(slab, [slot for slot in range(num_slots) if slot not in free])
    assert snapshot.read(1) is None  # and stays at its end
    assert not snapshot.is_open


@pytest.mark.parametrize("slots", [(), (0,), (199,), (5, 63, 64, 130, 199)])
def test_an_increment_has_the_touched_slots_alone(slots: tuple[int, ...]) -> None:
    slab = filled(200)
    words = words_of(200, slots_of(*slots))
    before = words.copy()
    snapshot = SlotSnapshot(slab, 200, slots_of(63), words)
    snapshot.keep(slots_of(*range(200)))
    assert rest_of(snapshot, rows_max=2) == copied(slab, [slot for slot in slots if slot != 63])
    assert np.array_equal(words, before)  # they are asked for again where the save fails


def test_what_was_read_and_what_came_later_is_not_kept() -> None:
    slab = filled(10, capacity=20)
    snapshot = SlotSnapshot(slab, 10, slots_of(7))
    before = copied(slab, [0, 1, 2])
    piece = snapshot.read(3 * ROW_BYTES)
    assert piece is not None
    snapshot.keep(slots_of(0, 2, 7, 10, 19))
    assert snapshot.num_kept == 0
    snapshot.keep(slots_of(3, 3, 9))
    snapshot.keep(slots_of(9))
    assert snapshot.num_kept == 2
    assert len(rest_of(snapshot)) == 6
    assert dict(zip(piece[0].tolist(), piece[1].tolist(), strict=True)) == before


def test_the_memory_of_what_was_kept_serves_again_once_it_is_read() -> None:
    slab = filled(100)
    snapshot, got = SlotSnapshot(slab, 100, NONE_FREE), set[int]()
    for slot in range(99, 49, -1):
        snapshot.keep(slots_of(slot))
        slab.ids[slot] = 0
        assert snapshot.num_kept == 1
        piece = snapshot.read(ROW_BYTES)
        assert piece is not None
        got |= set(piece[0].tolist())
        assert snapshot.num_kept == 0
    assert got == set(range(1050, 1100))
    assert rest_of(snapshot).keys() == set(range(1000, 1050))


def test_a_piece_has_one_row_however_few_bytes_are_asked_for() -> None:
    snapshot = SlotSnapshot(filled(2), 2, NONE_FREE)
    assert [piece[0].tolist() for piece in (snapshot.read(0), snapshot.read(1)) if piece is not None] == [[1000], [1001]]


def test_pieces_are_the_readers_and_start_at_a_multiple_of_64_bytes() -> None:
    slab = filled(5)
    snapshot = SlotSnapshot(slab, 5, NONE_FREE)
    piece = snapshot.read(5 * ROW_BYTES)
    assert piece is not None
    for array in piece:
        assert array.ctypes.data % 64 == 0
        array[:] = 0
    assert slab.ids[:5].all()


def test_no_bit_of_a_record_is_changed() -> None:
    """Not of a signalling NaN either, which a float that is loaded and stored may lose."""
    slab = filled(2)
    slab.words[:2] = [[0x7F800001, 0xFF800001, 0x80000000], [0xFFFFFFFF, 1, 0x7FC00000]]
    before = copied(slab, [0, 1])
    snapshot = SlotSnapshot(slab, 2, NONE_FREE)
    snapshot.keep(slots_of(1))
    slab.words[1] = 0
    assert rest_of(snapshot) == before


def test_without_room_to_keep_all_of_its_rows_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_snapshot, "Slab", lambda width, rows_max: Slab(width, rows_max // 2))  # as where the machine refuses
    with pytest.raises(MemoryError, match="room for 200 rows"):
        SlotSnapshot(filled(200), 200, NONE_FREE)


def test_a_closed_one_is_not_read_as_one_that_ended() -> None:
    snapshot = SlotSnapshot(filled(5), 5, NONE_FREE)
    snapshot.close()
    snapshot.close()
    snapshot.keep(slots_of(1))
    assert not snapshot.is_open
    assert snapshot.num_kept == 0
    with pytest.raises(ValueError, match="closed"):
        snapshot.read(100)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_a_copy_of_its_instant_whatever_changes_meanwhile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_slots = int(rng.integers(1, 400))
    slab = filled(num_slots, capacity=500)
    free = rng.permutation(num_slots)[: num_slots // 4].astype(np.int32)
    touched = None if seed % 2 else np.flatnonzero(rng.random(num_slots) < 0.2).astype(np.int32)
    included = set(range(num_slots)) if touched is None else set(touched.tolist())
    wanted = copied(slab, sorted(included - set(free.tolist())))
    snapshot = SlotSnapshot(slab, num_slots, free, None if touched is None else words_of(num_slots, touched))
    got: Held = {}
    while (piece := snapshot.read(int(rng.integers(1, 40)) * ROW_BYTES)) is not None:
        got.update(zip(piece[0].tolist(), piece[1].tolist(), strict=True))
        changing = rng.integers(0, 500, 30).astype(np.int32)
        snapshot.keep(changing)
        slab.ids[changing] = rng.integers(0, 2**64, 30, dtype=np.uint64)  # some are freed and given to others
        slab.words[changing] = rng.integers(0, 2**32, (30, WIDTH), dtype=np.uint32)
    assert got == wanted


def test_its_kernels_are_compiled_once() -> None:
    for only in (None, words_of(9, slots_of(1, 5))):
        snapshot = SlotSnapshot(filled(9), 9, slots_of(3), only)
        snapshot.read(ROW_BYTES)
        snapshot.keep(slots_of(5))
        rest_of(snapshot)
    kernels = (slot_snapshot._exclude, slot_snapshot._keep, slot_snapshot._next_slots, slot_snapshot._read)
    assert [len(getattr(kernel, "signatures", [()])) for kernel in kernels] == [1] * 4

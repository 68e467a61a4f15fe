"""The index against a dict, across growth, removal and reuse."""

import numpy as np
import numpy.typing as npt
import pytest

from naive.sharding import hash_id
from ps_server.shard import index
from ps_server.shard.index import BLOCK, ENTRIES_MIN, MOVED_MIN, Ids, SlotIndex
from sharding.arrays import read_only
from sharding.hashing import table_salt

NAME = "user"


def ids_of(*ids: int) -> Ids:
    return read_only(np.array(ids, dtype=np.uint64))


def make_index(capacity: int = 10_000) -> SlotIndex:
    return SlotIndex(table_salt(NAME), np.zeros(capacity, dtype=np.uint64))


def id_with_hash(hash: int) -> int:
    """Return the one id with this hash: MurmurHash3's mix, backwards."""
    x = hash
    for factor in (0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD):
        x ^= x >> 33
        x = x * pow(factor, -1, 2**64) % 2**64
    x ^= x >> 33
    id = x ^ int(table_salt(NAME))
    assert hash_id(NAME, id) == hash
    return id


def colliding_ids(count: int) -> list[int]:
    """Return ids whose entries all want the last position but one of a fresh index, so that probing wraps around."""
    return [id_with_hash(ENTRIES_MIN - 2 + number * ENTRIES_MIN) for number in range(count)]


def test_ids_get_slots_in_the_order_in_which_they_come() -> None:
    table = make_index()
    slots, created = table.find_or_insert(ids_of(9, 5, 9, 7))
    assert slots.tolist() == [0, 1, 0, 2]
    assert created.tolist() == [0, 1, 3]
    assert len(table) == 3


def test_find_changes_nothing_and_counts_what_is_absent() -> None:
    table = make_index()
    table.find_or_insert(ids_of(5))
    found = table.find(ids_of(4, 5, 4))
    assert found.slots.tolist() == [-1, 0, -1]
    assert found.absent == 2
    assert len(table) == 1


def test_zero_and_the_greatest_id_are_ids_like_others() -> None:
    table = make_index()
    assert table.find(ids_of(0, 2**64 - 1)).absent == 2
    table.find_or_insert(ids_of(0, 2**64 - 1))
    assert table.find(ids_of(0, 2**64 - 1)).slots.tolist() == [0, 1]
    table.remove(ids_of(0))
    assert table.find(ids_of(0, 2**64 - 1)).slots.tolist() == [-1, 1]


def test_an_empty_batch_is_fine() -> None:
    table = make_index()
    assert table.find(ids_of()).slots.size == table.find_or_insert(ids_of()).created.size == table.remove(ids_of()) == 0


@pytest.mark.parametrize("removed", range(6))
def test_removal_closes_the_gap_in_a_cluster_that_wraps_around(removed: int) -> None:
    table = make_index()
    ids = colliding_ids(6)
    table.find_or_insert(ids_of(*ids))
    assert table.remove(ids_of(ids[removed])) == 1
    for position, id in enumerate(ids):
        assert table.find(ids_of(id)).slots[0] == (-1 if position == removed else position)


def test_ids_whose_entries_look_alike_are_told_apart() -> None:
    table = make_index()
    ids = [id_with_hash(5 + (number << 32)) for number in range(4)]  # the low half of the hash is all that an entry has
    assert table.find_or_insert(ids_of(*ids[:3])).slots.tolist() == [0, 1, 2]
    assert table.find(ids_of(*ids)).slots.tolist() == [0, 1, 2, -1]
    table.remove(ids_of(ids[1]))
    assert table.find(ids_of(*ids)).slots.tolist() == [0, -1, 2, -1]


def test_freed_slots_are_used_before_new_ones() -> None:
    table = make_index()
    table.find_or_insert(ids_of(1, 2, 3))
    assert table.remove(ids_of(1, 3, 1, 8)) == 2  # a repeat and a stranger count for nothing
    assert table.live_slots().tolist() == [1]
    slots = table.find_or_insert(ids_of(4, 5, 6)).slots.tolist()
    assert sorted(slots) == [0, 2, 3]
    assert table.num_slots == 4


def test_growth_moves_a_bounded_number_of_entries_for_each_batch() -> None:
    table = make_index()
    num_ids = 4 * MOVED_MIN * 7 // 10
    ids = np.arange(num_ids + 1, dtype=np.uint64)
    table.find_or_insert(read_only(ids[:num_ids]))
    while table.is_growing:
        table.find_or_insert(ids_of(0))
    growths = table.growths
    table.find_or_insert(read_only(ids[num_ids:]))
    assert table.growths == growths + 1
    batches = 0
    while table.is_growing:  # 4 * MOVED_MIN old entries; the batch that started it moved the first
        assert np.array_equal(table.find(read_only(ids)).slots, np.arange(num_ids + 1))
        table.find_or_insert(ids_of(0))
        batches += 1
    assert batches == 3
    assert np.array_equal(table.find(read_only(ids)).slots, np.arange(num_ids + 1))


def test_ids_removed_while_it_grows_stay_away_and_come_back_anew() -> None:
    table = make_index(50_000)
    ids = np.arange(12_000, dtype=np.uint64)
    table.find_or_insert(read_only(ids))
    while not table.is_growing:
        ids = np.arange(ids.size + 1, dtype=np.uint64)
        table.find_or_insert(read_only(ids[-1:]))
    gone = read_only(ids[::3].copy())
    assert table.remove(gone) == gone.size
    assert table.is_growing
    assert table.find(gone).absent == gone.size
    slots = table.find_or_insert(gone).slots
    assert len(set(slots.tolist())) == gone.size
    assert table.num_slots == ids.size
    assert table.remove(gone) == gone.size
    while table.is_growing:
        table.find_or_insert(ids_of(1))
    assert table.find(gone).absent == gone.size
    assert len(table) == ids.size - gone.size
    assert table.find(read_only(ids[1::3].copy())).absent == 0


def test_a_batch_of_known_ids_never_grows_it() -> None:
    table = make_index()
    ids = read_only(np.arange(40, dtype=np.uint64))
    for _ in range(10):
        table.find_or_insert(ids)
    assert table.growths == 0


def test_ids_that_are_inserted_unlooked_get_the_slots_that_they_have_or_new_ones() -> None:
    table = make_index()
    table.find_or_insert(ids_of(5, 6, 7))
    table.remove(ids_of(6))
    assert table.insert(ids_of(8, 5, 8, 9, 7)).tolist() == [1, 0, 1, 3, 2]
    assert table.find(ids_of(5, 7, 8, 9)).slots.tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("count", [1, 127, 128, 129, 2_000])
def test_inserting_in_the_middle_of_growth_finds_what_is_still_to_be_moved(count: int) -> None:
    table = make_index()
    num_ids = 4 * MOVED_MIN * 7 // 10 + 1
    table.insert(read_only(np.arange(num_ids - 1, dtype=np.uint64)))
    table.find_or_insert(ids_of(num_ids - 1))
    assert table.is_growing
    again = read_only(np.arange(num_ids - count, num_ids + count, dtype=np.uint64))
    slots = table.insert(again)
    assert slots[:count].tolist() == again[:count].tolist()
    assert len(table) == num_ids + count == len(set(slots[count:].tolist()) | set(range(num_ids)))
    assert table.find(again).slots.tolist() == slots.tolist()


@pytest.mark.parametrize("known", [(), (0,), (0, 0), (299,), (300, 301), (127, 128, 255, 256), (599,), tuple(range(600))])
@pytest.mark.parametrize("is_crowded", [False, True])
def test_ids_are_inserted_unlooked_up_to_the_first_that_is_there(known: tuple[int, ...], is_crowded: bool) -> None:
    """Of a batch of 600, ids at some places are known, from the batch before or from this one."""
    table = make_index(capacity=100_000)
    table.reserve(1_400 if is_crowded else 6_000)  # load 0.7 of 2,048 entries in the end, or less than 0.2
    first, second = np.arange(600, dtype=np.uint64), np.arange(1_000, 1_600, dtype=np.uint64)
    assert table.insert(read_only(first)).tolist() == list(range(600))
    for number, place in enumerate(known):
        second[place] = second[place // 2] if number % 2 else first[-1 - place]
    slots = table.insert(read_only(second))
    twin = dict(zip(first.tolist(), range(600), strict=True))
    for id, slot in zip(second.tolist(), slots.tolist(), strict=True):
        assert twin.setdefault(id, slot) == slot
    assert len(table) == len(twin) == len(set(twin.values()))
    assert sorted([*twin.values(), *table.free_slots().tolist()]) == list(range(table.num_slots))
    assert table.free_slots().size <= 2 * BLOCK
    twin |= dict(zip(range(5_000, 5_100), table.insert(read_only(np.arange(5_000, 5_100, dtype=np.uint64))).tolist(), strict=True))
    assert table.find(ids_of(*twin)).slots.tolist() == list(twin.values())


def test_ids_that_are_inserted_unlooked_may_all_want_one_place() -> None:
    table = make_index()
    table.reserve(40)
    wrapped = colliding_ids(20)
    alike = [id_with_hash(5 + (number << 32)) for number in range(20)]  # the low half of the hash is all that an entry has
    ids = ids_of(*[id for pair in zip(wrapped, alike, strict=True) for id in pair])
    assert table.insert(ids).tolist() == list(range(40))
    assert table.find(ids).slots.tolist() == list(range(40))
    assert table.insert(ids).tolist() == list(range(40))


def test_a_reserved_index_grows_no_more() -> None:
    table = make_index(capacity=5_500)
    table.find_or_insert(ids_of(0))
    table.reserve(5_000)
    assert table.growths == 1
    for begin in range(0, 5_000, 100):
        table.insert(read_only(np.arange(begin, begin + 100, dtype=np.uint64)))
    assert table.growths == 1
    table.reserve(4_000)
    table.reserve(10**12)  # there are no more slots than the slab has
    assert table.growths == 1
    assert table.find(ids_of(0, 4_999, 5_000)).slots.tolist() == [0, 4_999, -1]


def test_ids_beyond_the_slab_are_refused_and_change_nothing() -> None:
    table = make_index(capacity=3)
    table.find_or_insert(ids_of(1, 2))
    with pytest.raises(ValueError, match="4 ids do not fit 3 slots"):
        table.find_or_insert(ids_of(3, 1, 4))
    assert table.find(ids_of(3, 4)).absent == 2
    with pytest.raises(ValueError, match="4 ids do not fit 3 slots"):
        table.insert(ids_of(3, 1, 4))
    assert table.find_or_insert(ids_of(3, 1, 3, 3)).slots.tolist() == [2, 0, 2, 2]  # repeats need no slot of their own
    assert table.insert(ids_of(3, 1, 3, 3)).tolist() == [2, 0, 2, 2]


@pytest.mark.parametrize("seed", range(4))
def test_it_agrees_with_a_dict(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slab_ids = np.zeros(20_000, dtype=np.uint64)
    table, twin = SlotIndex(table_salt(NAME), slab_ids), dict[int, int]()
    universe = rng.integers(0, 2**64, 12_000, dtype=np.uint64)
    known = read_only(universe[:1])
    found = table.find(known)
    for _ in range(120):
        batch: npt.NDArray[np.uint64] = read_only(rng.choice(universe, rng.integers(0, 400)))
        if rng.random() < 0.35:
            present = {int(id) for id in batch if int(id) in twin}
            assert table.remove(batch) == len(present)
            for id in present:
                del twin[id]
            known = read_only(rng.choice(universe, 500))
            found = table.find(known)
        elif rng.random() < 0.2:
            twin.update({int(id): int(slot) for id, slot in zip(batch, table.insert(batch), strict=True)})
        else:
            slots, created = table.find_or_insert(batch, table.find(batch) if rng.random() < 0.5 else None)
            new = list(dict.fromkeys(int(id) for id in batch if int(id) not in twin))
            assert [int(batch[at]) for at in created] == new
            twin.update({int(id): int(slot) for id, slot in zip(batch, slots, strict=True)})
        assert len(table) == len(twin)
        assert len(set(twin.values())) == len(twin)
        assert sorted(twin.values()) == table.live_slots().tolist()
        assert sorted([*twin.values(), *table.free_slots().tolist()]) == list(range(table.num_slots))
        probe = read_only(rng.choice(universe, 300))
        assert table.find(probe).slots.tolist() == [twin.get(int(id), -1) for id in probe]
        again = table.find_again(known, found)
        assert again.slots.tolist() == [twin.get(int(id), -1) for id in known]
        assert again.absent == sum(int(id) not in twin for id in known)
    assert table.growths >= 5
    assert all(int(slab_ids[slot]) == id for id, slot in twin.items())


def test_its_kernels_are_compiled_once() -> None:
    table = make_index()
    table.find_or_insert(read_only(np.arange(100, dtype=np.uint64)))
    table.insert(ids_of(100, 3))
    table.remove(ids_of(1))
    table.insert(ids_of(1, 2))
    kernels = (index._find, index._insert, index._insert_absent, index._move, index._erase, index._mark_dead)
    assert [len(getattr(kernel, "signatures", [()])) for kernel in kernels] == [1] * 6

"""Which slots the next save of a table has to have."""

import numpy as np
import pytest

from ps_server.shard import touched as touched_module
from ps_server.shard.records import Slots
from ps_server.shard.touched import Touched, Words


def slots_of(*slots: int) -> Slots:
    return np.array(slots, dtype=np.int32)


def marked(words: Words | None) -> list[int]:
    """Return the slots whose bits are set."""
    assert words is not None, "the save is full"
    return [64 * at + bit for at, word in enumerate(words.tolist()) for bit in range(64) if word >> bit & 1]


def begun() -> Touched:
    """Return what a table has after its first save."""
    touched = Touched()
    assert touched.begin(incremental=False, num_slots=0) is None
    touched.settle(True)
    return touched


def test_the_first_save_is_full_and_nothing_is_noted_before() -> None:
    touched = Touched()
    touched.mark(slots_of(1, 2), 1_000_000)
    assert touched.nbytes == 0
    assert touched.begin(incremental=True, num_slots=1_000_000) is None


@pytest.mark.parametrize("slots", [(0,), (63,), (64,), (127, 0), (5, 5, 6), (1_000,)])
def test_an_increment_has_what_was_marked_since_the_last_save(slots: tuple[int, ...]) -> None:
    touched = begun()
    touched.mark(slots_of(*slots), max(slots) + 1)
    assert marked(touched.begin(incremental=True, num_slots=max(slots) + 1)) == sorted(set(slots))
    touched.settle(True)
    touched.mark(slots_of(9), 1_001)
    assert marked(touched.begin(incremental=True, num_slots=1_001)) == [9]


def test_what_is_marked_while_a_save_is_under_way_is_the_next_ones() -> None:
    touched = begun()
    touched.mark(slots_of(1), 10)
    taken = touched.begin(incremental=True, num_slots=10)
    touched.mark(slots_of(2), 200)
    assert marked(taken) == [1]
    touched.settle(True)
    assert marked(touched.begin(incremental=True, num_slots=200)) == [2]


@pytest.mark.parametrize("is_told", [True, False])
def test_a_failed_save_gives_its_bits_back(is_told: bool) -> None:
    touched = begun()
    touched.mark(slots_of(1, 300), 301)
    touched.begin(incremental=True, num_slots=301)
    touched.mark(slots_of(2), 301)
    if is_told:
        touched.settle(False)
    assert marked(touched.begin(incremental=True, num_slots=301)) == [1, 2, 300]


def test_a_full_save_that_fails_leaves_an_increment_possible_where_it_was_before() -> None:
    touched = begun()
    touched.mark(slots_of(1), 10)
    assert touched.begin(incremental=False, num_slots=10) is None
    touched.settle(False)
    assert marked(touched.begin(incremental=True, num_slots=10)) == [1]


def test_a_first_save_that_fails_is_followed_by_a_full_one() -> None:
    touched = Touched()
    touched.begin(incremental=False, num_slots=10)
    touched.settle(False)
    assert touched.begin(incremental=True, num_slots=10) is None
    touched.settle(True)
    assert marked(touched.begin(incremental=True, num_slots=10)) == []


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_base_that_is_lost_while_a_save_is_under_way_stays_lost(is_committed: bool) -> None:
    touched = begun()
    touched.begin(incremental=True, num_slots=10)
    touched.lose_base()
    touched.settle(is_committed)
    assert touched.begin(incremental=True, num_slots=10) is None
    touched.settle(True)
    assert marked(touched.begin(incremental=True, num_slots=10)) == []


def test_what_was_loaded_counts_as_saved() -> None:
    touched = begun()
    touched.mark(slots_of(1), 10)
    touched.begin(incremental=True, num_slots=10)
    touched.lose_base()
    touched.count_as_saved()
    touched.settle(False)
    touched.mark(slots_of(2), 10)
    assert marked(touched.begin(incremental=True, num_slots=10)) == [2]


def test_a_bit_costs_an_eighth_of_a_byte_or_a_little_more() -> None:
    touched = begun()
    for num_slots in range(1_000, 101_000, 1_000):
        touched.mark(slots_of(num_slots - 1), num_slots)
        assert touched.nbytes <= 2 * (num_slots + 63) // 8
    assert touched.nbytes >= 100_000 // 8


def test_settling_without_a_save_does_nothing() -> None:
    touched = begun()
    touched.mark(slots_of(1), 2)
    touched.settle(True)
    touched.settle(False)
    assert marked(touched.begin(incremental=True, num_slots=2)) == [1]


def test_its_kernel_is_compiled_once() -> None:
    touched = begun()
    touched.mark(slots_of(1), 2)
    touched.mark(slots_of(*range(100)), 100)
    assert len(getattr(touched_module._mark, "signatures", [()])) == 1

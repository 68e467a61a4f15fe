"""Blocks of a call: in order, whole, not too big, and no slot twice in one."""

import numpy as np
import pytest

from ps_server.shard.blocks import BLOCK_WORDS, ROWS_MAX, distinct_blocks, rows_per_block


def blocks_of(slots: list[int], rows_max: int) -> list[list[int]]:
    return [slots[part] for part in distinct_blocks(np.array(slots, dtype=np.int32), rows_max)]


def slow_blocks(slots: list[int], rows_max: int) -> list[list[int]]:
    blocks: list[list[int]] = []
    for slot in slots:
        if not blocks or slot in blocks[-1] or len(blocks[-1]) == rows_max:
            blocks.append([])
        blocks[-1].append(slot)
    return blocks


def test_a_repeat_begins_a_block() -> None:
    assert blocks_of([3, 1, 3, 3, 2, 1], 10) == [[3, 1], [3], [3, 2, 1]]
    assert blocks_of([5, 6, 7, 8, 9], 2) == [[5, 6], [7, 8], [9]]
    assert blocks_of([], 4) == []


@pytest.mark.parametrize("seed", range(20))
def test_blocks_equal_their_slow_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = rng.integers(0, rng.integers(1, 2_000), rng.integers(1, 3_000)).tolist()
    for rows_max in (1, 2, 7, 64, 1_024, 10_000):
        assert blocks_of(slots, rows_max) == slow_blocks(slots, rows_max)


def test_slots_far_apart_make_full_blocks() -> None:
    slots = list(range(0, 2**31 - 1, 2**20))
    assert [len(block) for block in blocks_of(slots, 1_000)] == [1_000, 1_000, 48]


def test_a_block_stays_in_the_cache_and_has_a_row() -> None:
    assert rows_per_block(1) == rows_per_block(64) == ROWS_MAX
    assert rows_per_block(128) == BLOCK_WORDS // 128
    assert rows_per_block(4 * 65_536) == 1

"""Cutting the rows of a call into blocks that stay in the cache while several passes go over them."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ps_server.shard.records import Slots
from sharding.kernel import kernel

ROWS_MAX = 1_024
BLOCK_WORDS = 1 << 16  # 256 KiB of records: a quarter of a core's second cache


def rows_per_block(width: int) -> int:
    """Return how many records of `width` words make a block."""
    return min(max(BLOCK_WORDS // width, 1), ROWS_MAX)


def distinct_blocks(slots: Slots, rows_max: int) -> Iterator[slice]:
    """Cut `slots` int32[n] into consecutive parts of at most `rows_max`, none of which holds a slot twice.

    So that what is done to a block row by row, pass after pass, is as if each row had gone through all passes before the next.
    """
    ends = np.empty(slots.size, dtype=np.int64)
    begin = 0
    for end in ends[: _cut(slots, rows_max, ends)].tolist():
        yield slice(begin, end)
        begin = end


@kernel
def _cut(slots: Slots, rows_max: int, ends: npt.NDArray[np.int64]) -> int:
    """Write where each part ends; return how many there are."""
    size = 2
    while size < 2 * min(rows_max, slots.size):
        size *= 2
    mask = size - 1
    seen = np.full(size, -1, dtype=np.int32)  # the slots of the part, by open addressing
    num_ends = 0
    begin = 0
    for i in range(slots.size):
        slot = slots[i]
        position = (np.int64(slot) * 0x9E37_79B1 >> 12) & mask
        while seen[position] >= 0 and seen[position] != slot:
            position = (position + 1) & mask
        if seen[position] == slot or i - begin == rows_max:
            ends[num_ends] = i
            num_ends += 1
            begin = i
            seen[:] = -1
            position = (np.int64(slot) * 0x9E37_79B1 >> 12) & mask
        seen[position] = slot
    if begin < slots.size:
        ends[num_ends] = slots.size
        num_ends += 1
    return num_ends

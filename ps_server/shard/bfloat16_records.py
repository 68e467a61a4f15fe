"""Copying rows and records between plain float32 arrays and a slab in which rows are bfloat16; `record_layout.py` has the picture."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.initializers.counter import row_stream
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.records import Records, Slots
from ps_server.shard.rounding_draws import draw, rounding_key
from sharding.bfloat16 import HALF, cut, nearest
from sharding.kernel import kernel

Ids = npt.NDArray[np.uint64]
Halves = npt.NDArray[np.uint16]
Words = npt.NDArray[np.uint32]

_UPPER = np.uint64(32)  # a shift


def open_records(records: Records, slots: Slots, dim: int, out: Records) -> None:
    """Write the first columns of the record in each slot to `out`; where a slot is -1, leave it.

    records  float32[capacity, (dim + 1) // 2 + state], as they are stored.     slots  int32[n].
    out      float32[n, columns], written: the row, and then as much of the state as `columns` has room for.
    """
    _open(records.view(np.uint16), records.view(np.uint32), slots, dim, out.view(np.uint32))


def set_nearest(records: Records, slots: Slots, dim: int, given: Records) -> None:
    """Write `given` float32[n, dim] or [n, dim + state] to the records, rounded to the nearest; of two for one slot the later stays."""
    _set_nearest(records.view(np.uint16), records.view(np.uint32), slots, dim, given.view(np.uint32))


def set_drawn(
    records: Records, slots: Slots, ids: Ids, dim: int, given: Records, seed: np.uint64, salt: np.uint64, step: int, rank: int
) -> None:
    """Write `given` float32[n, dim + state] to the records, rounded stochastically: by (seed, salt, id, column, step, rank) alone.

    ids uint64[n], read-only. `step` and `rank` may be any whole numbers.
    """
    words, drawn_by = records.view(np.uint32), (seed, salt, _as_uint64(step), _as_uint64(rank))
    _set_drawn(records.view(np.uint16), words, slots, ids, dim, given.view(np.uint32), *drawn_by)


def _as_uint64(number: int) -> np.uint64:
    return np.uint64(number % 2**64)


@kernel
def _open(halves: Halves, words: Words, slots: Slots, dim: int, out: Words) -> None:
    """Write the first columns of the record in each slot to `out` uint32[n, columns], as float32; where a slot is -1, leave it."""
    columns = out.shape[1]
    row_words = (dim + 1) // 2
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(words, slots[i + AHEAD], row_words + columns - dim)
        if slots[i] < 0:
            continue  # as in records.gather
        row = halves[slots[i], :dim]
        state = words[slots[i], row_words:]
        opened_row = out[i, :dim]
        opened_state = out[i, dim:]
        for column in range(opened_row.size):
            opened_row[column] = np.uint32(np.uint32(row[column]) << HALF)
        for column in range(opened_state.size):
            opened_state[column] = state[column]


@kernel
def _set_nearest(halves: Halves, words: Words, slots: Slots, dim: int, given: Words) -> None:
    """Write each of `given` uint32[n, columns] to the record in its slot, the row to the nearest; of two for one slot the later stays."""
    row_words = (dim + 1) // 2
    for i in range(slots.size):
        row = halves[slots[i], :dim]
        state = words[slots[i], row_words:]
        given_row = given[i, :dim]
        given_state = given[i, dim:]
        for column in range(given_row.size):
            row[column] = nearest(given_row[column])
        for column in range(given_state.size):
            state[column] = given_state[column]


@kernel
def _set_drawn(
    halves: Halves,
    words: Words,
    slots: Slots,
    ids: Ids,
    dim: int,
    given: Words,
    seed: np.uint64,
    salt: np.uint64,
    step: np.uint64,
    rank: np.uint64,
) -> None:
    """As `_set_nearest`, each row rounded stochastically by the draws of its id."""
    row_words = (dim + 1) // 2
    key = rounding_key(seed, step, rank)
    for i in range(slots.size):
        stream = row_stream(key, salt, ids[i])
        low = np.uint32(stream)
        high = np.uint32(stream >> _UPPER)
        row = halves[slots[i], :dim]
        state = words[slots[i], row_words:]
        given_row = given[i, :dim]
        given_state = given[i, dim:]
        for column in range(given_row.size):
            row[column] = cut(given_row[column], draw(low, high, column))
        for column in range(given_state.size):
            state[column] = given_state[column]

"""Copying whole rows and records between a slab and plain arrays."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.prefetch import AHEAD, prefetch_record
from sharding.kernel import kernel

Records = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]
Slots = npt.NDArray[np.int32]


@kernel
def gather(records: Records, slots: Slots, out: Rows) -> None:
    """Copy the first columns of the record in each slot into `out`, as many as it has; where a slot is -1, `out` is left as it was.

    records  float32[capacity, width].     slots  int32[n].     out  float32[n, columns], written; columns <= width.
    """
    columns = out.shape[1]
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], columns)
        if slots[i] < 0:
            continue  # not a block under `if`: numba would count references to the two slices below, 20 ns a row
        record = records[slots[i]]
        row = out[i]
        for column in range(columns):
            row[column] = record[column]


@kernel
def scatter(records: Records, slots: Slots, rows: Rows) -> None:
    """Copy each row into the first columns of the record in its slot; of two for one slot the later stays.

    records  float32[capacity, width], written.     slots  int32[n], none -1.     rows  float32[n, columns], read-only; columns <= width.
    """
    columns = rows.shape[1]
    for i in range(slots.size):
        record = records[slots[i]]
        row = rows[i]
        for column in range(columns):
            record[column] = row[column]


@kernel
def reset_state(records: Records, slots: Slots, dim: int, state: Records) -> None:
    """Copy `state` float32[width - dim] behind the row in each slot."""
    for i in range(slots.size):
        columns = records[slots[i], dim:]
        for column in range(state.size):
            columns[column] = state[column]

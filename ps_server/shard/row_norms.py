"""Keeping rows within a table's `max_norm`."""

from math import sqrt

import numpy as np

from ps_server.shard.records import Rows, Slots
from ps_server.shard.row_sums import sum_of_squares
from sharding.kernel import kernel


class NormLimit:
    """The greatest Euclidean norm of a row, as torch.nn.Embedding(max_norm=) has it.

    A row whose norm exceeds it becomes row · float32(max_norm / (norm + 1e-7)). torch does that when a row is looked up; here it is done
    when a row is made, updated or set, so that whoever reads, reads the same and changes nothing.
    """

    def __init__(self, max_norm: float, dim: int, slack: float) -> None:
        """`slack`: by how much of it a row may exceed it after it was scaled and rounded."""
        self._max_norm = float(max_norm)
        self._dim = dim
        self._bound_of_given = self._max_norm * (1.0 + slack)

    def apply(self, records: Rows, slots: Slots) -> None:
        """Scale those of records[slots] that exceed it; float32[m, at least dim], slots int32[n]."""
        _limit(records, slots, self._dim, self._max_norm, self._max_norm)

    def apply_to_given(self, records: Rows, slots: Slots) -> None:
        """Scale as `apply` does, but leave what rounding alone can have brought beyond the limit.

        So a row that a table holds, read and set again, is the same to the last bit.
        """
        _limit(records, slots, self._dim, self._max_norm, self._bound_of_given)


@kernel
def _limit(records: Rows, slots: Slots, dim: int, max_norm: float, bound: float) -> None:
    for i in range(slots.size):
        row = records[slots[i], :dim]
        norm = sqrt(sum_of_squares(row))
        if norm > bound:
            scale = np.float32(max_norm / (norm + 1e-7))
            for column in range(dim):
                row[column] = row[column] * scale

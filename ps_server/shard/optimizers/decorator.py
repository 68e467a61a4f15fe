"""What stands before an optimizer: it changes gradients, rows or hyperparameters, a block of the call at a time, and hands them on."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ps_server.shard.blocks import distinct_blocks, rows_per_block
from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.slab import Slab
from sharding.arrays import read_only


class RowDecorator(RowOptimizer):
    """A RowOptimizer that does something first and leaves the rest to another. It adds no state columns.

    A block's gradients are still in the cache when the optimizer comes. reads_rows: whether it looks at rows; then no block holds a slot
    twice, so that here too a slot that comes twice is updated one after another.
    """

    reads_rows: ClassVar[bool] = False

    def __init__(self, optimizer: RowOptimizer) -> None:
        """Stand before `optimizer`."""
        self.optimizer = optimizer
        self.dim = optimizer.dim
        self.columns = optimizer.columns
        self.wants_staleness = type(self).wants_staleness or optimizer.wants_staleness
        self.wants_read_rows = type(self).wants_read_rows or optimizer.wants_read_rows
        self.room = np.empty((rows_per_block(self.dim), self.dim), dtype=np.float32)

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return ()

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        for block in self._blocks(slots):
            places = None if origin.places is None else origin.places[block]
            self.apply_block(slab, slots[block], gradients[block], parameters, replace(origin, places=places))

    def _blocks(self, slots: Slots) -> Iterator[slice]:
        rows_max = len(self.room)
        if self.reads_rows:
            return distinct_blocks(slots, rows_max)
        return (slice(begin, begin + rows_max) for begin in range(0, slots.size, rows_max))

    @abstractmethod
    def apply_block(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        """Do what there is to do and call `self.optimizer.apply`; at most as many gradients, read-only, as `self.room` has rows."""

    def changed(self, num_rows: int) -> Rows:
        """Return the gradients that lie in the room, float32[num_rows, dim], as the optimizer wants them: read-only."""
        return read_only(self.room[:num_rows])

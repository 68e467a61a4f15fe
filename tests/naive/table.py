"""A table as a dict: id -> (row, state)."""

from collections.abc import Iterable, Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt

from naive import bfloat16, optimizers
from naive.initializers import initial_row
from naive.row_sums import sum_of_squares
from naive.sharding import bucket_of
from ps_proto.values import TableSpec

Row = npt.NDArray[np.float32]
Held = dict[int, tuple[Row, optimizers.State]]

SLACKS = {"float32": 2.0**-20, "bfloat16": 2.0**-7 + 2.0**-20}


class NaiveTable:
    """What `Table` does, one id at a time."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.held: Held = {}

    def pull(self, ids: Iterable[int]) -> list[Row]:
        return [self.held[id][0] if id in self.held else self.initial(id) for id in ids]

    def initial(self, id: int) -> Row:
        return self._nearest(self._limited(initial_row(self.spec, id), slack=0.0))

    def update(self, ids: Iterable[int], gradients: Iterable[Row], parameters: dict[str, float], step: int = 0, rank: int = -1) -> None:
        for id, gradient in zip(ids, gradients, strict=True):
            row, state = self.held[id] if id in self.held else (self.initial(id), self._new_state())
            row, state = optimizers.step(self.spec.optimizer.label, row, state, gradient, parameters)
            row = self._limited(row, slack=0.0)
            if self.spec.dtype == "bfloat16":
                row = bfloat16.drawn_row(row, bfloat16.draws_of(self.spec.seed, self.spec.name, id, step, rank, self.spec.dim))
            self.held[id] = row, state

    def assign(self, ids: Iterable[int], rows: Iterable[Row], only_absent: bool = False) -> None:
        for id, row in zip(ids, rows, strict=True):
            if id not in self.held or not only_absent:
                row = self._nearest(self._limited(self._nearest(row), SLACKS[self.spec.dtype]))
                self.held[id] = row, self.held[id][1] if id in self.held else self._new_state()

    def extract(self, owned_out: Sequence[bool]) -> Held:
        part = {id: self.held[id] for id in sorted(self.held) if owned_out[bucket_of(self.spec.name, id)]}
        for id in part:
            del self.held[id]
        return part

    def adopt(self, part: Held) -> None:
        self.held.update(part)

    def snapshot(self) -> Held:
        return dict(sorted(self.held.items()))  # rows and states are replaced, never written to

    def records(self, part: Held) -> list[Row]:
        return [optimizers.record(*held) for held in part.values()]

    def stored(self, part: Held) -> list[Row]:
        """Return the records as they lie in a slab."""
        if self.spec.dtype == "float32":
            return self.records(part)
        return [np.concatenate([bfloat16.packed_row(row), optimizers.record(row[:0], state)]) for row, state in part.values()]

    def _new_state(self) -> optimizers.State:
        return optimizers.initial_state(self.spec.optimizer.label, self.spec.dim, self.spec.optimizer.parameters())

    def _nearest(self, row: Row) -> Row:
        return bfloat16.nearest_row(row) if self.spec.dtype == "bfloat16" else row

    def _limited(self, row: Row, slack: float) -> Row:
        if self.spec.max_norm is None:
            return row
        norm = sqrt(sum_of_squares(row))
        return row if norm <= self.spec.max_norm * (1 + slack) else row * np.float32(self.spec.max_norm / (norm + 1e-7))

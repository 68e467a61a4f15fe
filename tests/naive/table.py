"""A table as a dict: id -> (row, state)."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from naive import optimizers
from naive.initializers import initial_row
from naive.sharding import bucket_of
from ps_proto.values import TableSpec

Row = npt.NDArray[np.float32]
Held = dict[int, tuple[Row, optimizers.State]]


class NaiveTable:
    """What `Table` does, one id at a time."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.held: Held = {}

    def pull(self, ids: Iterable[int]) -> list[Row]:
        return [self.held[id][0] if id in self.held else initial_row(self.spec, id) for id in ids]

    def update(self, ids: Iterable[int], gradients: Iterable[Row], parameters: dict[str, float]) -> None:
        for id, gradient in zip(ids, gradients, strict=True):
            row, state = self.held[id] if id in self.held else (initial_row(self.spec, id), self._new_state())
            self.held[id] = optimizers.step(self.spec.optimizer.kind, row, state, gradient, parameters)

    def assign(self, ids: Iterable[int], rows: Iterable[Row], only_absent: bool = False) -> None:
        for id, row in zip(ids, rows, strict=True):
            if id not in self.held or not only_absent:
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
        return [optimizers.record(self.spec.optimizer.kind, *held) for held in part.values()]

    def _new_state(self) -> optimizers.State:
        return optimizers.initial_state(self.spec.optimizer.kind, self.spec.dim, self.spec.optimizer.parameters())

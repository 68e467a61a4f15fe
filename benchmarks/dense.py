"""W3: pull and push 64 MiB of dense float32 parameters, with SGD, as blocks of a table."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import ps_worker as ps
from benchmarks.bed import Bed, check_rows
from benchmarks.case import Case, Figure, Goal
from benchmarks.harness import milliseconds

TABLE, BLOCK = "dense", 512  # floats of a block, as ps.optim cuts dense parameters
LEARNING_RATE = 0.125


class Dense(Case):
    """Beside one memcpy of the same bytes, to memory that was touched before. One pull and one push a round."""

    figures = (Figure("a pull", "ms", Goal("at least", 0.70)), Figure("a push", "ms", Goal("at least", 0.30)))

    def __init__(self, bed: Bed, transport: str) -> None:
        self.name = f"W3 dense, {transport}"
        self.bed = bed
        self.client = bed.client(transport)
        self.client.create_table(ps.TableSpec(TABLE, dim=BLOCK, optimizer=ps.SGD(lr=LEARNING_RATE)))
        self.ids = np.arange(bed.sizes.dense_rows, dtype=np.uint64)
        self.rows = bed.rng.standard_normal((self.ids.size, BLOCK), dtype=np.float32)
        self.gradients = np.zeros_like(self.rows)
        self.target = np.zeros_like(self.rows)
        self.client.assign(TABLE, self.ids, self.rows)

    def prepare(self) -> None:
        self.bed.rng.standard_normal(dtype=np.float32, out=self.gradients)

    def floor(self) -> tuple[float, ...]:
        return (milliseconds(self._copy), milliseconds(self._copy))

    def _copy(self) -> None:
        np.copyto(self.target, self.rows)

    def ours(self) -> tuple[float, ...]:
        return (milliseconds(self._pull), milliseconds(lambda: self.client.push(TABLE, self.ids, self.gradients)))

    def _pull(self) -> None:
        self.pulled = self.client.pull(TABLE, self.ids)

    def check(self) -> None:
        check_rows(self.pulled, self.rows)
        del self.pulled
        self.rows -= np.float32(LEARNING_RATE) * self.gradients
        check_rows(self.client.pull(TABLE, self.ids), self.rows)


@contextmanager
def dense_case(bed: Bed, transport: str) -> Iterator[Case]:
    yield Dense(bed, transport)

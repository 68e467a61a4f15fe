"""W2: push gradients for 100,000 distinct resident ids with Adagrad, until the server acknowledges them as applied (asynchronous mode)."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.bed import ADAGRAD, DIM, TABLE, Bed, Rows, check_rows
from benchmarks.case import Case, Figure, Goal
from benchmarks.harness import milliseconds
from ps_server.shard.optimizers.adagrad import Adagrad
from ps_server.shard.optimizers.optimizer import Origin
from sharding.arrays import read_only


class Push(Case):
    """Beside the fused Adagrad kernel alone, on the same rows in a slab of this process."""

    figures = (Figure("a push", "ms", Goal("at least", 0.55)),)

    def __init__(self, bed: Bed, transport: str) -> None:
        self.name = f"W2 push, {transport}"
        self.bed = bed
        self.client = bed.table(transport)
        self.parameters = ADAGRAD.parameters()
        self.kernel = Adagrad(DIM, self.parameters)
        self.gradients = np.zeros((bed.sizes.batch, DIM), np.float32)
        self.origin = Origin()

    def prepare(self) -> None:
        self.places = self.bed.rng.permutation(self.bed.ids.size)[: self.bed.sizes.batch]
        self.ids = self.bed.ids[self.places]
        self.slots = self.places.astype(np.int32)
        self.bed.rng.standard_normal(dtype=np.float32, out=self.gradients)
        self.before = self.bed.slab.records[self.places]

    def floor(self) -> tuple[float, ...]:
        slab, gradients = self.bed.slab, read_only(self.gradients)
        return (milliseconds(lambda: self.kernel.apply(slab, self.slots, gradients, self.parameters, self.origin)),)

    def ours(self) -> tuple[float, ...]:
        return (milliseconds(lambda: self.client.push(TABLE, self.ids, self.gradients)),)

    def check(self) -> None:
        rows = _updated(self.before, self.gradients)
        self.bed.rows[self.places] = rows
        check_rows(np.ascontiguousarray(self.bed.slab.records[self.places, :DIM]), rows)
        check_rows(self.client.pull(TABLE, self.ids), rows)


def _updated(records: Rows, gradients: Rows) -> Rows:
    """Return the rows after Adagrad, float32[n, 64], from records float32[n, 128]: numpy's word for it, in the kernel's order."""
    root: Rows = np.sqrt(records[:, DIM:] + gradients * gradients)
    return records[:, :DIM] - np.float32(ADAGRAD.lr) * gradients / (root + np.float32(ADAGRAD.eps))


@contextmanager
def push_case(bed: Bed, transport: str) -> Iterator[Case]:
    yield Push(bed, transport)

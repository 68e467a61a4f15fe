"""W2: push gradients for 100,000 distinct resident ids with Adagrad, until the server acknowledges them as applied (asynchronous mode).

Beside it the same push right after a pull of the ids, as training has it: with the pull's name in place of the ids, and with the ids.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from benchmarks.bed import ADAGRAD, DIM, TABLE, Bed, Rows, check_rows
from benchmarks.case import Case, Figure, Goal, WrongAnswer
from benchmarks.harness import milliseconds
from ps_server.shard.optimizers.adagrad import Adagrad
from ps_server.shard.optimizers.optimizer import Origin
from sharding.arrays import read_only

Places = npt.NDArray[np.int64]


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
        self.take(self.bed.rng.permutation(self.bed.ids.size)[: self.bed.sizes.batch])

    def take(self, places: Places) -> None:
        """Let the next round be about the rows at these places of the bed's, each once."""
        self.places = places
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


class PushAfterPull(Case):
    """Beside the kernel, as W2. A pull of the ids in another order comes before the push that brings them: only the same order is named."""

    figures = (  # without a goal of their own: they show what it saves
        Figure("by name", "ms", Goal("at least", 0.0)),
        Figure("with ids", "ms", Goal("at least", 0.0)),
    )

    def __init__(self, bed: Bed, transport: str) -> None:
        self.name = f"W2 after a pull, {transport}"
        self.bed = bed
        self.client = bed.table(transport)
        self.pushes = Push(bed, transport), Push(bed, transport)
        self.client.push(TABLE, bed.ids[:1], np.zeros((1, DIM), np.float32))  # from now on it trains, and pulls may be named

    def prepare(self) -> None:
        batch = self.bed.sizes.batch
        places = self.bed.rng.permutation(self.bed.ids.size)[: 2 * batch]
        for push, its in zip(self.pushes, (places[:batch], places[batch:]), strict=True):
            push.take(its)

    def floor(self) -> tuple[float, ...]:
        return tuple([spent for push in self.pushes for spent in push.floor()])

    def ours(self) -> tuple[float, ...]:
        by_name, with_ids = self.pushes
        before = self._rows_listed()
        self.client.pull(TABLE, by_name.ids)
        named = by_name.ours()
        self.rows_named = self._rows_listed() - before
        self.client.pull(TABLE, with_ids.ids[::-1].copy())
        return named + with_ids.ours()

    def check(self) -> None:
        if self.rows_named != self.bed.sizes.batch:
            raise WrongAnswer(f"{self.rows_named:,.0f} rows were pushed by the name of their pull, but {self.bed.sizes.batch:,} were due")
        for push in self.pushes:
            push.check()

    def _rows_listed(self) -> float:
        return sum([stats.tables[TABLE]["rows_listed"] for stats in self.client.stats().values()])


def _updated(records: Rows, gradients: Rows) -> Rows:
    """Return the rows after Adagrad, float32[n, 64], from records float32[n, 128]: numpy's word for it, in the kernel's order."""
    root: Rows = np.sqrt(records[:, DIM:] + gradients * gradients)
    return records[:, :DIM] - np.float32(ADAGRAD.lr) * gradients / (root + np.float32(ADAGRAD.eps))


@contextmanager
def push_after_pull_case(bed: Bed, transport: str) -> Iterator[Case]:
    yield PushAfterPull(bed, transport)


@contextmanager
def push_case(bed: Bed, transport: str) -> Iterator[Case]:
    yield Push(bed, transport)

"""W6: the memory that a server takes while a table of dim 16 with Adagrad grows to 10 M rows, over the bytes of row and state."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

import ps_worker as ps
from benchmarks.bed import Ids, Rows, check_rows
from benchmarks.case import Case, Figure, Goal
from benchmarks.memory import begin_peak, peak_bytes
from benchmarks.sizes import Sizes

TABLE, DIM = "growing", 16
ADAGRAD = ps.Adagrad(lr=0.05)
RECORD_BYTES = 4 * (DIM + DIM)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # odd: its multiples are different ids from all over uint64
CHECKED = 100_000


class Growth(Case):
    """A round is a server of its own, to which rows are pushed until all are there; the whole process counts, Python and all.

    highest     the most memory that it held at any instant, over the rows in the end
    worst step  the most during one push over the rows after it, from half of the rows on: here an index that doubles shows
    """

    name = "W6 growth"
    figures = (Figure("highest", "B/row", Goal("at most", 1.35)), Figure("worst step", "B/row", Goal("at most", 1.35)))

    def __init__(self, sizes: Sizes, rng: np.random.Generator) -> None:
        self._rows_count, self._batch = sizes.growth_rows, sizes.growth_batch
        self._rng = rng

    def prepare(self) -> None:
        self._checked = self._rng.integers(0, self._rows_count, CHECKED, dtype=np.uint64)

    def floor(self) -> tuple[float, ...]:
        return float(RECORD_BYTES), float(RECORD_BYTES)

    def ours(self) -> tuple[float, ...]:
        peaks = []
        with ExitStack() as stack:
            cluster = stack.enter_context(ps.local_cluster(servers=1, log_level="warning"))
            client = stack.enter_context(ps.connect(cluster.address, rank=0, world_size=1, mode=ps.Async()))
            client.create_table(ps.TableSpec(TABLE, dim=DIM, optimizer=ADAGRAD))
            pid = cluster.pids["server-0"]
            for begin in range(0, self._rows_count, self._batch):
                numbers = np.arange(begin, min(begin + self._batch, self._rows_count), dtype=np.uint64)
                begin_peak(pid)
                client.push(TABLE, ids_of(numbers), gradients_of(numbers))
                peaks.append((peak_bytes(pid), begin + numbers.size))
            self._pulled = client.pull(TABLE, ids_of(self._checked))
        worst = max([peak / rows for peak, rows in peaks if 2 * rows >= self._rows_count])
        return max([peak for peak, _ in peaks]) / self._rows_count, worst

    def check(self) -> None:
        gradients = gradients_of(self._checked)
        step = np.sqrt(gradients * gradients) + np.float32(ADAGRAD.eps)
        check_rows(self._pulled, np.float32(0.0) - np.float32(ADAGRAD.lr) * gradients / step)


def ids_of(numbers: Ids) -> Ids:
    """Return the ids of the rows with these numbers, uint64[n], which lie all over uint64."""
    return numbers * GOLDEN


def gradients_of(numbers: Ids) -> Rows:
    """Return gradients by which each row and column is known again, float32[n, 16]; none is zero."""
    row = numbers.astype(np.int64)[:, None]
    return ((row * 31 + np.arange(DIM) * 7) % 65_521 + 1).astype(np.float32)


@contextmanager
def growth_case(sizes: Sizes, rng: np.random.Generator) -> Iterator[Case]:
    yield Growth(sizes, rng)

"""W7-rows: a pull and a push of 10,000 ids, and the memory of a row, while a table of dim 16 with Adagrad grows to 3·10^7 rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

import ps_worker as ps
from benchmarks.bed import Ids, Rows, check_rows
from benchmarks.curve import Curve, Point, rounds_of
from benchmarks.growth import ADAGRAD, DIM, RECORD_BYTES, TABLE, gradients_of, ids_of
from benchmarks.harness import Spread, milliseconds
from benchmarks.memory import available_bytes, held_bytes
from benchmarks.scaling.sizes import ScalingSizes

ROW_BYTES = RECORD_BYTES + 8 + 36  # in the server: with its id, and the index while it doubles
BESIDE_BYTES = 4 * DIM  # in this process, for np.take
SPARE_BYTES = 1 << 30


def rows_curve(sizes: ScalingSizes, seed: int) -> Curve:
    def points() -> Iterator[Point]:
        with ExitStack() as stack:
            cluster = stack.enter_context(ps.local_cluster(servers=1, log_level="warning"))
            client = stack.enter_context(ps.connect(cluster.address, rank=0, world_size=1, mode=ps.Async()))
            yield from sized(GrowingTable(client, cluster.pids["server-0"], sizes, np.random.default_rng(seed)), sizes.rows_held)

    note = (
        f"{sizes.rows_ids:,} ids, dim {DIM}, Adagrad; memory is what the server holds beyond when it was empty, "
        f"of which {RECORD_BYTES} bytes a row are the row and its state"
    )
    title = f"A pull and a push of {sizes.rows_ids:,} ids, by the rows held"
    return Curve("W7-rows", title, "rows held", {"pull": "ms", "push": "ms", "np.take": "ms", "memory": "B/row"}, note, points)


def sized(table: "GrowingTable", rows_held: Sequence[int]) -> Iterator[Point]:
    """Let the table grow, and measure it at each of these sizes for which there is memory."""
    for rows in rows_held:
        needed = (rows - table.rows) * ROW_BYTES + rows * BESIDE_BYTES + SPARE_BYTES
        available = available_bytes()
        if needed <= available:
            yield table.measured(rows)
        else:
            yield Point(rows, left_out=f"{needed / 2**30:.1f} GiB are needed, {available / 2**30:.1f} GiB are free")


class GrowingTable:
    """A server's table, and what it must hold.

    counts  uint16[n], how often each row was pushed: each time with the same gradient.
    """

    def __init__(self, client: ps.Client, server_pid: int, sizes: ScalingSizes, rng: np.random.Generator) -> None:
        self.rows = 0
        self._client = client
        self._server_pid = server_pid
        self._sizes = sizes
        self._rng = rng
        self._counts: npt.NDArray[np.uint16] = np.zeros(max(sizes.rows_held), np.uint16)
        client.create_table(ps.TableSpec(TABLE, dim=DIM, optimizer=ADAGRAD))
        self._empty_bytes = held_bytes(server_pid)

    def measured(self, rows: int) -> Point:
        """Let it grow to so many rows, and measure it there."""
        for begin in range(self.rows, rows, self._sizes.rows_batch):
            self._push(np.arange(begin, min(begin + self._sizes.rows_batch, rows), dtype=np.uint64))
        self.rows = rows
        self._beside = np.ones((rows, DIM), np.float32)
        self._out = np.zeros((self._sizes.rows_ids, DIM), np.float32)
        values = rounds_of(self._round, self._sizes.path.rounds, self._sizes.path.warm_ups)
        del self._beside
        memory = (held_bytes(self._server_pid) - self._empty_bytes) / rows
        return Point(rows, {**values, "memory": Spread((memory,))})

    def _push(self, numbers: Ids) -> None:
        self._client.push(TABLE, ids_of(numbers), gradients_of(numbers))
        self._counts[numbers] += 1

    def _round(self) -> Mapping[str, float]:
        numbers, pushed = self._draw(), self._draw()
        ids, pushed_ids, gradients = ids_of(numbers), ids_of(pushed), gradients_of(pushed)
        places = numbers.astype(np.intp)
        floor = milliseconds(lambda: np.take(self._beside, places, axis=0, out=self._out, mode="clip"))
        pull = milliseconds(lambda: self._pull(ids))
        check_rows(self._pulled, self._due(numbers))
        push = milliseconds(lambda: self._client.push(TABLE, pushed_ids, gradients))
        self._counts[pushed] += 1
        check_rows(self._client.pull(TABLE, pushed_ids), self._due(pushed))
        return {"pull": pull, "push": push, "np.take": floor}

    def _pull(self, ids: Ids) -> None:
        self._pulled = self._client.pull(TABLE, ids)

    def _draw(self) -> Ids:
        """Return the numbers of rows, uint64[n], each once."""
        wanted = min(self._sizes.rows_ids, self.rows)
        if self.rows < 4 * wanted:
            return self._rng.permutation(self.rows)[:wanted].astype(np.uint64)
        numbers = np.unique(self._rng.integers(0, self.rows, 2 * wanted, dtype=np.uint64))
        return self._rng.permutation(numbers)[:wanted]

    def _due(self, numbers: Ids) -> Rows:
        """Return what the rows must be: Adagrad, as often as each was pushed, in the kernel's order."""
        gradients, counts = gradients_of(numbers), self._counts[numbers]
        rows, state = np.zeros_like(gradients), np.zeros_like(gradients)
        for pushed in range(int(counts.max())):
            more = counts > pushed
            state[more] += gradients[more] * gradients[more]
            rows[more] -= np.float32(ADAGRAD.lr) * gradients[more] / (np.sqrt(state[more]) + np.float32(ADAGRAD.eps))
        return rows

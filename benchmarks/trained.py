"""What W5's rows may look like after so many steps, whatever the gradients were: as far as Adagrad can have moved each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import ps_worker as ps
from benchmarks.bed import Ids, Rows
from benchmarks.case import WrongAnswer

ROUNDING = 1e-3  # of a step
MOVED_AT_LEAST = 0.99  # of all numbers: some gradients are zero, or almost


class Trained:
    """A table's rows before a job trains. `pools`: by rank the ids of its batches, which it uses in turn, each batch pushed once a step."""

    def __init__(self, client: ps.Client, table: str, pools: Sequence[Sequence[npt.NDArray[np.int64]]], learning_rate: float) -> None:
        self._table = table
        self._pools: list[list[Ids]] = [[np.unique(ids.view(np.uint64)) for ids in pool] for pool in pools]
        self._learning_rate = learning_rate
        self._ids = np.unique(np.concatenate([ids for pool in self._pools for ids in pool]))
        self._start = client.pull(table, self._ids)

    def check(self, client: ps.Client, steps: int) -> None:
        """Raise WrongAnswer unless there is a row for each id that was pushed in so many steps of each rank, moved as it must be."""
        pushes = self.pushes(steps)
        ids, rows = client.export(self._table)
        if not np.array_equal(ids, self._ids[pushes > 0]):
            raise WrongAnswer(f"the server has {ids.size} rows where {np.count_nonzero(pushes)} others were due")
        check_moved(self._start[pushes > 0], rows, pushes[pushes > 0], self._learning_rate)

    def pushes(self, steps: int) -> npt.NDArray[np.int64]:
        """Return how often each id is pushed in so many steps of each rank, in the order of the ids."""
        counts = np.zeros(self._ids.size, np.int64)
        for pool in self._pools:
            for position, ids in enumerate(pool):
                counts[np.searchsorted(self._ids, ids)] += len(range(position, steps, len(pool)))
        return counts


def check_moved(start: Rows, rows: Rows, pushes: npt.NDArray[np.int64], learning_rate: float) -> None:
    """Raise WrongAnswer unless rows float32[n, dim] are where Adagrad, whose state starts at 0, may have brought them from `start`.

    Its first step moves a number by the learning rate, unless the gradient is as small as eps, and none moves it further: the gradient is
    divided by the root of a sum that has its square.     pushes  int64[n], of each row, at least 1.
    """
    moved, most = np.abs(rows.astype(np.float64) - start), learning_rate * pushes[:, None]
    is_wrong = ~(moved <= most + ROUNDING * learning_rate + np.abs(start) * 2.0**-22).all(axis=1)
    if is_wrong.any():
        raise WrongAnswer(f"{np.count_nonzero(is_wrong)} of {len(rows)} rows are further from where they were than so many steps go")
    least = np.where(pushes == 1, learning_rate / 2, 0.0)[:, None]
    share = float((moved > least).mean())
    if share < MOVED_AT_LEAST:
        raise WrongAnswer(f"{1.0 - share:.1%} of all numbers are as if they were not trained")

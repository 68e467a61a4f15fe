"""What W5 accepts as trained rows: those of every push, once, and no others."""

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bed import Ids, Rows
from benchmarks.case import WrongAnswer
from benchmarks.click_model import POOL, batches
from benchmarks.trained import Trained, check_moved

RATE = 0.01
COUNTS = np.array([1, 2, 5])
START = np.array([[1.0, -2.0], [0.5, 0.0], [3.0, -0.1]], np.float32)


class Server:
    """Says what its table holds."""

    def __init__(self, start: dict[int, float]) -> None:
        self.rows = start

    def pull(self, table: str, ids: Ids) -> Rows:
        return np.array([[self.rows[given]] for given in ids.tolist()], np.float32)

    def export(self, table: str) -> tuple[Ids, Rows]:
        ids = np.array(sorted(self.rows), np.uint64)
        return ids, self.pull(table, ids)


def adagrad(counts: Any, seed: int = 0) -> Rows:
    """Return START after as many steps of Adagrad as each row has in `counts`, along random gradients of one sign."""
    rng, rows, state = np.random.default_rng(seed), START.copy(), np.zeros_like(START)
    for step in range(max(counts)):
        gradients = np.abs(rng.standard_normal(START.shape)).astype(np.float32) * (step < np.asarray(counts))[:, None]
        state += gradients * gradients
        rows -= np.float32(RATE) * gradients / (np.sqrt(state) + np.float32(1e-10))
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_were_trained_so_often_are_accepted(seed: int) -> None:
    check_moved(START, adagrad(COUNTS, seed), COUNTS, RATE)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (adagrad([2, 2, 5]), "1 of 3 rows are further"),
        (adagrad([0, 2, 5]), "as if they were not trained"),
        (START, "100.0% of all numbers are as if"),
        (START * np.float32(np.nan), "3 of 3 rows"),
    ],
    ids=["a push twice", "a push missing", "nothing", "nan"],
)
def test_other_rows_are_not(rows: Rows, said: str) -> None:
    with pytest.raises(WrongAnswer, match=said):
        check_moved(START, rows, COUNTS, RATE)


def test_pushes_are_counted_by_id_over_all_ranks_and_rows_are_those_ids() -> None:
    first, second = [np.array([3, 3, 5]), np.array([5])], [np.array([7]), np.array([3, 9])]
    server: Any = Server({3: 0.0, 5: 0.0, 7: 0.0, 9: 0.0})
    trained = Trained(server, "rows", [first, second], RATE)
    assert trained.pushes(1).tolist() == [1, 1, 1, 0]  # of 3, 5, 7, 9
    assert trained.pushes(3).tolist() == [3, 3, 2, 1]
    server.rows = {3: -RATE, 5: RATE, 7: RATE}
    trained.check(server, 1)
    with pytest.raises(WrongAnswer, match="3 rows where 4 others were due"):
        trained.check(server, 3)
    server.rows = {3: -RATE, 5: RATE, 8: RATE}
    with pytest.raises(WrongAnswer, match="3 rows where 3 others were due"):
        trained.check(server, 1)


def test_ranks_have_other_batches_of_the_same_popularity() -> None:
    mine, others = batches(64, 3, rank=0), batches(64, 3, rank=1)
    assert len(mine) == len(others) == POOL
    ids, its = (np.unique(np.concatenate([batch.ids.numpy() for batch in pool])) for pool in (mine, others))
    assert np.intersect1d(ids, its).size > 0.1 * its.size  # by two popularities it is 0.1 %
    assert not torch.equal(mine[0].ids, others[0].ids)
    assert torch.equal(mine[0].ids, batches(64, 3)[0].ids)

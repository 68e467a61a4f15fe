"""The sum of a row's squares: its order, and what it holds."""

import numpy as np
import pytest

from naive import row_sums as naive
from ps_server.shard.row_sums import sum_of_squares


@pytest.mark.parametrize("dim", [1, 2, 7, 8, 9, 15, 16, 31, 64, 67, 1000])
def test_it_equals_its_slow_twin(dim: int) -> None:
    rng = np.random.default_rng(dim)
    for scale in (1e-30, 1.0, 1e30):
        row = (rng.normal(size=dim) * scale).astype(np.float32)
        assert sum_of_squares(row) == naive.sum_of_squares(row)
        assert sum_of_squares(row) == pytest.approx(float(np.sum(row.astype(np.float64) ** 2)), rel=1e-13)


def test_its_bits_are_pinned() -> None:
    row = np.array([2.0**27, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], dtype=np.float32)
    assert sum_of_squares(row) == 2.0**54 + 4.0  # ((2**54 + 1) + (1 + 1)) loses its ones, ((1 + 1) + (1 + 1)) counts, the ninth is lost
    assert sum_of_squares(np.roll(row, -1)) == 2.0**54 + 8.0  # the eight lanes are 8 before the ninth comes


def test_the_greatest_row_is_finite_and_the_least_is_not_zero() -> None:
    assert np.isfinite(sum_of_squares(np.full(65_536, np.finfo(np.float32).max, dtype=np.float32)))
    assert sum_of_squares(np.full(3, 1e-45, dtype=np.float32)) > 0
    assert sum_of_squares(np.zeros(5, dtype=np.float32)) == 0

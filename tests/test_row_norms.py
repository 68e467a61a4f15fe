"""max_norm: rows scaled as torch.nn.Embedding scales them."""

import numpy as np
import pytest
import torch

from ps_server.shard.row_norms import NormLimit

FIRST = np.zeros(1, dtype=np.int32)


@pytest.mark.parametrize("max_norm", [0.5, 1, 3.0])
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_rows_equal_those_that_torch_looks_up(dim: int, max_norm: float) -> None:
    rng = np.random.default_rng(dim)
    rows = (rng.normal(size=(200, dim)) * rng.uniform(0, 3, (200, 1))).astype(np.float32)
    embedding = torch.nn.Embedding(200, dim, max_norm=max_norm, _weight=torch.from_numpy(rows.copy()))
    want = embedding(torch.arange(200)).detach().numpy()
    limited = rows.copy()
    NormLimit(max_norm, dim, 0.0).apply(limited, np.arange(200, dtype=np.int32))
    np.testing.assert_allclose(limited, want, rtol=3e-7, atol=0)
    within = np.linalg.norm(rows.astype(np.float64), axis=1) <= max_norm
    assert 0 < within.sum() < 200
    assert limited[within].tobytes() == rows[within].tobytes()


def test_only_the_places_and_columns_asked_for_are_scaled() -> None:
    rows = np.full((3, 3), 4.0, dtype=np.float32)
    NormLimit(5.0, 2, 0.0).apply(rows, np.array([1], dtype=np.int32))
    assert rows[[0, 2]].tolist() == [[4, 4, 4]] * 2
    assert rows[1, 2] == 4
    assert rows[1, :2] == pytest.approx(5 / np.sqrt(2))


def test_a_given_row_may_exceed_it_by_the_slack() -> None:
    for size, stays in ((1.0, True), (1.25, True), (1.2501, False)):
        rows = np.array([[size]], dtype=np.float32)
        NormLimit(1.0, 1, slack=0.25).apply_to_given(rows, FIRST)
        assert rows[0, 0] == np.float32(size) if stays else rows[0, 0] == pytest.approx(1.0)


@pytest.mark.parametrize("dim", [1, 3, 16, 1000])
def test_what_was_scaled_is_within_the_slack_of_float32(dim: int) -> None:
    for seed in range(50):
        rows = np.random.default_rng([dim, seed]).normal(size=(1, dim)).astype(np.float32) * np.float32(1e3)
        limit = NormLimit(0.1 + seed, dim, 2.0**-20)
        limit.apply(rows, FIRST)
        again = rows.copy()
        limit.apply_to_given(again, FIRST)
        assert again.tobytes() == rows.tobytes()


def test_the_greatest_row_comes_down_and_a_limit_of_0_leaves_0() -> None:
    rows = np.full((1, 4), np.finfo(np.float32).max, dtype=np.float32)
    NormLimit(1.0, 4, 0.0).apply(rows, FIRST)
    assert rows[0] == pytest.approx(0.5)
    NormLimit(0.0, 4, 0.0).apply(rows, FIRST)
    assert rows.tolist() == [[0, 0, 0, 0]]

"""The bits that rows are rounded with: pinned, equal to their twin, even, and uncorrelated."""

from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest

from naive.bfloat16 import draws_of
from ps_server.shard.initializers.counter import row_stream
from ps_server.shard.rounding_draws import draw, rounding_key
from sharding.hashing import table_salt
from sharding.kernel import kernel

PINNED = {  # a change here changes every bfloat16 model that was ever trained
    (7, "user", 0, 0, -1): [52752, 61871, 10983, 6120, 65265],
    (7, "user", 2**64 - 1, 5 << 32 | 1, 3): [34090, 65081, 32479, 47383, 12444],
    (2**64 - 1, "größe", 12, 2**40, 0): [2121, 42261, 60389, 25220, 46652],
}


@kernel
def _draw_rows(
    seed: np.uint64, salt: np.uint64, ids: npt.NDArray[np.uint64], step: np.uint64, rank: np.uint64, out: npt.NDArray[np.uint32]
) -> None:
    key = rounding_key(seed, step, rank)
    for i in range(ids.size):
        stream = row_stream(key, salt, ids[i])
        for column in range(out.shape[1]):
            out[i, column] = draw(np.uint32(stream), np.uint32(stream >> np.uint64(32)), column)


def drawn(
    ids: npt.NDArray[np.uint64], dim: int, seed: int = 7, step: int = 0, rank: int = -1, name: str = "user"
) -> npt.NDArray[np.uint32]:
    """Return the draws of rows, uint32[n, dim]."""
    out = np.empty((ids.size, dim), dtype=np.uint32)
    _draw_rows(np.uint64(seed), table_salt(name), ids, np.uint64(step), np.uint64(rank % 2**64), out)
    return out


def centred(draws: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Return the draws with mean 0 and variance 1, if they are even."""
    return (draws.astype(np.float64) - 32_767.5) / (65_536 / sqrt(12))


IDS = np.arange(20_000, dtype=np.uint64)


def test_draws_are_pinned_and_equal_their_twin() -> None:
    for (seed, name, id, step, rank), want in PINNED.items():
        got = drawn(np.array([id], dtype=np.uint64), len(want), seed, step, rank, name)[0].tolist()
        assert got == draws_of(seed, name, id, step, rank, len(want))
        assert got == want


def test_every_part_of_the_name_counts() -> None:
    ids, base = np.array([5], dtype=np.uint64), drawn(np.array([5], dtype=np.uint64), 16)
    others = [
        drawn(ids, 16, seed=8),
        drawn(ids, 16, step=1),
        drawn(ids, 16, rank=0),
        drawn(ids, 16, name="item"),
        drawn(ids + np.uint64(1), 16),
    ]
    for other in others:
        assert (other == base).sum() <= 1
    assert drawn(ids, 8).tolist() == base[:, :8].tolist()


@pytest.mark.parametrize("step", [0, 1, 5 << 32])
def test_draws_fill_their_range_evenly(step: int) -> None:
    draws = drawn(IDS, 16, step=step)
    for part in (draws.ravel(), draws[:, 0], draws[:, 15]):
        counts = np.bincount(part >> 10, minlength=64)
        expected = part.size / 64
        assert counts.size == 64
        assert ((counts - expected) ** 2 / expected).sum() < 120  # chi square of 63 degrees of freedom: 1 in 10,000 is above 112


def test_draws_of_columns_ids_steps_and_ranks_are_uncorrelated() -> None:
    z = centred(drawn(IDS, 16, step=3))
    bound = 5 / sqrt(z.size)
    for lag in (1, 2, 4, 8):
        assert abs((z[:, lag:] * z[:, :-lag]).mean()) < 5 / sqrt(z[:, lag:].size)
        assert abs((z[lag:] * z[:-lag]).mean()) < bound * 1.01
    for other in (drawn(IDS, 16, step=4), drawn(IDS, 16, step=3, rank=0), drawn(IDS, 16, step=2), drawn(IDS, 16, step=3, seed=8)):
        assert abs((z * centred(other)).mean()) < bound


def test_the_steps_of_one_row_are_even_and_uncorrelated() -> None:
    one = np.array([12], dtype=np.uint64)
    for stride in (1, 1 << 32):  # of synchronous steps, and of the names of pushes
        z = centred(np.concatenate([drawn(one, 16, step=step * stride) for step in range(2_000)]))
        assert abs(z.mean()) < 5 / sqrt(z.size)
        assert abs((z[1:] * z[:-1]).mean()) < 5 / sqrt(z[1:].size)
        assert abs((z[:, 1:] * z[:, :-1]).mean()) < 5 / sqrt(z[:, 1:].size)

"""bfloat16: the two ways of rounding, against exact twins and torch."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from naive import bfloat16 as naive
from sharding.bfloat16 import cut, nearest, round_rows

# zeros, subnormals of both kinds, ones, halfway points of an even and of an odd number, the greatest, what lies beyond it, infinities
EDGES = [0x0000_0000, 0x8000_0000, 0x0000_0001, 0x8000_0001, 0x0000_FFFF, 0x0001_0000, 0x007F_FFFF, 0x0080_0000, 0x3F7F_FFFF, 0x3F80_0000,
         0x3F80_7FFF, 0x3F80_8000, 0x3F80_8001, 0x3F81_7FFF, 0x3F81_8000, 0x3F81_8001, 0xBF80_FFFF, 0xBF81_8000, 0x7F7E_FFFF, 0x7F7F_0000,
         0x7F7F_0001, 0x7F7F_7FFF, 0x7F7F_8000, 0x7F7F_FFFF, 0xFF7F_8000, 0xFF7F_FFFF, 0x7F80_0000, 0xFF80_0000]  # fmt: skip


def words(*bits: int) -> npt.NDArray[np.uint32]:
    return np.array(bits, dtype=np.uint32)


def some_bits() -> npt.NDArray[np.uint32]:
    """Return the edges and finite numbers of any size."""
    bits = np.random.default_rng(0).integers(0, 2**32, 3_000).astype(np.uint32)
    return np.concatenate([words(*EDGES), bits[np.isfinite(bits.view(np.float32))]])


def test_the_nearest_is_the_exact_one() -> None:
    for bits in some_bits():
        assert nearest(bits) == naive.nearest(float(bits.view(np.float32))), hex(bits)


def test_the_nearest_is_torchs_up_to_the_greatest() -> None:
    bits = some_bits()
    rows = bits.view(np.float32).reshape(1, -1).copy()
    want = torch.from_numpy(rows).to(torch.bfloat16).float().numpy()
    round_rows(rows, np.zeros(1, dtype=np.int32), rows.shape[1])
    overflowed = np.isinf(want) & (bits & 0x7FFF_FFFF < 0x7F80_0000)
    assert overflowed.sum() >= 4
    assert (np.abs(rows[overflowed]) == naive.float_of(naive.GREATEST)).all()
    assert rows[~overflowed].tobytes() == want[~overflowed].tobytes()


@pytest.mark.parametrize("draw", [0, 1, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF])
def test_a_draw_chooses_the_neighbour(draw: int) -> None:
    for bits in some_bits():
        assert cut(bits, np.uint32(draw)) == naive.drawn(float(bits.view(np.float32)), draw), hex(bits)


@pytest.mark.parametrize("bits", [0x0000_0001, 0x3F80_0001, 0x3F80_4000, 0x3F80_8000, 0xC0FF_FFFF, 0x7F7E_1234])
def test_as_many_draws_round_up_as_the_distance_says(bits: int) -> None:
    word = np.uint32(bits)
    up = sum(int(cut(word, np.uint32(draw)) != bits >> 16) for draw in range(0, 65_536, 16))
    assert abs(up - (bits & 0xFFFF) / 16) < 1


@pytest.mark.parametrize("draw", [0, 0x1234, 0xFFFF])
def test_what_bfloat16_has_stays(draw: int) -> None:
    for upper in [*range(0, 0x7F80, 97), *range(0x8000, 0xFF80, 97), 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0]:
        word = np.uint32(upper << 16)
        assert cut(word, np.uint32(draw)) == upper
        assert nearest(word) == upper


@pytest.mark.parametrize("bits", [0x7F80_0001, 0x7F80_FFFF, 0x7FFF_FFFF, 0xFFC0_0000, 0xFF80_0001])
def test_a_nan_stays_one(bits: int) -> None:
    for upper in (nearest(np.uint32(bits)), cut(np.uint32(bits), np.uint32(0)), cut(np.uint32(bits), np.uint32(0xFFFF))):
        assert np.isnan(naive.float_of(int(upper)))


def test_only_the_places_and_columns_asked_for_are_rounded() -> None:
    rows = np.full((3, 4), 1.001, dtype=np.float32)
    round_rows(rows, np.array([2, 0], dtype=np.int32), 3)
    one, given = np.float32(1.0), np.float32(1.001)
    assert rows.tolist() == [[one, one, one, given], [given] * 4, [one, one, one, given]]

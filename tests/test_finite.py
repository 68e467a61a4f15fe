"""Finite or not: every kind of number, alone and while it is copied."""

import numpy as np
import pytest

from sharding.finite import all_finite, copy_finite

NOT_FINITE = np.array([0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0x7FC0_0000, 0xFFFF_FFFF], np.uint32).view(np.float32)
FINITE = np.array([0, 0x8000_0000, 1, 0x7F7F_FFFF, 0xFF7F_FFFF, 0x3F80_0000], np.uint32).view(np.float32)


@pytest.mark.parametrize("place", [0, 1, 30, 98])
@pytest.mark.parametrize("value", NOT_FINITE)
def test_one_number_that_is_not_finite_is_found_wherever_it_is(value: np.float32, place: int) -> None:
    rows = np.resize(FINITE, (33, 3)).copy()
    out = np.empty_like(rows)
    assert all_finite(rows)
    assert copy_finite(rows, out)
    rows.reshape(-1)[place] = value
    assert not all_finite(rows)
    assert not copy_finite(rows, out)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (17, 5), (4, 64)])
def test_a_copy_has_the_same_bits(shape: tuple[int, int]) -> None:
    rows, out = np.resize(FINITE, shape), np.full(shape, 7.0, np.float32)
    rows.flags.writeable = False
    assert copy_finite(rows, out)
    assert out.tobytes() == rows.tobytes()


def test_a_copy_needs_as_much_room() -> None:
    with pytest.raises(ValueError, match=r"float32\[2, 3\] does not fit into float32\[3, 2\]"):
        copy_finite(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))

"""Arrays start where they must, and a read-only view is one."""

import numpy as np

from sharding.arrays import ALIGNMENT_BYTES, aligned_rows, empty_aligned, read_only


def test_every_array_starts_at_a_multiple_of_64_bytes() -> None:
    arrays = [empty_aligned((count, 5), np.dtype(np.uint64)) for count in range(20)] + [aligned_rows(count, 3) for count in range(20)]
    assert all(array.__array_interface__["data"][0] % ALIGNMENT_BYTES == 0 for array in arrays)


def test_shapes_and_dtypes_are_as_asked() -> None:
    assert empty_aligned((0, 5), np.dtype(np.float32)).shape == (0, 5)
    rows = aligned_rows(4, 3)
    assert rows.shape == (4, 3)
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous


def test_read_only_leaves_the_original_writable() -> None:
    array = np.zeros(3)
    view = read_only(array)
    assert not view.flags.writeable
    array[0] = 1.0
    assert view[0] == 1.0
    assert read_only(view) is view

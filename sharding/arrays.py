"""Two habits of arrays that the kernels and their callers rely on: where they start, and who may write to them."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT_BYTES = 64  # R16: 4 bytes off changes the bits of a torch matrix product


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `array`, or a read-only view of it.

    numba compiles a kernel once for arrays that may be written to and once for those that may not. What comes off the wire may be
    either, so a kernel's inputs are always handed over read-only.
    """
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a fresh C-contiguous array, uninitialised, whose first byte lies at a multiple of 64."""
    memory = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT_BYTES, dtype=np.uint8)
    begin = -memory.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return np.ndarray(shape, dtype, memory.data, begin)


_FLOAT32 = np.dtype(np.float32)


def aligned_rows(rows_count: int, dim: int) -> npt.NDArray[np.float32]:
    """Return a fresh float32[rows_count, dim] as `empty_aligned` does."""
    return empty_aligned((rows_count, dim), _FLOAT32)

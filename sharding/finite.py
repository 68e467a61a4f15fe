"""Whether a block of gradients is finite: asked by whoever sends it, while copying it or not, and by whoever takes it."""

import numpy as np
from numpy.typing import NDArray

from sharding.arrays import read_only
from sharding.kernel import kernel


@kernel
def _any_not_finite(bits: NDArray[np.uint32]) -> bool:
    exponent = np.uint32(0x7F80_0000)  # all ones there is inf or nan
    found = np.uint32(0)
    for i in range(bits.size):  # no early exit: so that the loop vectorises
        found |= np.uint32((bits[i] & exponent) == exponent)
    return bool(found != 0)


def all_finite(rows: NDArray[np.float32]) -> bool:
    """Return whether no element of float32[...], C-contiguous, is inf or nan.

    >>> all_finite(np.float32([[1.0, 2.0]])), all_finite(np.float32([np.nan]))
    (True, False)
    """
    return not _any_not_finite(rows.reshape(-1).view(np.uint32))


@kernel
def _copy(bits: NDArray[np.uint32], out: NDArray[np.uint32]) -> bool:
    """Copy, and return whether an element is not finite. Bound by memory: the look costs nothing beside the copy."""
    exponent = np.uint32(0x7F80_0000)
    found = np.uint32(0)
    for i in range(bits.size):
        word = bits[i]
        found |= np.uint32((word & exponent) == exponent)
        out[i] = word
    return bool(found != 0)


def copy_finite(rows: NDArray[np.float32], out: NDArray[np.float32]) -> bool:
    """Copy float32[...] to `out`, of the same shape, both C-contiguous; return whether no element is inf or nan.

    >>> out = np.empty(2, np.float32)
    >>> copy_finite(np.float32([1.0, 2.0]), out), out.tolist()
    (True, [1.0, 2.0])
    """
    if out.shape != rows.shape:
        raise ValueError(f"float32{list(rows.shape)} does not fit into float32{list(out.shape)}.")
    return not _copy(read_only(rows.reshape(-1).view(np.uint32)), out.reshape(-1).view(np.uint32))

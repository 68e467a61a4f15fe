"""Whether a block of gradients is finite: asked by whoever sends it and by whoever takes it."""

import numpy as np
from numpy.typing import NDArray

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

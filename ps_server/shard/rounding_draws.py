"""The random bits by which rows are rounded: those of (seed, table name, id, column, step, rank) are a hash of the six.

By counting, as initial values are: no state, so whoever holds a row rounds it alike, whatever else it rounds, and a redone step too.
"""

import numpy as np

from sharding.hashing import mix64
from sharding.kernel import kernel

_ROUNDING = np.uint64(0x6A09_E667_F3BC_C909)  # the fraction of √2: a table's initial values draw otherwise
_GOLDEN = np.uint32(0x9E37_79B9)  # 2**32 / golden ratio, odd
_FACTOR_1, _FACTOR_2 = np.uint32(0x7FEB_352D), np.uint32(0x846C_A68B)
_SHIFT_15, _SHIFT_16 = np.uint32(15), np.uint32(16)


@kernel
def rounding_key(seed: np.uint64, step: np.uint64, rank: np.uint64) -> np.uint64:
    """Return what the draws of a step have in common; `step` and `rank` as `ps_server.shard.optimizers.optimizer.Origin` names them."""
    return mix64(mix64(mix64(seed ^ _ROUNDING) ^ step) ^ rank)


@kernel
def draw(low: np.uint32, high: np.uint32, column: int) -> np.uint32:
    """Return 16 random bits for a column of the row whose stream, `row_stream(rounding_key(...), salt, id)`, has these halves.

    Wellons's lowbias32 of a walk from the lower half, with the upper half let in midway. 32 bits wide, so that the columns of a row are
    drawn side by side; mix64, which initial values are made of, has no vector multiplication on most processors.
    """
    bits = np.uint32(low + np.uint32(np.uint32(column) * _GOLDEN))
    bits = np.uint32(np.uint32(bits ^ (bits >> _SHIFT_16)) * _FACTOR_1)
    bits = np.uint32(bits ^ high)
    bits = np.uint32(np.uint32(bits ^ (bits >> _SHIFT_15)) * _FACTOR_2)
    return np.uint32(np.uint32(bits ^ (bits >> _SHIFT_16)) >> _SHIFT_16)

"""Random bits by counting: those of (seed, table name, id, column) are a hash of the four.

Counter-based (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; with splitmix64's walk and the table's own mix in
place of their ciphers): no state, so any server computes any of them, in any order, to the same bits.
"""

import numpy as np

from sharding.hashing import hash_id, mix64
from sharding.kernel import kernel

GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 / golden ratio, odd: splitmix64's step
_ONE = np.uint64(1)
_SHIFT_24 = np.uint64(40)  # keeps the top 24 bits
_SHIFT_52 = np.uint64(12)  # keeps the top 52: half a step more is still exact in float64, and never 0 or 1


def seed_key(seed: int) -> np.uint64:
    """Return what makes a seed's bits its own: not the seed itself, so that seed 0 is not the plain hash, and 1 not its neighbour."""
    return np.uint64(mix64(np.uint64(seed) ^ GOLDEN))


@kernel
def row_stream(key: np.uint64, salt: np.uint64, id: np.uint64) -> np.uint64:
    """Return where the random numbers of a row begin, for `bits_of`. key: the seed's; salt: `sharding.hashing.table_salt` of the name."""
    return mix64(hash_id(salt, id) ^ key)


@kernel
def bits_of(stream: np.uint64, column: int) -> np.uint64:
    """Return 64 random bits for a column of the row whose numbers begin at `stream`."""
    return mix64(stream + (np.uint64(column) + _ONE) * GOLDEN)


@kernel
def uniform_24(bits: np.uint64) -> float:
    """Return a multiple of 2^-24 in [0, 1), as float64; a float32 holds it."""
    return np.float64(bits >> _SHIFT_24) * 2.0**-24


@kernel
def uniform_52(bits: np.uint64) -> float:
    """Return an odd multiple of 2^-53 in (0, 1), as float64."""
    return (np.float64(bits >> _SHIFT_52) + 0.5) * 2.0**-52

"""From (table name, id) to a 64-bit hash, and from the hash to one of 16,384 buckets.

These numbers are part of the contract: a checkpoint or a peer that computed another bucket for an id would look for its row on the
wrong server. `tests/test_hashing.py` pins them.
"""

import numpy as np
import numpy.typing as npt
import xxhash

from sharding.kernel import kernel

NUM_BUCKETS = 16_384
BUCKET_SHIFT = 50  # the top 14 bits are the bucket; an index inside a server must use lower ones

_SHIFT = np.uint64(33)
_FACTOR_1 = np.uint64(0xFF51AFD7ED558CCD)
_FACTOR_2 = np.uint64(0xC4CEB9FE1A85EC53)
_BUCKET_SHIFT = np.uint64(BUCKET_SHIFT)


def table_salt(name: str) -> np.uint64:
    """Return what makes a table's hashes its own: xxh64 of the utf-8 name. A table is its name, never a number (R18)."""
    return np.uint64(xxhash.xxh64_intdigest(name.encode()))


@kernel
def mix64(x: np.uint64) -> np.uint64:
    """Return fmix64 of MurmurHash3 (Appleby, 2011): a bijection on uint64 in which every input bit reaches every output bit."""
    x = x ^ (x >> _SHIFT)
    x = x * _FACTOR_1
    x = x ^ (x >> _SHIFT)
    x = x * _FACTOR_2
    return x ^ (x >> _SHIFT)


@kernel
def hash_id(salt: np.uint64, id: np.uint64) -> np.uint64:
    """Return the hash of `id` in the table with `salt`; within a table no two ids have the same one."""
    return mix64(salt ^ id)


@kernel
def buckets_of(salt: np.uint64, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """Return the bucket of each id, int32[n]; `ids` uint64[n]."""
    buckets = np.empty(ids.size, dtype=np.int32)
    for i in range(ids.size):
        buckets[i] = np.int32(hash_id(salt, ids[i]) >> _BUCKET_SHIFT)
    return buckets

"""The consistent-hashing ring: for each bucket, the order in which it would go to the servers.

Karger, Lehman, Leighton, Panigrahy, Levine, Lewin: Consistent Hashing and Random Trees, STOC 1997, §4. Unlike there the ring does not
decide how much each server owns, which would be uneven and would change with each virtual node: quotas do (`rebalance.py`), and the
ring says only which buckets go where.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from sharding.hashing import BUCKET_SHIFT, NUM_BUCKETS, hash_id, table_salt
from sharding.kernel import kernel

# Each server has as many, whatever its weight: quotas carry the weight, and so a new weight moves no point. 64 scatter a leaver's
# buckets over the others; more would buy nothing, since the balance does not hang on them.
VIRTUAL_NODES = 64

# A bucket's own point is where its range of hashes begins, so that neighbours tend to stay together and maps have long runs.
BUCKET_POINTS: npt.NDArray[np.uint64] = np.arange(NUM_BUCKETS, dtype=np.uint64) << np.uint64(BUCKET_SHIFT)
BUCKET_POINTS.setflags(write=False)


@dataclass(frozen=True, eq=False, slots=True)
class Ring:
    """Virtual nodes on [0, 2**64), clockwise: `points` uint64[v] ascending, `owners` int32[v] the index of each one's server."""

    points: npt.NDArray[np.uint64]
    owners: npt.NDArray[np.int32]

    @classmethod
    def of(cls, names: Sequence[str]) -> Self:
        """Place the servers' virtual nodes: functions of each name alone, whatever the others are and however they are ordered."""
        by_name = sorted(range(len(names)), key=names.__getitem__)
        points = np.concatenate([_points_of(table_salt(names[index])) for index in by_name])
        owners = np.repeat(np.array(by_name, dtype=np.int32), VIRTUAL_NODES)
        clockwise = np.argsort(points, kind="stable")  # two equal points go by name
        return cls(points[clockwise], owners[clockwise])

    def restricted_to(self, is_kept: npt.NDArray[np.bool_]) -> "Ring":
        """Return the ring of the servers that are kept; `is_kept` bool[servers]. Their indexes stay as they are."""
        kept = is_kept[self.owners]
        return Ring(self.points[kept], self.owners[kept])

    def starts(self) -> npt.NDArray[np.int64]:
        """Return for each bucket the first virtual node at its point or clockwise of it, int64[16384]."""
        return np.searchsorted(self.points, BUCKET_POINTS) % len(self.points)

    def distances(self) -> npt.NDArray[np.uint64]:
        """Return how far clockwise of each bucket's point the first virtual node lies, uint64[16384]."""
        return self.points[self.starts()] - BUCKET_POINTS  # wraps around, as the ring does

    def order_of(self, bucket: int) -> npt.NDArray[np.int32]:
        """Return the servers in the order of a clockwise walk from the bucket's point, each once, int32[servers]."""
        walk = np.roll(self.owners, -int(self.starts()[bucket]))
        _, first = np.unique(walk, return_index=True)
        return walk[np.sort(first)]


@kernel
def _points_of(salt: np.uint64) -> npt.NDArray[np.uint64]:
    """Return a server's points, uint64[VIRTUAL_NODES]."""
    points = np.empty(VIRTUAL_NODES, dtype=np.uint64)
    for node in range(VIRTUAL_NODES):
        points[node] = hash_id(salt, np.uint64(node))
    return points

"""The last applied push per (bucket, rank): what makes a repeated push harmless (R2).

Per bucket and not per server, because buckets move: a name that the old owner applied must be known to the new one, and a name that
the new owner applied for its own buckets must not hide the rows of a bucket that came later.
"""

import numpy as np
from numpy.typing import NDArray

from ps_proto.requests import NEVER
from ps_server.tasks import SavedNames
from sharding.hashing import NUM_BUCKETS
from sharding.kernel import kernel

Names = NDArray[np.uint64]
Buckets = NDArray[np.int32]
Fresh = NDArray[np.bool_]


@kernel
def _mark_fresh(names: Names, buckets: Buckets, name: np.uint64, fresh: Fresh) -> int:
    count = 0
    for i in range(buckets.size):
        fresh[i] = names[buckets[i]] < name
        count += fresh[i]
    return count


@kernel
def _record(names: Names, buckets: Buckets, name: np.uint64) -> None:
    for i in range(buckets.size):
        names[buckets[i]] = name


class Window:
    """names: per rank uint64[16384], the name applied last in each bucket; 0 where there was none (seq counts from 1)."""

    def __init__(self) -> None:
        self._names: dict[int, Names] = {}

    def _of(self, rank: int) -> Names:
        if rank not in self._names:
            self._names[rank] = np.zeros(NUM_BUCKETS, np.uint64)
        return self._names[rank]

    def fresh(self, rank: int, buckets: Buckets, name: int) -> Fresh | None:
        """Return which of the ids, given by their buckets, the push `name` has yet to reach; None means all of them."""
        fresh = np.empty(buckets.size, np.bool_)
        return None if _mark_fresh(self._of(rank), buckets, np.uint64(name), fresh) == buckets.size else fresh

    def record(self, rank: int, buckets: Buckets, name: int) -> None:
        """Take the push as applied in these buckets; called once what is fresh of all its tables is known: tables share buckets."""
        _record(self._of(rank), buckets, np.uint64(name))

    def last_clock(self, rank: int) -> int:
        """Return the last step of which a push of this rank was applied, or NEVER."""
        name = int(self._names[rank].max()) if rank in self._names else 0
        return name >> 32 if name else NEVER

    @property
    def ranks(self) -> list[int]:
        """The ranks of which anything was applied or asked."""
        return sorted(self._names)

    def extract(self, leaving: NDArray[np.bool_]) -> dict[int, Names]:
        """Return the names of the buckets marked in bool[16384], by rank, and forget them here."""
        moved = {}
        for rank, names in self._names.items():
            moved[rank] = np.where(leaving, names, np.uint64(0))
            names[leaving] = 0
        return moved

    def adopt(self, moved: dict[int, Names]) -> None:
        """Take over the names of buckets that come from another server."""
        for rank, names in moved.items():
            np.maximum(self._of(rank), names, out=self._of(rank))

    def saved(self, buckets: Buckets) -> SavedNames:
        """Return a copy of the names of these buckets, int32[k], each once and ascending, for a checkpoint."""
        ranks = self.ranks
        names = np.zeros((len(ranks), buckets.size), np.uint64)
        for row, rank in zip(names, ranks, strict=True):
            row[:] = self._names[rank][buckets]
        return SavedNames(tuple(ranks), buckets.copy(), names)

    def restore(self, saved: SavedNames, owned: Buckets) -> None:
        """Take the saved names for those of the `owned` buckets, int32[k], that are among the saved ones.

        Names that are newer here go: what was applied under them is gone from the rows too, and is pushed again.
        """
        is_owned = np.zeros(NUM_BUCKETS, np.bool_)
        is_owned[owned] = True
        chosen = is_owned[saved.buckets]
        buckets = saved.buckets[chosen]
        for names in self._names.values():
            names[buckets] = 0
        for rank, row in zip(saved.ranks, saved.names, strict=True):
            self._of(rank)[buckets] = row[chosen]

    def clear(self) -> None:
        """Forget all names."""
        self._names = {}

"""The ids of ranks' last pulls, so that a push may name them instead of bringing them along (R19).

Key caching: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI'14, 5.1. There both sides keep a hash of the
list and the sender leaves the keys out when it sends the same ones again; here a list is named, so that nothing rests on a hash, and the
slots that the pull has found are kept beside it, so that the push looks up only what had no row.
"""

from dataclasses import dataclass, field

from ps_proto.errors import UnknownKeyList
from ps_proto.requests import Fence, Ids
from ps_server.shard.counters import Counters
from ps_server.shard.table import Places

# Twice what workers name: they drop a list when it is pushed, and a server also knows of pulls that are under way or were given up.
LISTS_MAX = 16  # of one rank and table
LISTS_BYTES_MAX = 64 << 20  # of one rank: 12 bytes an id
_LIST_BYTES = 512  # what a list takes beside its arrays


@dataclass(frozen=True, slots=True)
class KeyList:
    """The ids of a table in one pull, uint64[n], and where their rows lay."""

    ids: Ids
    places: Places

    @property
    def nbytes(self) -> int:
        """Return the bytes that it keeps alive."""
        return _LIST_BYTES + self.ids.nbytes + self.places.nbytes


@dataclass(slots=True)
class _OfRank:
    """The lists of one incarnation under one map: by table, then by the number of their pull."""

    incarnation: int
    map_version: int
    tables: dict[str, dict[int, KeyList]] = field(default_factory=dict)
    nbytes: int = 0

    def drop(self, table: str, pull: int) -> None:
        lists = self.tables[table]
        self.nbytes -= lists.pop(pull).nbytes
        if not lists:
            del self.tables[table]


class KeyLists:
    """The lists that one server remembers, in memory alone.

    A list is found only under the rank, incarnation and map version of its pull. Since a map names its servers' incarnations, and a server
    that was started again has no list but those of pulls that it was sent since, none outlives its server. A rank never gives the number of
    a list to other ids, so the list found is the one meant. Whatever is dropped costs a resend.
    """

    def __init__(self, server: str, counters: Counters, bytes_max: int = LISTS_BYTES_MAX) -> None:
        """`server`: whose, for errors. `bytes_max`: of one rank's lists."""
        self._server = server
        self._counters = counters
        self._bytes_max = bytes_max
        self._ranks: dict[int, _OfRank] = {}

    def __len__(self) -> int:
        return sum([len(lists) for known in self._ranks.values() for lists in known.tables.values()])

    @property
    def nbytes(self) -> int:
        """Return the bytes kept for all ranks."""
        return sum([known.nbytes for known in self._ranks.values()])

    def keep(self, fence: Fence, table: str, pull: int, ids: Ids, places: Places) -> None:
        """Remember the ids uint64[n] that a pull has found at `places`; nobody changes either any more.

        The table's lists of the lowest numbers go first where there are more than LISTS_MAX; one that is too large alone is not kept.
        """
        known = self._known(fence)
        if known is None:
            known = self._ranks[fence.rank] = _OfRank(fence.incarnation, fence.map_version)
        lists = known.tables.setdefault(table, {})
        if pull in lists:
            known.nbytes -= lists[pull].nbytes
        lists[pull] = KeyList(ids, places)
        known.nbytes += lists[pull].nbytes
        if len(lists) > LISTS_MAX:
            known.drop(table, min(lists))
        while known.nbytes > self._bytes_max:
            known.drop(*min([(name, number) for name, its in known.tables.items() for number in its], key=lambda item: item[1]))

    def get(self, fence: Fence, table: str, pull: int, rows_count: int) -> KeyList:
        """Return the table's ids in a pull of the fenced rank, `rows_count` of them; UnknownKeyList where they are not known."""
        known = self._known(fence)
        found = None if known is None else known.tables.get(table, {}).get(pull)
        if found is None or found.ids.size != rows_count:
            self._counters.key_lists_unknown += 1
            raise UnknownKeyList(self._server, table, pull)
        return found

    def forget_before(self, fence: Fence, table: str, pull: int) -> None:
        """Drop the table's lists of earlier pulls, once one of `pull` was pushed: a rank pushes in the order in which it pulls."""
        known = self._known(fence)
        if known is not None:
            for earlier in [number for number in known.tables.get(table, ()) if number < pull]:
                known.drop(table, earlier)

    def _known(self, fence: Fence) -> _OfRank | None:
        known = self._ranks.get(fence.rank)
        is_same = known is not None and (known.incarnation, known.map_version) == (fence.incarnation, fence.map_version)
        return known if is_same else None

    def forget(self, rank: int) -> None:
        """Drop a rank's lists: it has left, or is another's from now on."""
        self._ranks.pop(rank, None)

    def clear(self) -> None:
        """Drop everything: another job begins, or another map holds."""
        self._ranks.clear()

"""The ids of this worker's last pulls, which servers remember for it: a push of the same ids names the pull instead (R19).

Training pushes what it has pulled, a step or a few later. What is kept here is what was asked, in arrays of our own: the ids of a push are
compared with it one by one, so that an array that was changed meanwhile is another list. Beside the ids are the parts by server, so that a
push of them is not split anew. A server that has forgotten a list says so, and gets the push with its ids.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from ps_proto.requests import Ids
from ps_worker.router import Part, Wanted, parts_of, route
from sharding.shard_map import ShardMap

# Of a table in one pull. To number, keep and compare a list takes 10 to 15 us. A push of 1,024 ids finds their rows in as little, since the
# pull has just had them in the caches; from 4,096 on naming them costs less than it saves, and the ids need not travel.
IDS_MIN = 4_096
# A push that names what a server has dropped travels twice. So half as much is named as a server keeps, which also knows of pulls that are
# under way or were given up.
LISTS_MAX = 8  # of one table
LISTS_BYTES_MAX = 64 << 20
_ID_BYTES, _LIST_BYTES = 24, 1_024  # twice what a server counts; and what split ids take, with the parts' and their order
READS_MAX = LISTS_MAX  # pulls of a table with no push in between: by then the first is forgotten, and it looks like evaluation


class KeyList(NamedTuple):
    """The ids of a table in the pull of this number, and the parts of them by server under the map of this version."""

    pull: int
    map_version: int
    ids: Ids
    parts: Mapping[str, Part]

    @property
    def nbytes(self) -> int:
        """Return the bytes that it counts for: no less than it keeps alive."""
        return _nbytes(self.ids.size)

    def is_of(self, ids: Ids) -> bool:
        """Return whether these are its ids, in its order."""
        return ids.size == self.ids.size and ids[0] == self.ids[0] and ids[-1] == self.ids[-1] and bool((ids == self.ids).all())


class Pulling(NamedTuple):
    """What a pull asks of each server, and what is to be kept of it once all have answered: `lists` by table."""

    parts: dict[str, list[Part]]
    lists: dict[str, KeyList]


class KeyLists:
    """Numbers the pulls whose ids servers are to remember: of tables that this worker pushes to, from `ids_min` ids on.

    A pull and a push may be under way in two threads: `exclusive` guards what they share.
    """

    def __init__(self, exclusive: AbstractContextManager[object], ids_min: int = IDS_MIN) -> None:
        self._exclusive = exclusive
        self._ids_min = max(ids_min, 1)
        self._pulls = 0
        self._reads: dict[str, int] = {}  # table -> pulls since the last push to it; none of others
        self._lists: dict[str, dict[int, KeyList]] = {}  # table -> by the number of their pull
        self._nbytes = 0

    # --- pulls -----------------------------------------------------------------------------------------------------------------

    def route_pull(self, tables: Sequence[Wanted], shard_map: ShardMap) -> Pulling:
        """Return what `route` does, with a number where a server is to remember the ids."""
        numbers = self._numbers(tables)
        if not any(numbers):
            return Pulling(route(tables, shard_map), {})
        parts: dict[str, list[Part]] = {}
        lists = {}
        for position, (wanted, number) in enumerate(zip(tables, numbers, strict=True)):
            asked = wanted
            if number:  # they may be the caller's array, or the beginning of a much longer one: what is sent is what is kept
                asked = wanted._replace(ids=wanted.ids.copy())
            its = dict(parts_of(position, asked, shard_map, number))
            if number:
                lists[wanted.table] = KeyList(number, shard_map.version, asked.ids, its)
            for server, part in its.items():
                parts.setdefault(server, []).append(part)
        return Pulling(parts, lists)

    def _numbers(self, tables: Sequence[Wanted]) -> list[int]:
        """Return the number of the next pull for each table that is to be remembered, 0 for the others: those too large, too."""
        with self._exclusive:
            chosen, nbytes = [], 0
            for wanted in tables:
                size = wanted.ids.size
                its_bytes = _nbytes(size) if size >= self._ids_min and self._reads.get(wanted.table, READS_MAX) < READS_MAX else 0
                chosen.append(0 < its_bytes <= LISTS_BYTES_MAX - nbytes)
                nbytes += its_bytes * chosen[-1]
            for wanted in tables:
                if wanted.table in self._reads:
                    self._reads[wanted.table] += 1
            self._pulls += any(chosen)
            return [self._pulls if is_chosen else 0 for is_chosen in chosen]

    def answered(self, pulling: Pulling) -> None:
        """Keep the lists of a pull that all servers have answered."""
        with self._exclusive:
            for table, asked in pulling.lists.items():
                lists = self._lists.setdefault(table, {})
                lists[asked.pull] = asked
                self._nbytes += asked.nbytes
                if len(lists) > LISTS_MAX:
                    self._drop(table, min(lists))
            while self._nbytes > LISTS_BYTES_MAX:
                self._drop(*min([(table, pull) for table, lists in self._lists.items() for pull in lists], key=lambda item: item[1]))

    # --- pushes ----------------------------------------------------------------------------------------------------------------

    def find(self, wanted: Wanted, map_version: int) -> KeyList | None:
        """Return the list of the newest pull of exactly these ids in this order, under this map; None where there is none.

        What was pulled of the table before is forgotten, as it is by the servers: a push follows its pull in the order of the pulls.
        """
        table, ids = wanted.table, wanted.ids
        with self._exclusive:
            self._reads[table] = 0
            lists = sorted(self._lists.get(table, {}).items(), reverse=True)
        found = next((known for _, known in lists if known.map_version == map_version and known.is_of(ids)), None)
        if found is not None:
            with self._exclusive:
                for pull in [pull for pull in self._lists.get(table, {}) if pull < found.pull]:
                    self._drop(table, pull)
        return found

    def forget(self, table: str, pull: int) -> None:
        """Drop the list of this pull, if there is one: a server has."""
        with self._exclusive:
            if pull in self._lists.get(table, {}):
                self._drop(table, pull)

    def _drop(self, table: str, pull: int) -> None:
        lists = self._lists[table]
        self._nbytes -= lists.pop(pull).nbytes
        if not lists:
            del self._lists[table]


def _nbytes(ids_count: int) -> int:
    return _LIST_BYTES + _ID_BYTES * ids_count

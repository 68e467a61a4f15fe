"""From the caller's ids to one request per server, and from the servers' rows back to the caller's order."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ps_proto.requests import Ids, Rows
from sharding.arrays import aligned_rows
from sharding.hashing import table_salt
from sharding.partition import Indexes, deduplicate, gather_ids, has_few_repeats, split
from sharding.shard_map import ShardMap
from sharding.wire_format import WireRows
from sharding.wire_rows import decode_rows, decode_to

READ_TWICE_MAX = 8  # one id in so many
LOOK_FIRST_MIN = 512  # ids: of fewer, to take each once costs no more than to look for repeats


class Wanted(NamedTuple):
    """The ids of one table that are asked for.

    `inverse` int64[n]: where each of the caller's ids went among `ids`, which has each once, in order of first appearance; None: `ids` are
    the caller's, in its order.
    """

    table: str
    ids: Ids
    inverse: Indexes | None

    @classmethod
    def to_read(cls, table: str, ids: Ids) -> "Wanted":
        """Ask for repeats twice where they are few: some more rows travel, but none is copied once more to lay repeats out."""
        return cls._of(table, ids, ids.size // READ_TWICE_MAX)

    @classmethod
    def to_write(cls, table: str, ids: Ids) -> "Wanted":
        """Take each id once."""
        return cls._of(table, ids, 0)

    @classmethod
    def _of(cls, table: str, ids: Ids, repeats_max: int) -> "Wanted":
        if ids.size >= LOOK_FIRST_MIN and has_few_repeats(ids, repeats_max):
            return cls(table, ids, None)
        unique, inverse = deduplicate(ids)
        return cls(table, unique, inverse if unique.size < ids.size else None)

    def expand(self, rows: Rows) -> Rows:
        """Return a row for each of the caller's ids, repeats included, from float32[unique, dim]."""
        if self.inverse is None:
            return rows
        expanded = aligned_rows(self.inverse.size, rows.shape[1])
        return np.take(rows, self.inverse, axis=0, out=expanded, mode="clip")  # "clip": take checks no index and buffers nothing


class Part(NamedTuple):
    """What one server owns of the table at `position` in the request.

    `order` int64[n]: the places of `ids` among the table's; None: it owns them all. `pull`: the number of a pull by which the server knows
    them, or is to (R19); 0: none.
    """

    position: int
    ids: Ids
    order: Indexes | None
    pull: int = 0


def route(tables: Sequence[Wanted], shard_map: ShardMap) -> dict[str, list[Part]]:
    """Return the parts of each server that owns any of the ids; a table's parts are disjoint and together hold all of them."""
    routed: dict[str, list[Part]] = {}
    for position, wanted in enumerate(tables):
        for server, part in parts_of(position, wanted, shard_map):
            routed.setdefault(server, []).append(part)
    return routed


def parts_of(position: int, wanted: Wanted, shard_map: ShardMap, pull: int = 0) -> Iterator[tuple[str, Part]]:
    """Yield each server that owns any of the ids of one table, the one at `position` in the request, and its part."""
    servers = shard_map.servers
    if len(servers) == 1:
        if wanted.ids.size:
            yield servers[0].name, Part(position, wanted.ids, None, pull)
        return
    by_owner = split(table_salt(wanted.table), wanted.ids, shard_map.owners, len(servers))
    for index, server in enumerate(servers):
        order = by_owner.part(index)
        if order.size == wanted.ids.size and order.size:
            yield server.name, Part(position, wanted.ids, None, pull)
        elif order.size:
            yield server.name, Part(position, gather_ids(wanted.ids, order), order, pull)


def join(dims: Sequence[int], sizes: Sequence[int], answers: Sequence[tuple[Part, WireRows]]) -> list[Rows]:
    """Return float32[sizes[k], dims[k]] of each table k, its rows laid where its parts' orders say, and opened on the way there."""
    joined: list[Rows | None] = [None] * len(dims)
    for part, rows in answers:
        if part.order is None:
            joined[part.position] = decode_rows(rows)
        else:
            whole = joined[part.position]
            if whole is None:
                whole = joined[part.position] = aligned_rows(sizes[part.position], dims[part.position])
            decode_to(rows, part.order, whole)
    return [aligned_rows(size, dim) if rows is None else rows for rows, size, dim in zip(joined, sizes, dims, strict=True)]

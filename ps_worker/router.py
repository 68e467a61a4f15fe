"""From the caller's ids to one request per server, and from the servers' rows back to the caller's order."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ps_proto.requests import Ids, Rows
from sharding.arrays import aligned_rows
from sharding.hashing import table_salt
from sharding.partition import Indexes, deduplicate, gather_ids, scatter_rows, split
from sharding.shard_map import ShardMap


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ids of one table, each once, in order of first appearance.

    `inverse` int64[n]: where each of the caller's ids went; None: there were no repeats.
    """

    table: str
    ids: Ids
    inverse: Indexes | None

    @classmethod
    def of(cls, table: str, ids: Ids) -> "Wanted":
        unique, inverse = deduplicate(ids)
        return cls(table, unique, inverse if unique.size < ids.size else None)

    def expand(self, rows: Rows) -> Rows:
        """Return a row for each of the caller's ids, repeats included, from float32[unique, dim]."""
        if self.inverse is None:
            return rows
        expanded = aligned_rows(self.inverse.size, rows.shape[1])
        return np.take(rows, self.inverse, axis=0, out=expanded, mode="clip")  # "clip": take checks no index and buffers nothing


@dataclass(frozen=True, slots=True)
class Part:
    """What one server owns of the table at `position` in the request.

    `order` int64[n]: the places of `ids` among the table's; None: it owns them all.
    """

    position: int
    ids: Ids
    order: Indexes | None


def route(tables: Sequence[Wanted], shard_map: ShardMap) -> dict[str, list[Part]]:
    """Return the parts of each server that owns any of the ids; a table's parts are disjoint and together hold all of them."""
    routed: dict[str, list[Part]] = {}
    servers = shard_map.servers
    for position, wanted in enumerate(tables):
        if len(servers) == 1:
            if wanted.ids.size:
                routed.setdefault(servers[0].name, []).append(Part(position, wanted.ids, None))
            continue
        by_owner = split(table_salt(wanted.table), wanted.ids, shard_map.owners, len(servers))
        for index, server in enumerate(servers):
            order = by_owner.part(index)
            if order.size == wanted.ids.size and order.size:
                routed.setdefault(server.name, []).append(Part(position, wanted.ids, None))
            elif order.size:
                routed.setdefault(server.name, []).append(Part(position, gather_ids(wanted.ids, order), order))
    return routed


def join(dims: Sequence[int], sizes: Sequence[int], answers: Sequence[tuple[Part, Rows]]) -> list[Rows]:
    """Return float32[sizes[k], dims[k]] of each table k, its rows laid where its parts' orders say."""
    whole: dict[int, Rows] = {part.position: rows for part, rows in answers if part.order is None}
    joined = [whole[k] if k in whole else aligned_rows(size, dim) for k, (size, dim) in enumerate(zip(sizes, dims, strict=True))]
    for part, rows in answers:
        if part.order is not None:
            scatter_rows(rows, part.order, joined[part.position])
    return joined

"""A push, an assignment or a clearing under its name: checked and merged once, the same on every attempt (R2, R17)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ps_proto.requests import ColumnLayout, Ids, TableRows
from ps_proto.values import TableSpec
from ps_worker.protocol.merged import Merged
from ps_worker.rooms import Lend, Size, rooms
from ps_worker.router import Part, parts_of
from sharding.partition import gather_rows, gather_rows_to
from sharding.shard_map import ShardMap

_NO_IDS: Ids = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Named:
    """What is written under the name (rank, clock, seq), or UNNAMED. `clears`: the table that loses its rows; then `merged` is empty."""

    clock: int
    seq: int
    merged: tuple[Merged, ...] = ()
    assign: bool = False
    only_absent: bool = False
    columns: tuple[ColumnLayout, ...] = ()
    clears: str | None = None

    @property
    def tables(self) -> list[str]:
        """The names of the tables that it writes to."""
        return [item.wanted.table for item in self.merged] if self.clears is None else [self.clears]

    def routed(self, shard_map: ShardMap) -> dict[str, list[Part]]:
        """Return the parts of each server that owns any of the ids; those of a list under this map have the number of its pull."""
        parts: dict[str, list[Part]] = {}
        for position, item in enumerate(self.merged):
            if item.listed is not None and item.listed.map_version == shard_map.version:
                its = [(server, part._replace(position=position)) for server, part in item.listed.parts.items()]
            else:
                its = list(parts_of(position, item.wanted, shard_map))
            for server, part in its:
                parts.setdefault(server, []).append(part)
        return parts

    def encoded(self, specs: Mapping[str, TableSpec]) -> "Named":
        """Return it as it is sent, gradients as their table's `wire` says; a further attempt finds it done. `specs`: of its tables."""
        if self.assign or self.clears is not None:
            return self
        return replace(self, merged=tuple([item.encoded(specs[item.wanted.table].wire) for item in self.merged]))

    def rows_of(self, parts: Sequence[Part], lend: Lend) -> tuple[TableRows, ...]:
        """Return what one server gets of it: as it lies where it gets all of it, else gathered into memory that is lent, if some is."""
        merged = [self.merged[part.position] for part in parts]
        room = None
        if any([part.order is not None for part in parts]):
            room = rooms([Size.of(part.ids.size, item.rows, has_ids=not part.pull) for part, item in zip(parts, merged, strict=True)], lend)
        tables = []
        for place, (part, item) in enumerate(zip(parts, merged, strict=True)):
            its_ids = _NO_IDS if part.pull else part.ids
            if room is None:
                ids, rows = its_ids, item.rows if part.order is None else gather_rows(item.rows, part.order)
            else:
                ids, rows = room[place]
                ids[:] = its_ids
                if part.order is None:
                    rows[:] = item.rows
                else:
                    gather_rows_to(item.rows, part.order, rows)
            tables.append(TableRows(item.wanted.table, ids, rows, part.pull))
        return tuple(tables)

    def copied(self) -> "Named":
        """Return it with arrays of its own: the caller may change theirs once the call has ended."""
        return replace(self, merged=tuple([item.copied() for item in self.merged]))

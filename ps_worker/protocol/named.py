"""A push, an assignment or a clearing under its name: checked and merged once, the same on every attempt (R2, R17)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ps_proto.requests import ColumnLayout, TableRows
from ps_proto.values import TableSpec
from ps_worker.protocol.merged import Merged
from ps_worker.rooms import Lend, Size, rooms
from ps_worker.router import Part, Wanted
from sharding.partition import gather_rows, gather_rows_to


@dataclass(frozen=True, slots=True)
class Named:
    """What is written under the name (rank, clock, seq). `clears`: the table that loses its rows; then there is nothing in `merged`."""

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

    @property
    def wanted(self) -> list[Wanted]:
        """The ids that it writes, by table."""
        return [item.wanted for item in self.merged]

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
            room = rooms([Size.of(part.ids.size, item.rows) for part, item in zip(parts, merged, strict=True)], lend)
        tables = []
        for place, (part, item) in enumerate(zip(parts, merged, strict=True)):
            if room is None:
                ids, rows = part.ids, item.rows if part.order is None else gather_rows(item.rows, part.order)
            else:
                ids, rows = room[place]
                ids[:] = part.ids
                if part.order is None:
                    rows[:] = item.rows
                else:
                    gather_rows_to(item.rows, part.order, rows)
            tables.append(TableRows(item.wanted.table, ids, rows))
        return tuple(tables)

    def copied(self) -> "Named":
        """Return it with arrays of its own: the caller may change theirs once the call has ended."""
        return replace(self, merged=tuple([item.copied() for item in self.merged]))

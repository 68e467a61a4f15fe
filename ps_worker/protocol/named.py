"""A push, an assignment or a clearing under its name: checked and merged once, the same on every attempt (R2, R17)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ps_proto.requests import ColumnLayout, TableRows
from ps_proto.values import TableSpec
from ps_worker.laying import Lend, rooms
from ps_worker.protocol.merged import Merged
from ps_worker.router import Part, Wanted
from sharding.partition import gather_rows, gather_rows_to
from sharding.wire_format import FLOAT32, format_of


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
        """Return what one server gets of it: gathered into memory that is lent, where there is some."""
        room = None
        if all([part.order is not None and format_of(self.merged[part.position].rows) is FLOAT32 for part in parts]):
            room = rooms([(part.ids.size, self.merged[part.position].rows.shape[1]) for part in parts], lend)
        tables = []
        for place, part in enumerate(parts):
            item, ids = self.merged[part.position], part.ids
            if part.order is None:
                rows = item.rows
            elif room is None:
                rows = gather_rows(item.rows, part.order)
            else:
                ids, rows = room[place]
                ids[:] = part.ids
                gather_rows_to(item.rows, part.order, rows)
            tables.append(TableRows(item.wanted.table, ids, rows))
        return tuple(tables)

    def copied(self) -> "Named":
        """Return it with arrays of its own: the caller may change theirs once the call has ended."""
        return replace(self, merged=tuple([item.copied() for item in self.merged]))

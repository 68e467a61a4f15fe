"""A push, an assignment or a clearing under its name: checked and merged once, the same on every attempt (R2, R17)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ps_proto.errors import InvalidRequest
from ps_proto.requests import ColumnLayout, Ids, Rows, TableRows
from ps_proto.values import TableSpec
from ps_worker.router import Part, Wanted
from sharding.finite import all_finite
from sharding.partition import gather_rows, sum_repeats
from sharding.wire_format import FLOAT32, WireRows, format_of
from sharding.wire_rows import encode_rows


@dataclass(frozen=True, slots=True)
class Merged:
    """The rows of one table, one for each of the ids that are written: float32[unique, width], or as they travel."""

    wanted: Wanted
    rows: WireRows

    @classmethod
    def of(cls, table: str, ids: Ids, given: Rows, repeats: bool, state_words: int = 0) -> "Merged":
        """Sum what ids uint64[n] are given in float32[n, width], in the caller's order, then check that all is finite (R17).

        The last `state_words` of a row are of state columns: they may count, and be any bits. `repeats` False: InvalidRequest where an id
        comes twice.
        """
        wanted = Wanted.to_write(table, ids)
        if wanted.inverse is not None and not repeats:
            got = f"{ids.size} with {ids.size - wanted.ids.size} repeats"
            raise InvalidRequest(f"ids of table {table!r}", got, "each given once to assign")
        rows = given if wanted.inverse is None else sum_repeats(given, wanted.inverse, wanted.ids.size)
        if not all_finite(np.ascontiguousarray(rows[:, : rows.shape[1] - state_words])):
            got = "not finite (inf or nan)" if wanted.inverse is None else "not finite (inf or nan) once repeats are summed"
            raise InvalidRequest(f"rows of table {table!r}", got, "finite everywhere")
        return cls(wanted, rows)

    def encoded(self, wire: str) -> "Merged":
        """Return it with the rows as they travel: once they are summed and checked, before they are split (R17)."""
        return replace(self, rows=encode_rows(self.rows, wire)) if format_of(self.rows) is FLOAT32 else self

    def copied(self) -> "Merged":
        return Merged(self.wanted._replace(ids=self.wanted.ids.copy()), self.rows.copy())


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

    def rows_of(self, parts: Sequence[Part]) -> tuple[TableRows, ...]:
        """Return what one server gets of it."""
        tables = []
        for part in parts:
            item = self.merged[part.position]
            rows = item.rows if part.order is None else gather_rows(item.rows, part.order)
            tables.append(TableRows(item.wanted.table, part.ids, rows))
        return tuple(tables)

    def copied(self) -> "Named":
        """Return it with arrays of its own: the caller may change theirs once the call has ended."""
        return replace(self, merged=tuple([item.copied() for item in self.merged]))

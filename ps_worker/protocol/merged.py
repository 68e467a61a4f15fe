"""The rows of one table that are written: one for each id, repeats summed; then checked, and laid where they are sent from (R17)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids, Rows
from ps_worker.protocol.key_lists import KeyList
from ps_worker.rooms import Lend, Size, rooms
from ps_worker.router import Wanted
from sharding.finite import all_finite, copy_finite
from sharding.partition import sum_repeats
from sharding.wire_format import FLOAT32, WireRows, format_of
from sharding.wire_rows import encode_rows


@dataclass(frozen=True, slots=True)
class Merged:
    """The ids that are written, each once, and their rows: float32[unique, width], or as they travel.

    `listed`: the list of a pull of these ids, which servers may know; then the ids are its own array.
    """

    wanted: Wanted
    rows: WireRows
    listed: KeyList | None = None

    @classmethod
    def of(cls, table: str, ids: Ids, given: Rows, repeats: bool) -> "Merged":
        """Sum what ids uint64[n] are given in float32[n, width], in the caller's order; InvalidRequest for repeats unless `repeats`.

        It is not checked yet: `checked` and `lay` do that.
        """
        wanted = Wanted.to_write(table, ids)
        if wanted.inverse is None:
            return cls(wanted, given)
        if not repeats:
            got = f"{ids.size} with {ids.size - wanted.ids.size} repeats"
            raise InvalidRequest(f"ids of table {table!r}", got, "each given once to assign")
        return cls(wanted, sum_repeats(given, wanted.inverse, wanted.ids.size))

    def checked(self, state_words: int = 0) -> "Merged":
        """Return it if all is finite, else raise InvalidRequest. The last `state_words` of a row are of state columns: any bits will do."""
        if not all_finite(np.ascontiguousarray(self.rows[:, : self.rows.shape[1] - state_words])):
            raise self._not_finite()
        return self

    def of_list(self, listed: KeyList | None) -> "Merged":
        """Return it as what is pushed to the ids of a list, where there is one."""
        return self if listed is None else Merged(self.wanted._replace(ids=listed.ids), self.rows, listed)

    @property
    def size(self) -> Size:
        """Return the room that it needs: the ids of a list need not travel."""
        return Size.of(self.wanted.ids.size, self.rows, has_ids=self.listed is None)

    def laid(self, ids: Ids, rows: Rows) -> "Merged":
        """Return a copy of it in these arrays, of its size, checked as it is copied: InvalidRequest as `checked`."""
        if not copy_finite(self.rows, rows):
            raise self._not_finite()
        if self.listed is not None:
            return replace(self, rows=rows)
        ids[:] = self.wanted.ids
        return Merged(self.wanted._replace(ids=ids), rows)

    def encoded(self, wire: str) -> "Merged":
        """Return it with the rows as they travel: once they are summed and checked, before they are split (R17)."""
        return replace(self, rows=encode_rows(self.rows, wire)) if format_of(self.rows) is FLOAT32 else self

    def copied(self) -> "Merged":
        return Merged(self.wanted._replace(ids=self.wanted.ids.copy()), self.rows.copy(), self.listed)

    def _not_finite(self) -> InvalidRequest:
        got = "not finite (inf or nan)" if self.wanted.inverse is None else "not finite (inf or nan) once repeats are summed"
        return InvalidRequest(f"rows of table {self.wanted.table!r}", got, "finite everywhere")


def lay(merged: Sequence[Merged], lend: Lend) -> tuple[Merged, ...]:
    """Return it in memory that is lent, where there is some, once all of it is finite; else InvalidRequest names the table."""
    room = rooms([item.size for item in merged], lend)
    if room is None:
        return tuple([item.checked() for item in merged])
    return tuple([item.laid(*its) for item, its in zip(merged, room, strict=True)])

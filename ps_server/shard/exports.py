"""Snapshots that readers hold open between two requests; an abandoned one is dropped after a while."""

from dataclasses import dataclass

from ps_proto.errors import InvalidRequest, Overloaded
from ps_proto.requests import ExportPart
from ps_server.shard.snapshot import Snapshot
from ps_server.shard.table import Table

READ_BYTES_MAX = 64 << 20  # of one part, however many rows are asked for
OPEN_MAX = 100  # each holds a copy of its table's ids
IDLE_S = 60.0  # a reader asks for its next part within milliseconds; a minute forgives a paused one


@dataclass
class _Export:
    snapshot: Snapshot
    with_state: bool
    rows_max: int  # in one part
    used_s: float


class Exports:
    """Open snapshots by number."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._open: dict[int, _Export] = {}
        self._next = 1

    def open(self, table: Table, now_s: float, with_state: bool = False) -> tuple[int, int]:
        """Take a snapshot; return its number and how many rows it has. `with_state`: it is read as whole records.

        Raises Overloaded where OPEN_MAX are open.
        """
        if len(self._open) >= OPEN_MAX:
            raise Overloaded(self._server, len(self._open), OPEN_MAX)
        number, self._next = self._next, self._next + 1
        snapshot = table.snapshot()
        columns = snapshot.width if with_state else table.spec.dim
        self._open[number] = _Export(snapshot, with_state, max(1, READ_BYTES_MAX // (8 + 4 * columns)), now_s)
        return number, len(snapshot)

    def read(self, number: int, rows_begin: int, rows_max: int, now_s: float) -> ExportPart:
        """Return rows rows_begin.. of a snapshot, at most `rows_max`, ascending by id."""
        if number not in self._open:
            raise InvalidRequest("export", f"{number}, which is not open", f"one opened here and read from within {IDLE_S:.0f} s")
        export = self._open[number]
        if not 0 <= rows_begin <= len(export.snapshot) or rows_max < 1:
            raise InvalidRequest("rows_begin, rows_max", f"{rows_begin}, {rows_max}", f"0 to {len(export.snapshot)}, at least 1")
        export.used_s = now_s
        read = export.snapshot.read_records if export.with_state else export.snapshot.read
        return ExportPart(*read(rows_begin, rows_begin + min(rows_max, export.rows_max)))

    def close(self, number: int) -> None:
        """Give a snapshot back; one that is gone is fine."""
        if number in self._open:
            self._open.pop(number).snapshot.close()

    def clear(self) -> None:
        """Close all; their numbers are not given again."""
        for number in list(self._open):
            self.close(number)

    def drop_idle(self, now_s: float) -> None:
        """Close what nobody has read from for IDLE_S."""
        for number in [number for number, export in self._open.items() if now_s >= export.used_s + IDLE_S]:
            self.close(number)

    def deadline_s(self) -> float | None:
        """Return when the next one falls idle."""
        return min((export.used_s + IDLE_S for export in self._open.values()), default=None)

    def __len__(self) -> int:
        return len(self._open)

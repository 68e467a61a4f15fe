"""A whole table, ascending by id, from the snapshots that its servers hold: a merge of sorted streams, part by part."""

from dataclasses import dataclass, field

import numpy as np

from ps_proto.requests import CloseExport, ColumnLayout, ExportPart, Fence, Ids, ReadExport, Rows
from ps_worker.asking import Operation
from ps_worker.protocol import Worker

PART_BYTES = 8 << 20  # of ids and rows asked of one server at a time


@dataclass
class _Stream:
    """One server's rows: what is read and not yet given out."""

    export: int
    rows_count: int
    rows_read: int
    ids: Ids
    rows: Rows

    @property
    def is_read(self) -> bool:
        return self.rows_read == self.rows_count


@dataclass
class TableExport:
    """Reads one table; made by `open_export`, and read until `next_part` returns None. `columns`: the state columns behind each row."""

    worker: Worker
    table: str
    columns: tuple[ColumnLayout, ...]
    rows_max: int
    fence: Fence
    streams: dict[str, _Stream] = field(default_factory=dict)

    def next_part(self) -> Operation[tuple[Ids, Rows] | None]:
        """Return the next ids uint64[n], ascending, and rows float32[n, dim], or records where they were asked for; None after the last."""
        empty = {server: stream for server, stream in self.streams.items() if not stream.ids.size and not stream.is_read}
        if empty:
            asked = {server: ReadExport(self.fence, stream.export, stream.rows_read, self.rows_max) for server, stream in empty.items()}
            parts = yield from self.worker.ask_servers(asked)
            for server, part in parts.items():
                self._take(self.streams[server], part)
        held = [stream for stream in self.streams.values() if stream.ids.size]
        if not held:
            return None
        # Of a stream that goes on, ids up to its last one are known; so all ids up to the least such are.
        limit = min([stream.ids[-1] for stream in held if not stream.is_read], default=max(stream.ids[-1] for stream in held))
        ids, rows = [], []
        for stream in held:
            count = int(np.searchsorted(stream.ids, limit, side="right"))
            ids.append(stream.ids[:count])
            rows.append(stream.rows[:count])
            stream.ids, stream.rows = stream.ids[count:], stream.rows[count:]
        if len(ids) == 1:
            return ids[0], rows[0]
        merged = np.concatenate(ids)
        order = np.argsort(merged)
        return merged[order], np.concatenate(rows)[order]

    @staticmethod
    def _take(stream: _Stream, part: ExportPart) -> None:
        stream.ids, stream.rows = part.ids, part.rows
        stream.rows_read += part.ids.size

    def close(self) -> Operation[None]:
        """Give the snapshots back."""
        yield from self.worker.ask_servers({server: CloseExport(self.fence, stream.export) for server, stream in self.streams.items()})
        self.streams.clear()


def open_export(worker: Worker, table: str, with_state: bool = False) -> Operation[TableExport]:
    """Open a snapshot of the table on every server; `with_state`: of whole records."""
    opened = yield from worker.open_exports(table, with_state)
    columns = next(iter(opened.values())).columns
    width = worker.tables[table].dim + sum([column.words for column in columns])
    export = TableExport(worker, table, columns, max(1, PART_BYTES // (8 + 4 * width)), worker.fence())
    for server, answer in opened.items():
        export.streams[server] = _Stream(answer.export, answer.rows_count, 0, np.empty(0, np.uint64), np.empty((0, width), np.float32))
    return export

"""Write one server's part of a checkpoint: the instant that it has taken, read out piece by piece while it goes on.

The core copies a piece at a time, so that none of its turns is long; hashing and writing are done aside, from where the pieces lie. While a
file is written, the next one is read out: two of them are the most that is in memory. part.json is the last file of the part.
"""

import numpy as np

from ps_proto.entries import ColumnEntry
from ps_proto.orders import PartWritten
from ps_proto.requests import Ids
from ps_server.storage.arrays_file import encode
from ps_server.storage.entries import FileEntry, RowsEntry
from ps_server.storage.layout import names_of, part_of, resume_of, rows_of
from ps_server.storage.part import Part, TablePart
from ps_server.storage.program import Ask, AskAll, Await, Begin, Program, Put
from ps_server.storage.store import Data
from ps_server.tasks import OpenPart, PartHead, Piece, ReadPiece, ReadStall, Records, SavePart, Stall, TableHead

FILE_BYTES = 64 << 20  # of a file with rows: few enough of them for a listing, and small enough to be held twice
PIECE_BYTES = 4 << 20  # of one answer of the core: about a millisecond of its loop

_ID_BYTES, _WORD_BYTES = 8, 4


def save_part(task: SavePart, file_bytes: int = FILE_BYTES, piece_bytes: int = PIECE_BYTES) -> Program[PartWritten]:
    """Write all files of the part. What the store or the core refuses ends it, and leaves files that no manifest names."""
    head: PartHead = yield Ask(OpenPart(task.number))
    writer = _Writer(task.root)
    names = yield from writer.put(
        names_of(task.number, task.shard),
        encode({"buckets": head.names.buckets, "ranks": np.array(head.names.ranks, np.int64), "names": head.names.names}),
    )
    states = {f"rank-{rank}": np.frombuffer(fact.resume, np.uint8) for rank, fact in head.facts.items()}
    resume = yield from writer.put(resume_of(task.number, task.shard), encode(states))
    tables = []
    for place, table in enumerate(head.tables):
        tables.append((yield from _save_table(task, writer, place, table, file_bytes, piece_bytes)))
    yield from writer.finish()
    stall: Stall = yield Ask(ReadStall(task.number))
    part = Part(
        number=task.number,
        server=task.server,
        server_incarnation=head.incarnation,
        timeline=head.timeline,
        map_version=head.map_version,
        step=head.step,
        job=head.job,
        clocks=head.clocks,
        since=head.since,
        facts={rank: fact.clock for rank, fact in head.facts.items()},
        left=head.left,
        names=names,
        resume=resume,
        tables=tuple(tables),
        counters=head.counters,
        stall_s=stall.longest_turn_s,
    )
    entry = yield from writer.put(part_of(task.number, task.shard), part.encode())
    yield from writer.finish()
    return PartWritten(
        server=part.server,
        file=entry.file,
        size_bytes=entry.size_bytes,
        checksum=entry.checksum,
        step=part.step,
        timeline=part.timeline,
        map_version=part.map_version,
        rows=part.rows,
        nbytes=sum([file.size_bytes for table in part.tables for file in table.parts]),
        stall_s=part.stall_s,
    )


class _Writer:
    """Puts files one after another, each while the program goes on."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._is_writing = False

    def put(self, path: str, data: Data) -> Program[FileEntry]:
        """Begin to write a file, once the one before it is written; return its entry."""
        entry = FileEntry.of(path, data)
        yield from self.finish()
        yield Begin(Put(self._root, path, data))
        self._is_writing = True
        return entry

    def finish(self) -> Program[None]:
        """Wait until all that was put is durable."""
        if self._is_writing:
            self._is_writing = False
            yield Await()


def _save_table(task: SavePart, writer: _Writer, place: int, table: TableHead, file_bytes: int, piece_bytes: int) -> Program[TablePart]:
    row_bytes = _ID_BYTES + _WORD_BYTES * table.row_words
    file_rows, piece_rows = max(1, file_bytes // row_bytes), max(1, piece_bytes // row_bytes)
    entries: list[RowsEntry] = []
    num_asked = 1  # at a time: more and more, so that a table of few rows is not asked often, nor is one of many in vain
    is_read = False
    while not is_read:
        ids: list[Ids] = []
        records: list[Records] = []
        room = file_rows
        while room > 0 and not is_read:
            sizes = [min(piece_rows, room - begin) for begin in range(0, room, piece_rows)][:num_asked]
            replies = yield AskAll([ReadPiece(task.number, place, row_bytes * size) for size in sizes])
            pieces = [reply for reply in replies if isinstance(reply, Piece)]
            ids += [piece.ids for piece in pieces]
            records += [piece.records for piece in pieces]
            is_read = len(pieces) < len(sizes)  # the other replies say that there are no more
            room -= sum(sizes)
            num_asked = max(num_asked, 2 * len(sizes))
        if ids:
            entry = yield from writer.put(rows_of(task.number, task.shard, place, len(entries)), encode({"ids": ids, "records": records}))
            entries.append(RowsEntry(**entry.model_dump(), rows=sum([part.size for part in ids])))
    columns = tuple([ColumnEntry.of(column) for column in table.columns])
    return TablePart(
        name=table.spec.name,
        is_full=table.is_full,
        record_words=table.row_words,
        columns=columns,
        rows=sum([entry.rows for entry in entries]),
        parts=tuple(entries),
    )

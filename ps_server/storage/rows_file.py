"""Files with rows of a table: read ahead of who makes use of them, and taken apart."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ps_proto.errors import CorruptFile
from ps_proto.requests import Ids
from ps_server.storage.arrays_file import decode
from ps_server.storage.entries import FileEntry, RowsEntry
from ps_server.storage.part import TablePart
from ps_server.storage.program import Await, Begin, Get, Program
from ps_server.storage.store import NotThere
from ps_server.tasks import Records


class FilesAhead:
    """Reads files in their order and compares their checksums, each while the program makes use of the one before it."""

    def __init__(self, root: str, entries: Sequence[FileEntry]) -> None:
        self._root = root
        self._entries = entries
        self._num_begun = 0

    def read(self) -> Program[memoryview]:
        """Return the bytes of the next file, as they were written: CorruptFile where they are not."""
        if self._num_begun == 0:
            yield from self._begin()
        entry = self._entries[self._num_begun - 1]
        try:
            data: memoryview = yield Await()
        except NotThere:
            raise CorruptFile(f"{self._root}/{entry.file}", "it is missing") from None
        yield from self._begin()
        return data

    def _begin(self) -> Program[None]:
        if self._num_begun < len(self._entries):
            entry = self._entries[self._num_begun]
            yield Begin(Get(self._root, entry.file, partial(entry.check, root=self._root)))
        self._num_begun += 1


def rows_of(data: memoryview, path: str, table: TablePart, entry: RowsEntry) -> tuple[Ids, Records]:
    """Return ids uint64[n] and records uint32[n, words] of a file, views of `data`, read-only; CorruptFile where it has others."""
    arrays = decode(data, path)
    ids, records = arrays.get("ids"), arrays.get("records")
    if ids is None or ids.dtype != np.uint64 or ids.shape != (entry.rows,):
        raise CorruptFile(path, f"it has no ids of {entry.rows} rows")
    if records is None or records.dtype != np.uint32 or records.shape != (entry.rows, table.record_words):
        raise CorruptFile(path, f"it has no records of {entry.rows} rows with {table.record_words} words each")
    return ids, records

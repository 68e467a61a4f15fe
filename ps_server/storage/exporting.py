"""Write the tables of a checkpoint as files that anybody reads, without a cluster.

    table-0-part-0.safetensors    ids U64[n], rows F32[n, dim], and with state F32 or U32[n, words] for each column, state.<column>
    table-0-part-0.parquet        the same as columns: id, row, state_<column>; the last two are lists of a fixed size
    export.json                   which table is which, and its files; with it the export is complete
    export.unfinished             there from before the first of these until after the last

An export that fails removes what it wrote; what one that was killed left behind, the next one does. Files of these names that lie there
without an export.unfinished are somebody's, and are left alone: nothing is written beside them.

Each row is there once, in no order. A row of dtype bfloat16 is written as float32, which holds it to the last bit.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ps_proto.entries import ColumnEntry, Entry, SpecEntry
from ps_proto.errors import InvalidRequest, ParameterServerError, StorageFailed
from ps_proto.requests import Ids
from ps_proto.values import TableSpec
from ps_server.shard.record_layout import Bfloat16Layout, Float32Layout, RecordLayout
from ps_server.storage.arrays_file import encode
from ps_server.storage.finding import find, no_checkpoint
from ps_server.storage.live_rows import LiveRows, Parts, read_parts
from ps_server.storage.manifest import Manifest
from ps_server.storage.parquet_file import encode_parquet
from ps_server.storage.program import Delete, List, Program, Put
from ps_server.storage.reading import read_manifest
from ps_server.storage.store import Data, buffers_of
from ps_server.tasks import FindCheckpoint, Records

FILE_BYTES = 64 << 20
INDEX = "export.json"
UNFINISHED = "export.unfinished"

_OURS = re.compile(r"export\.json|table-[0-9]+-part-[0-9]+\.(safetensors|parquet)")
_LEFTOVER = re.compile(rf"({_OURS.pattern}|export\.unfinished)(\.tmp-[0-9a-f]{{8}})?")

Rows = NDArray[np.float32]
State = Mapping[str, NDArray[Any]]  # float32 or uint32[n, words], by column
Encode = Callable[[Ids, Rows, State], Data]


@dataclass(frozen=True, slots=True)
class Export:
    """What to write, and where.

    root, number  the checkpoint; None: the newest.     out        a folder, or a URL; nothing of an export may be there.
    tables        by name; empty: all.                  file_type  a key of FILE_TYPES.        with_state  the state columns too.
    """

    root: str
    number: int | None
    out: str
    tables: tuple[str, ...] = ()
    file_type: str = "safetensors"
    with_state: bool = False


class ExportedFile(Entry):
    """A file with some rows of a table."""

    file: str
    rows: int
    size_bytes: int


class ExportedTable(SpecEntry):
    """A table: its spec, the state columns that were written, and its files."""

    columns: tuple[ColumnEntry, ...]
    rows: int
    files: tuple[ExportedFile, ...]


class ExportIndex(Entry):
    """export.json. `checkpoint`: its number; `step`: the step that comes next."""

    format: Literal["rowstead export"] = "rowstead export"
    version: Literal[1] = 1
    root: str
    checkpoint: int = Field(ge=0)
    step: int
    tables: tuple[ExportedTable, ...]

    def encode(self) -> bytes:
        """Return the file's bytes."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def export(wanted: Export, file_bytes: int = FILE_BYTES) -> Program[ExportIndex]:
    """Write the files; return what export.json says. One at a time writes to a folder.

    Raises NoCheckpoint, InvalidRequest where a table is not in it or `out` has an export already, CorruptFile or StorageFailed.
    """
    there: Mapping[str, int] = yield List(wanted.out, "")
    ours = sorted([path for path in there if _OURS.fullmatch(path)])
    if ours and (INDEX in ours or UNFINISHED not in there):
        raise InvalidRequest("out", f"{wanted.out}, where {ours[0]} of an export is already", "a folder without one")
    found = yield from find(FindCheckpoint((wanted.root,), wanted.number))
    if found.source is None:
        raise no_checkpoint(wanted.root, found)
    manifest = yield from read_manifest(wanted.root, found.source.number)
    parts = yield from read_parts(wanted.root, manifest)
    specs = _chosen(wanted, found.tables)
    try:
        yield Put(wanted.out, UNFINISHED, b"Files of an export that has not ended. The next export to this place replaces them.\n")
        yield from _remove(wanted.out, [path for path in there if path != UNFINISHED])
        index = yield from _write(wanted, manifest, parts, specs, file_bytes)
    except ParameterServerError:
        with suppress(StorageFailed):  # then the next export removes them
            left: Mapping[str, int] = yield List(wanted.out, "")
            yield from _remove(wanted.out, [path for path in left if path != UNFINISHED])
            yield Delete(wanted.out, (UNFINISHED,))
        raise
    with suppress(StorageFailed):  # it is complete all the same
        yield Delete(wanted.out, (UNFINISHED,))
    return index


def _write(wanted: Export, manifest: Manifest, parts: Parts, specs: Sequence[TableSpec], file_bytes: int) -> Program[ExportIndex]:
    tables = []
    for place, spec in enumerate(specs):
        table = yield from _export_table(wanted, manifest, parts, place, spec, file_bytes)
        tables.append(table)
    index = ExportIndex(root=wanted.root, checkpoint=manifest.number, step=manifest.step, tables=tuple(tables))
    yield Put(wanted.out, INDEX, index.encode())
    return index


def _remove(out: str, paths: Sequence[str]) -> Program[None]:
    """Remove those that are ours, whole or left behind by a put that did not end."""
    ours = tuple([path for path in paths if _LEFTOVER.fullmatch(path)])
    if ours:
        yield Delete(out, ours)


def _chosen(wanted: Export, there: Sequence[TableSpec]) -> list[TableSpec]:
    specs = {spec.name: spec for spec in there}
    for name in wanted.tables:
        if name not in specs:
            raise InvalidRequest("table", repr(name), f"one of the checkpoint's: {', '.join(specs) or 'it has none'}")
    return [specs[name] for name in dict.fromkeys(wanted.tables or specs)]


def _export_table(wanted: Export, manifest: Manifest, parts: Parts, place: int, spec: TableSpec, file_bytes: int) -> Program[ExportedTable]:
    held = [table for layer in parts for part in layer for table in part.tables if table.name == spec.name]
    columns = held[-1].columns if held else ()
    encode_rows, suffix = FILE_TYPES[wanted.file_type]
    files: list[ExportedFile] = []
    live = LiveRows(wanted.root, manifest, parts, spec.name)
    is_read = False
    while not is_read:
        pieces: list[tuple[Ids, Records]] = []
        room = file_bytes
        while room > 0 and not is_read:
            piece = yield from live.read()
            if piece is None:
                is_read = True
            elif piece[0].size:
                pieces.append(piece)
                room -= piece[0].nbytes + piece[1].nbytes
        if pieces:
            ids, records = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
            rows, state = _opened(spec, columns, records)
            data = encode_rows(ids, rows, state if wanted.with_state else {})
            path = f"table-{place}-part-{len(files)}.{suffix}"
            yield Put(wanted.out, path, data)
            files.append(ExportedFile(file=path, rows=ids.size, size_bytes=sum([len(buffer) for buffer in buffers_of(data)])))
    table = ExportedTable.of_spec(
        spec, columns=columns if wanted.with_state else (), rows=sum([file.rows for file in files]), files=tuple(files)
    )
    return table


def _opened(spec: TableSpec, columns: Sequence[ColumnEntry], records: Records) -> tuple[Rows, State]:
    """Return the rows and the state columns of records as they were saved."""
    state_words = sum([column.words for column in columns])
    layout: RecordLayout = (Bfloat16Layout if spec.dtype == "bfloat16" else Float32Layout)(spec.dim, state_words)
    opened = layout.opened(np.ascontiguousarray(records).view(np.float32))
    state: dict[str, NDArray[Any]] = {}
    begin = spec.dim
    for column in columns:
        state[column.name] = np.ascontiguousarray(opened[:, begin : begin + column.words]).view(column.dtype)
        begin += column.words
    return np.ascontiguousarray(opened[:, : spec.dim]), state


def _encode_safetensors(ids: Ids, rows: Rows, state: State) -> Data:
    return encode({"ids": ids, "rows": rows, **{f"state.{name}": column for name, column in state.items()}})


FILE_TYPES: dict[str, tuple[Encode, str]] = {
    "safetensors": (_encode_safetensors, "safetensors"),
    "parquet": (encode_parquet, "parquet"),
}

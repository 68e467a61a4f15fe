"""index.json of a saved model, as values. What does not parse raises CorruptFile with the field's name."""

from typing import Literal, Self

from pydantic import Field

from ps_proto import entries
from ps_proto.entries import ColumnEntry, Entry, SpecEntry
from ps_proto.errors import InvalidRequest
from ps_proto.requests import ColumnLayout
from ps_proto.values import TableSpec

VERSION = 1


class FileEntry(Entry):
    """One file of the folder, by its path in there."""

    file: str = Field(pattern=r"^data-[0-9a-f]+/[a-z0-9.-]+$")
    size_bytes: int
    sha256: str


class PartEntry(FileEntry):
    """A file with some rows of a table: ids ascending, also from one part to the next."""

    rows: int


class TableEntry(SpecEntry):
    """A table: its spec, what lies beside its rows, and the files that hold them. `holds`: whose rows they are in the model."""

    max_norm: float | None = None  # models that were saved before there was one lack it, and `wire`
    wire: str = "float32"
    holds: Literal["embeddings", "dense parameters"]
    state: tuple[ColumnEntry, ...]
    rows: int
    parts: tuple[PartEntry, ...]

    @classmethod
    def of(
        cls,
        spec: TableSpec,
        holds: Literal["embeddings", "dense parameters"],
        columns: tuple[ColumnLayout, ...],
        parts: tuple[PartEntry, ...],
    ) -> Self:
        state = tuple([ColumnEntry.of(column) for column in columns])
        return cls.of_spec(spec, holds=holds, state=state, rows=sum([part.rows for part in parts]), parts=parts)


class Index(Entry):
    """The whole of it. `clock`: of rank 0 when it saved. `model`: the file with the module's parameters and buffers."""

    format: Literal["rowstead model"] = "rowstead model"
    version: int = VERSION
    clock: int
    model: FileEntry
    tables: tuple[TableEntry, ...]

    def files(self) -> list[FileEntry]:
        """Return every file of the model."""
        return [self.model, *[part for table in self.tables for part in table.parts]]

    def holding(self, what: str) -> dict[str, TableEntry]:
        """Return the tables that hold this, by name."""
        return {table.name: table for table in self.tables if table.holds == what}


def parse(data: bytes, path: str) -> Index:
    """Return what an index.json says; `path` is where it lies, for errors. A newer format's raises InvalidRequest."""
    index = entries.parse(Index, data, path, VERSION)
    if index.version != VERSION:
        raise InvalidRequest(f"version of {path}", str(index.version), f"{VERSION}, as this Rowstead reads")
    return index

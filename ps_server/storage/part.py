"""part.json: what one server wrote into a checkpoint, all of one instant."""

from typing import Literal, Self

from pydantic import Field, model_validator

from ps_proto.entries import ColumnEntry, Entry, parse
from ps_server.storage.entries import VERSION, FileEntry, RowsEntry, check_distinct
from ps_server.storage.layout import number_of


class TablePart(Entry):
    """A server's rows of a table, or, as an increment, those that changed since the checkpoint that it stands on.

    `is_full`: what older layers hold of this table is void, in the buckets that the server owned. `record_words`: the 32-bit numbers of
    a stored record, which are the row's and then those of its state `columns`.
    """

    name: str
    is_full: bool
    record_words: int = Field(ge=1)
    columns: tuple[ColumnEntry, ...]
    rows: int = Field(ge=0)
    parts: tuple[RowsEntry, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rows != sum([part.rows for part in self.parts]):
            raise ValueError(f"table {self.name!r} has {self.rows} rows, but its parts have others")
        return self


class Part(Entry):
    """All of it.

    By rank: `clocks`, the last step that it finished here, -1 for none; `since`, the step with which it began, where it was admitted to a
    running job; `facts`, the step whose resume state lies in `resume`, where there is one; `left`, the step after which it left, where it
    did. `job`: the job's number, 0 before the first. `step`: the step at work, all before which are in the rows. `counters`: by table, for
    people. `stall_s`: the longest turn meanwhile.
    """

    format: Literal["rowstead part"] = "rowstead part"
    version: Literal[1] = VERSION
    number: int = Field(ge=0)
    server: str
    server_incarnation: int
    timeline: int = Field(ge=0)
    map_version: int = Field(ge=1)
    step: int
    job: int
    clocks: dict[int, int]
    since: dict[int, int]
    facts: dict[int, int]
    left: dict[int, int]
    names: FileEntry
    resume: FileEntry
    tables: tuple[TablePart, ...]
    counters: dict[str, dict[str, float]] = Field(default_factory=dict)
    stall_s: float = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_distinct("table", [table.name for table in self.tables])
        check_distinct("file", [entry.file for entry in self.files()])
        foreign = [entry.file for entry in self.files() if number_of(entry.file) != self.number]
        if foreign:
            raise ValueError(f"{foreign[0]} is no file of checkpoint {self.number}")
        return self

    @property
    def is_full(self) -> bool:
        """Whether it needs no older layer."""
        return all([table.is_full for table in self.tables])

    @property
    def rows(self) -> int:
        """How many rows it has, of all tables."""
        return sum([table.rows for table in self.tables])

    def files(self) -> list[FileEntry]:
        """Return every file of the part but part.json."""
        return [self.names, self.resume, *[part for table in self.tables for part in table.parts]]

    def encode(self) -> bytes:
        """Return the file's bytes."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def parse_part(data: bytes, path: str) -> Part:
    """Return what a part.json says; CorruptFile or InvalidRequest where it is none that this version reads."""
    return parse(Part, data, path, VERSION)

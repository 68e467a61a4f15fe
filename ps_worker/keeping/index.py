"""index.json of a saved model, as values. What does not parse raises CorruptFile with the field's name."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ps_proto.errors import CorruptFile, InvalidRequest
from ps_proto.requests import ColumnLayout
from ps_proto.values import Setting, TableSpec, initializer_from_wire, mode_from_wire, optimizer_from_wire

VERSION = 1


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(_Entry):
    """One file of the folder, by its path in there."""

    file: str = Field(pattern=r"^data-[0-9a-f]+/[a-z0-9.-]+$")
    size_bytes: int
    sha256: str


class PartEntry(FileEntry):
    """A file with some rows of a table: ids ascending, also from one part to the next."""

    rows: int


class ColumnEntry(_Entry):
    """A state column, in the record's order."""

    name: str
    words: int
    dtype: Literal["float32", "uint32"]


class SettingEntry(_Entry):
    """An optimizer, an initializer or a mode."""

    kind: str
    parameters: dict[str, float]

    @classmethod
    def of(cls, setting: Setting) -> Self:
        return cls(kind=setting.label, parameters=setting.parameters())


class TableEntry(_Entry):
    """A table: its spec, what lies beside its rows, and the files that hold them. `holds`: whose rows they are in the model."""

    name: str
    holds: Literal["embeddings", "dense parameters"]
    dim: int
    dtype: str
    max_norm: float | None = None
    wire: str = "float32"
    seed: int
    initializer: SettingEntry
    optimizer: SettingEntry
    mode: SettingEntry | None
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
        return cls(
            name=spec.name,
            holds=holds,
            dim=spec.dim,
            dtype=spec.dtype,
            max_norm=spec.max_norm,
            wire=spec.wire,
            seed=spec.seed,
            initializer=SettingEntry.of(spec.initializer),
            optimizer=SettingEntry.of(spec.optimizer),
            mode=None if spec.mode is None else SettingEntry.of(spec.mode),
            state=tuple([ColumnEntry(name=column.name, words=column.words, dtype=_dtype(column)) for column in columns]),
            rows=sum([part.rows for part in parts]),
            parts=parts,
        )

    def spec(self) -> TableSpec:
        """Return the table's spec; a setting that this version does not know raises InvalidRequest."""
        return TableSpec(
            self.name,
            self.dim,
            optimizer=optimizer_from_wire(self.optimizer.kind, self.optimizer.parameters),
            initializer=initializer_from_wire(self.initializer.kind, self.initializer.parameters),
            seed=self.seed,
            mode=None if self.mode is None else mode_from_wire(self.mode.kind, self.mode.parameters),
            dtype=self.dtype,
            max_norm=self.max_norm,
            wire=self.wire,
        )


class Index(_Entry):
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
    try:
        index = Index.model_validate_json(data)
    except ValidationError as error:
        version = _version(data)
        if version is not None and version > VERSION:
            raise InvalidRequest(f"version of {path}", str(version), f"at most {VERSION}: a newer Rowstead wrote it") from None
        first = error.errors()[0]
        where = ".".join([str(step) for step in first["loc"]]) or "it"
        raise CorruptFile(path, f"{where}: {first['msg']}") from None
    if index.version != VERSION:
        raise InvalidRequest(f"version of {path}", str(index.version), f"{VERSION}, as this Rowstead reads")
    return index


def _dtype(column: ColumnLayout) -> Any:
    return column.dtype


class _Version(BaseModel):
    version: int


def _version(data: bytes) -> int | None:
    try:
        return _Version.model_validate_json(data).version
    except ValidationError:
        return None

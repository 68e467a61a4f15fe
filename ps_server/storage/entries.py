"""What the JSON files of a checkpoint are made of. What does not parse raises CorruptFile with the field's name."""

from collections.abc import Iterable
from typing import Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ps_proto.errors import CorruptFile, InvalidRequest
from ps_proto.requests import ColumnLayout
from ps_proto.values import Setting, TableSpec, initializer_from_wire, mode_from_wire, optimizer_from_wire
from ps_server.storage.arrays_file import checksum
from ps_server.storage.layout import PART_FILE
from ps_server.storage.store import Data, buffers_of

VERSION: Final = 1  # of the format, of parts and manifests alike

EntryType = TypeVar("EntryType", bound="Entry")


class Entry(BaseModel):
    """Fields as they are named, of the types that they have, and no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(Entry):
    """A file of a part: its path from the root, and what it must be."""

    file: str = Field(pattern=PART_FILE)
    size_bytes: int = Field(ge=0)
    checksum: str = Field(pattern=r"^[0-9a-f]{32}$")

    @classmethod
    def of(cls, file: str, data: Data) -> "FileEntry":
        """Return the entry of a file with these bytes."""
        return FileEntry(file=file, size_bytes=sum([len(buffer) for buffer in buffers_of(data)]), checksum=checksum(data))

    def check_size(self, size_bytes: int | None, root: str) -> None:
        """Raise CorruptFile unless the file has the bytes that it must; None: it is not there."""
        if size_bytes is None:
            raise CorruptFile(f"{root}/{self.file}", "it is missing")
        if size_bytes != self.size_bytes:
            raise CorruptFile(f"{root}/{self.file}", f"it has {size_bytes:,} bytes, not {self.size_bytes:,}")

    def check(self, data: memoryview, root: str) -> None:
        """Raise CorruptFile unless these are the file's bytes."""
        self.check_size(len(data), root)
        if checksum(data) != self.checksum:
            raise CorruptFile(f"{root}/{self.file}", "its checksum differs")


class RowsEntry(FileEntry):
    """A file with some rows of a table."""

    rows: int = Field(ge=0)


class ColumnEntry(Entry):
    """A state column, in the record's order: `words` 32-bit numbers."""

    name: str
    words: int = Field(ge=0)
    dtype: Literal["float32", "uint32"]

    def layout(self) -> ColumnLayout:
        return ColumnLayout(self.name, self.words, self.dtype)


class SettingEntry(Entry):
    """An optimizer, an initializer or a mode."""

    kind: str
    parameters: dict[str, float]

    @classmethod
    def of(cls, setting: Setting) -> Self:
        return cls(kind=setting.label, parameters=setting.parameters())


class TableEntry(Entry):
    """A table's spec."""

    name: str
    dim: int
    dtype: str
    max_norm: float | None
    wire: str
    seed: int
    initializer: SettingEntry
    optimizer: SettingEntry
    mode: SettingEntry | None

    @classmethod
    def of(cls, spec: TableSpec) -> Self:
        return cls(
            name=spec.name,
            dim=spec.dim,
            dtype=spec.dtype,
            max_norm=spec.max_norm,
            wire=spec.wire,
            seed=spec.seed,
            initializer=SettingEntry.of(spec.initializer),
            optimizer=SettingEntry.of(spec.optimizer),
            mode=None if spec.mode is None else SettingEntry.of(spec.mode),
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


def check_distinct(what: str, values: Iterable[object]) -> None:
    """Raise ValueError where two of the values are one."""
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value!r} is there twice")
        seen.add(value)


def parse(model: type[EntryType], data: bytes, path: str) -> EntryType:
    """Return what a file says; `path` is where it lies, for errors. One that a newer version wrote raises InvalidRequest."""
    check_version(data, path)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([str(step) for step in first["loc"]]) or "it"
        raise CorruptFile(path, f"{where}: {first['msg']}") from None


class _Version(BaseModel):
    version: int


def check_version(data: bytes, path: str) -> None:
    """Raise InvalidRequest where a JSON file names a version of the format that this Rowstead cannot know."""
    try:
        version = _Version.model_validate_json(data).version
    except ValidationError:
        return
    if version > VERSION:
        raise InvalidRequest(f"version of {path}", str(version), f"at most {VERSION}: a newer Rowstead wrote it")

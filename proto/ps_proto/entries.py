"""What our JSON files say of tables, on disk or in an object store: specs, settings, state columns; and how such a file is parsed.

A saved model (ps_worker/keeping/index.py) and a checkpoint (ps_server/storage/) are both made of these.
"""

from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ps_proto.errors import CorruptFile, InvalidRequest
from ps_proto.requests import ColumnLayout
from ps_proto.values import Setting, TableSpec, initializer_from_wire, mode_from_wire, optimizer_from_wire

EntryType = TypeVar("EntryType", bound="Entry")


class Entry(BaseModel):
    """Fields as they are named, of the types that they have, and no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ColumnEntry(Entry):
    """A state column, in the record's order: `words` 32-bit numbers."""

    name: str
    words: int = Field(ge=0)
    dtype: Literal["float32", "uint32"]

    @classmethod
    def of(cls, column: ColumnLayout) -> Self:
        return cls.model_validate({"name": column.name, "words": column.words, "dtype": column.dtype})

    def layout(self) -> ColumnLayout:
        return ColumnLayout(self.name, self.words, self.dtype)


class SettingEntry(Entry):
    """An optimizer, an initializer or a mode."""

    kind: str
    parameters: dict[str, float]

    @classmethod
    def of(cls, setting: Setting) -> Self:
        return cls(kind=setting.label, parameters=setting.parameters())


class SpecEntry(Entry):
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
    def of_spec(cls, spec: TableSpec, **beside: Any) -> Self:
        """Return the entry of a spec; `beside`: the other fields of a class that has more."""
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
            **beside,
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


def parse(model: type[EntryType], data: bytes, path: str, newest: int) -> EntryType:
    """Return what a file says; `path` is where it lies, for errors; `newest`: the last version of its format that this Rowstead knows.

    What does not parse raises CorruptFile with the field's name, and what a newer version wrote InvalidRequest.
    """
    check_version(data, path, newest)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([str(step) for step in first["loc"]]) or "it"
        raise CorruptFile(path, f"{where}: {first['msg']}") from None


class _Version(BaseModel):
    version: int


def check_version(data: bytes, path: str, newest: int) -> None:
    """Raise InvalidRequest where a JSON file names a version of its format beyond the `newest` that this Rowstead knows."""
    try:
        version = _Version.model_validate_json(data).version
    except ValidationError:
        return
    if version > newest:
        raise InvalidRequest(f"version of {path}", str(version), f"at most {newest}: a newer Rowstead wrote it")

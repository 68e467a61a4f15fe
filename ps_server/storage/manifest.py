"""manifest.json: what a checkpoint is. It is written last, ends with a checksum of itself, and makes the checkpoint complete."""

import base64
import binascii
import json
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ps_proto.entries import Entry, SettingEntry, SpecEntry, check_version, parse
from ps_proto.errors import CorruptFile
from ps_server.storage.arrays_file import checksum
from ps_server.storage.entries import VERSION, FileEntry, check_distinct
from sharding.hashing import NUM_BUCKETS

_OWNER = np.dtype("<u2")
_CHECKSUM = "checksum"


class ServerEntry(Entry):
    """A server of the shard map, as it was then."""

    name: str
    incarnation: int
    weight: float


class JobEntry(Entry):
    """The job that was running."""

    number: int
    world_size: int = Field(ge=1)
    mode: SettingEntry
    first_clock: int = Field(ge=0)


class RankEntry(Entry):
    """A rank of the job: it goes on after step `clock`, -1 for none, with the resume state of that step in the part of server `shard`.

    `clock` is the least over the parts. `since`: the first step of a rank that was admitted to the job while it ran.
    `was_removed`: it has left, and not by its own word. `shard`: an index into `servers`, null where no part has the state of exactly that
    step.
    """

    rank: int = Field(ge=0)
    clock: int = Field(ge=-1)
    has_left: bool
    shard: int | None = Field(ge=0)
    since: int | None = None
    was_removed: bool = False


class BarrierEntry(Entry):
    """Barriers of the job in a row that were passed when the parts were taken: see tasks.BarrierRun."""

    generation: int = Field(ge=0)
    minimum: int
    count: int = Field(ge=1)
    turns: tuple[int, ...]


class PartEntry(FileEntry):
    """A server's part.json."""

    server: str


class Layer(Entry):
    """The parts of one checkpoint, in the order of its map's servers; a later layer's rows replace an older one's.

    `owners`: which of the parts had which bucket, null where that is as in the next layer, and for the last as in the manifest.
    """

    number: int = Field(ge=0)
    map_version: int = Field(ge=1)
    owners: str | None
    parts: tuple[PartEntry, ...] = Field(min_length=1)


class Manifest(Entry):
    """All of it. `layers`: oldest first, the last one is this checkpoint's own; `base` is the one before it, null for a full checkpoint.

    `cluster`: who wrote it, 16 hex digits. `owners`: base64 of uint16[16384] little-endian, an index into `servers` for each bucket.
    `step`: of every part where there are synchronous tables (`is_synchronous`), else the least. `rows`, `size_bytes`: of its own layer.
    """

    format: Literal["rowstead checkpoint"] = "rowstead checkpoint"
    version: Literal[1] = VERSION
    cluster: str = Field(pattern="^[0-9a-f]{16}$")
    number: int = Field(ge=0)
    base: int | None
    timeline: int = Field(ge=0)
    map_version: int = Field(ge=1)
    servers: tuple[ServerEntry, ...] = Field(min_length=1)
    owners: str
    step: int
    is_synchronous: bool
    job: JobEntry | None
    ranks: tuple[RankEntry, ...]
    barriers: tuple[BarrierEntry, ...]
    tables: tuple[SpecEntry, ...]
    layers: tuple[Layer, ...] = Field(min_length=1)
    rows: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    stall_s: float

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_distinct("server", [server.name for server in self.servers])
        check_distinct("rank", [rank.rank for rank in self.ranks])
        check_distinct("table", [table.name for table in self.tables])
        own = self.layers[-1]
        if (own.number, own.map_version, own.owners) != (self.number, self.map_version, None):
            raise ValueError("the last layer is not this checkpoint's")
        if [part.server for part in own.parts] != [server.name for server in self.servers]:
            raise ValueError("the last layer's parts are not those of the servers")
        numbers = [layer.number for layer in self.layers]
        if numbers != sorted(set(numbers)) or self.base != (numbers[-2] if len(numbers) > 1 else None):
            raise ValueError(f"the layers {numbers} do not stand on one another, or not on {self.base}")
        for rank in self.ranks:
            if rank.shard is not None and rank.shard >= len(self.servers):
                raise ValueError(f"rank {rank.rank} names server {rank.shard}")
        for layer, owners in zip(self.layers, self.layer_owners(), strict=True):
            if owners.max() >= len(layer.parts):
                raise ValueError(f"the owners of layer {layer.number} name part {owners.max()}")
        return self

    def layer_owners(self) -> list[npt.NDArray[np.int32]]:
        """Return, for each layer, which of its parts had which bucket, int32[16384]."""
        owners = [unpack_owners(self.owners)]
        for layer in self.layers[-2::-1]:
            owners.append(owners[-1] if layer.owners is None else unpack_owners(layer.owners))
        return owners[::-1]

    def layer_numbers(self) -> frozenset[int]:
        """Return the checkpoints whose files it needs, its own too."""
        return frozenset([layer.number for layer in self.layers])

    def encode(self) -> bytes:
        """Return the file's bytes."""
        fields = self.model_dump(mode="json")
        return json.dumps({**fields, _CHECKSUM: _checksum_of(fields)}, indent=1).encode() + b"\n"


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Return what a manifest says; CorruptFile or InvalidRequest where it is none that this version reads."""
    check_version(data, path, VERSION)  # first: how another version makes its checksum is its own business
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(path, f"it is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise CorruptFile(path, "it is no JSON object")
    if fields.pop(_CHECKSUM, None) != _checksum_of(fields):
        raise CorruptFile(path, "its checksum differs")
    return parse(Manifest, json.dumps(fields).encode(), path, VERSION)


def _checksum_of(fields: dict[str, Any]) -> str:
    return checksum(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def pack_owners(owners: npt.NDArray[np.int32]) -> str:
    """Return the owners of the buckets, int32[16384], as a manifest has them."""
    return base64.b64encode(owners.astype(_OWNER).tobytes()).decode()


def unpack_owners(text: str) -> npt.NDArray[np.int32]:
    """Return what `pack_owners` was given; ValueError for another string."""
    try:
        owners = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except binascii.Error as error:
        raise ValueError(f"the owners are no base64: {error}") from None
    if owners.nbytes != NUM_BUCKETS * _OWNER.itemsize:
        raise ValueError(f"the owners have {owners.nbytes} bytes")
    return owners.view(_OWNER).astype(np.int32)

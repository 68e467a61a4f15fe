"""Cut requests and replies that carry rows into parts, and put parts together again.

    value --cut--> part, part, part --assembler.take--> value

A part is a protobuf message with a header (the first one) and slices; PullPart and its like in parameter_server.proto say what they hold.
An array's dtype says how its rows travel (sharding/wire_format.py); rows of any other dtype become float32.
An assembler makes room once, from the row counts that the header announces, and copies each slice to its place. It trusts nothing that a
peer sent: a request over the limit is RequestTooLarge before any room is made, whatever else does not fit is InvalidRequest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from ps_proto import parameter_server_pb2 as pb
from ps_proto.codec import ID, build, check_limits, decode, encode
from ps_proto.errors import InvalidRequest, RequestTooLarge
from ps_proto.requests import (
    Assign,
    ColumnLayout,
    ExportPart,
    Fence,
    Finished,
    Hyperparameters,
    Ids,
    Pull,
    Pulled,
    Push,
    TableIds,
    TableRows,
)
from ps_proto.values import MAX_DIM, MAX_WIDTH
from sharding.arrays import empty_aligned
from sharding.wire_format import FLOAT32, FORMATS, WireFormat, WireRows, format_of

PART_SIZE_BYTES = 1 << 20
PART_SIZE_BYTES_MAX = 32 << 20  # the contract allows 64 MiB a message; a header may be large too
REQUEST_BYTES_MAX = 8 << 30
PULL_MAX = 2**63 - 1
COMPRESSED = frozenset(FORMATS) - {FLOAT32.name}

Streamed = Pull | Pulled | Push | Assign | ExportPart
STREAMED = (Pull, Pulled, Push, Assign, ExportPart)
AnyStreamed = TypeVar("AnyStreamed", Pull, Pulled, Push, Assign, ExportPart)
MakeArray = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]

_NO_IDS: Ids = np.empty(0, ID)
_NO_ROWS: WireRows = np.empty((0, 0), FLOAT32.dtype)


# --- cutting --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Block:
    """What travels of one table: ids, rows, or both."""

    table: str
    ids: Ids | None
    rows: WireRows | None
    pull: int = 0

    def __post_init__(self) -> None:
        if self.ids is not None and self.rows is not None and len(self.ids) != len(self.rows):
            raise InvalidRequest(f"rows of table {self.table!r}", f"{len(self.rows)} rows", f"{len(self.ids)} rows, one for each id")

    @property
    def shape(self) -> pb.TableShape:
        wire: dict[str, Any] = {"table": self.table, "rows": self.count, "pull": self.pull}
        if self.rows is not None:
            form = format_of(self.rows)
            wire |= {"dim": form.dim(self.rows), "wire": "" if form is FLOAT32 else form.name}
        return build(pb.TableShape, "TableShape", wire)

    @property
    def count(self) -> int:
        for array in (self.ids, self.rows):
            if array is not None:
                return len(array)
        return 0

    @property
    def row_size_bytes(self) -> int:
        ids_bytes = 0 if self.ids is None else ID.itemsize
        return ids_bytes + (0 if self.rows is None else format_of(self.rows).dtype.itemsize * self.rows.shape[1])

    def slice(self, table: int, begin: int, end: int) -> pb.Slice:
        ids = b"" if self.ids is None else self.ids[begin:end].astype(ID, copy=False).tobytes()
        rows = b"" if self.rows is None else self.rows[begin:end].astype(format_of(self.rows).dtype, copy=False).tobytes()
        return pb.Slice(table=table, ids=ids, rows=rows)


def cut(value: Streamed, part_size_bytes: int = PART_SIZE_BYTES) -> Iterator[Message]:
    """Yield the parts of a value, each with at most `part_size_bytes` of array bytes, but at least one row.

    The arrays are read as the parts are taken. InvalidRequest where a field fits no message; it comes before the first part.
    """
    if not 1 <= part_size_bytes <= PART_SIZE_BYTES_MAX:
        raise InvalidRequest("part_size_bytes", str(part_size_bytes), f"a whole number from 1 to {PART_SIZE_BYTES_MAX}")
    part, header, wire, blocks = _take_apart(value)
    wire["tables"] = [block.shape for block in blocks]
    first: dict[str, Any] = {"header": build(header, type(value).__name__, wire)}
    for slices in _cut_blocks(blocks, part_size_bytes):
        yield part(slices=slices, **first)
        first = {}


def _take_apart(value: Streamed) -> tuple[type[Message], type[Message], dict[str, Any], list[_Block]]:
    """Return the part's class, the header's class and fields, and the blocks."""
    match value:
        case Pull():
            wire = {"fence": _encode_fence(value.fence), "wait_s": value.wait_s, "at_step": value.at_step}
            if value.finished is not None:
                wire["finished"] = encode(value.finished)
            return pb.PullPart, pb.PullHeader, wire, [_Block(table.table, table.ids, None, table.pull) for table in value.tables]
        case Pulled():
            return pb.PulledPart, pb.PulledHeader, {"step": value.step}, [_Block("", None, rows) for rows in value.rows]
        case Push():
            wire = {
                "fence": _encode_fence(value.fence),
                "seq": value.seq,
                "hyperparameters": [encode(item) for item in value.hyperparameters],
            }
            blocks = [_Block(table.table, None if table.pull else table.ids, table.rows, table.pull) for table in value.tables]
            return pb.PushPart, pb.PushHeader, wire, blocks
        case Assign():
            wire = {"fence": _encode_fence(value.fence), "seq": value.seq, "only_absent": value.only_absent}
            wire["columns"] = [encode(column) for column in value.columns]
            return pb.AssignPart, pb.AssignHeader, wire, [_Block(table.table, table.ids, table.rows) for table in value.tables]
        case ExportPart():
            return pb.ExportedPart, pb.ExportedHeader, {}, [_Block("", value.ids, value.rows)]


def headed(value: Streamed) -> tuple[Message, list[NDArray[Any]]]:
    """Return the header of a value's parts, and its whole arrays, as they lie on the wire: of each table the ids, then the rows."""
    _, header, wire, blocks = _take_apart(value)
    wire["tables"] = [block.shape for block in blocks]
    arrays: list[NDArray[Any]] = []
    for block in blocks:
        if block.ids is not None:
            arrays.append(np.ascontiguousarray(block.ids, ID))
        if block.rows is not None:
            arrays.append(np.ascontiguousarray(block.rows, format_of(block.rows).dtype))
    return build(header, type(value).__name__, wire), arrays


@lru_cache(maxsize=256)
def _encode_fence(fence: Fence) -> Message:
    """Return the message of a fence, which a worker sends many times over in a step; nobody writes to it."""
    return encode(fence)


def _cut_blocks(blocks: list[_Block], part_size_bytes: int) -> Iterator[list[pb.Slice]]:
    """Yield the slices of each part; one part without slices where there are no rows at all."""
    slices: list[pb.Slice] = []
    room = part_size_bytes
    for table, block in enumerate(blocks):
        begin = 0
        while begin < block.count:
            fitting = room // block.row_size_bytes
            if fitting < 1 and slices:
                yield slices
                slices, room = [], part_size_bytes
                continue
            end = min(block.count, begin + max(1, fitting))
            slices.append(block.slice(table, begin, end))
            room -= (end - begin) * block.row_size_bytes
            begin = end
    yield slices


# --- assembling -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Table:
    """The room for what the slices of one table bring; the first `filled` rows are there. `brings_ids`: whether they bring ids too."""

    table: str
    count: int
    pull: int
    brings_ids: bool
    ids: Ids
    rows: WireRows
    filled: int = 0

    @property
    def what(self) -> str:
        return f"slices of table {self.table!r}"


@dataclass(frozen=True, slots=True)
class Announced:
    """What a header says of the value that it begins.

    shapes  (name, rows, dim, format, pull) of each table.     nbytes  of all arrays.     about  the value's fields in the header, by name.
    """

    shapes: tuple[tuple[str, int, int, WireFormat, int], ...]
    nbytes: int
    about: dict[str, Any]


class Assembler(Generic[AnyStreamed]):
    """Puts the parts of one call together, given in order. `peer` takes at most `bytes_max` array bytes in one."""

    part: ClassVar[type[Any]]
    header: ClassVar[type[Any]]
    brings_ids: ClassVar[bool] = True
    brings_rows: ClassVar[bool] = True
    pulls_max: ClassVar[int] = 0  # the greatest number of a pull that a table may have here
    columns_max: ClassVar[int] = MAX_DIM
    wires: ClassVar[frozenset[str]] = frozenset()  # how its rows may travel beside float32

    def __init__(self, peer: str, bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self._peer = peer
        self._bytes_max = bytes_max
        self._about: dict[str, Any] | None = None  # None until the header is in
        self._tables: list[_Table] = []

    def take(self, part: Any) -> None:
        """Take the next part."""
        if part.HasField("header"):
            self.take_header(part.header)
        for piece in part.slices:
            self.take_slice(piece.table, piece.ids, piece.rows)

    def take_header(self, header: Any) -> None:
        """Check what the header announces and make room for it."""
        if self._about is not None:
            raise InvalidRequest("header", "repeated", "in the first part only")
        self.make_room(self.announced(header))

    @classmethod
    def announced(cls, header: Any) -> Announced:
        """Return what a header announces; InvalidRequest where no value of this class could follow it."""
        nbytes = sum([cls._check_shape(shape) for shape in header.tables])
        names = {shape.table for shape in header.tables}
        if any(names) and len(names) < len(header.tables):
            raise InvalidRequest("header.tables", f"{len(header.tables)} tables of {len(names)} names", "each table once")
        shapes = tuple([(shape.table, shape.rows, shape.dim, FORMATS[shape.wire or FLOAT32.name], shape.pull) for shape in header.tables])
        return Announced(shapes, nbytes, cls._decode_header(header))

    def make_room(self, announced: Announced, make: MakeArray = empty_aligned) -> None:
        """Let `make` make room for what is announced: of each table the ids, then the rows. RequestTooLarge comes before any."""
        if announced.nbytes > self._bytes_max:
            raise RequestTooLarge(self._peer, announced.nbytes, self._bytes_max)
        self._about = announced.about
        self._tables = [self._make_table(*shape, make) for shape in announced.shapes]

    def rooms(self) -> list[NDArray[Any]]:
        """Return the rooms, in the order in which they were made, to somebody who fills them whole: no slices are to come."""
        for table in self._tables:
            table.filled = table.count
        return [room for table in self._tables for room in self._rooms_of(table)]

    def _rooms_of(self, table: _Table) -> Iterator[NDArray[Any]]:
        if table.brings_ids:
            yield table.ids
        if self.brings_rows:
            yield table.rows

    def take_slice(self, index: int, ids: bytes, rows: bytes) -> None:
        """Copy the next rows of table `index` to their place."""
        if self._about is None:
            raise InvalidRequest("header", "missing", "in the first part")
        if not 0 <= index < len(self._tables):
            raise InvalidRequest("slice.table", str(index), f"an index of the header's {len(self._tables)} tables")
        table = self._tables[index]
        count = self._count(table, ids, rows)
        begin, end = table.filled, table.filled + count
        if end > table.count:
            raise InvalidRequest(table.what, f"{end} rows or more", f"{table.count} rows, as announced")
        if table.brings_ids:
            table.ids[begin:end] = np.frombuffer(ids, dtype=ID)
        if self.brings_rows:
            table.rows[begin:end] = np.frombuffer(rows, dtype=table.rows.dtype).reshape(count, table.rows.shape[1])
        table.filled = end

    def value(self) -> AnyStreamed:
        """Return the whole value, once all parts are in. Its arrays are aligned, C-contiguous and nobody else's."""
        if self._about is None:
            raise InvalidRequest("header", "missing", "in the first part")
        for table in self._tables:
            if table.filled != table.count:
                raise InvalidRequest(table.what, f"{table.filled} rows", f"{table.count} rows, as announced")
        return self._build(self._tables, self._about)

    @staticmethod
    def _decode_header(header: Any) -> dict[str, Any]:
        """Return the value's fields that travel in the header, by name."""
        raise NotImplementedError

    def _build(self, tables: list[_Table], about: dict[str, Any]) -> AnyStreamed:
        raise NotImplementedError

    @classmethod
    def _check_shape(cls, shape: pb.TableShape) -> int:
        """Return how many array bytes this table announces."""
        if shape.rows < 0:
            raise InvalidRequest(f"rows of table {shape.table!r}", str(shape.rows), "a count, at least 0")
        dims = range(1, cls.columns_max + 1) if cls.brings_rows else range(1)
        if shape.dim not in dims:
            raise InvalidRequest(f"dim of table {shape.table!r}", str(shape.dim), f"a whole number from {dims.start} to {dims.stop - 1}")
        if shape.wire and shape.wire not in cls.wires:
            want = " or ".join([repr(name) for name in sorted({"", *cls.wires})])
            raise InvalidRequest(f"wire of table {shape.table!r}", repr(shape.wire), f"{want}, here")
        if not 0 <= shape.pull <= cls.pulls_max:
            raise InvalidRequest(f"pull of table {shape.table!r}", str(shape.pull), f"from 0 to {cls.pulls_max}, here")
        form = FORMATS[shape.wire or FLOAT32.name]
        return shape.rows * (ID.itemsize * cls._brings_ids(shape.pull) + form.row_size_bytes(shape.dim) * cls.brings_rows)

    @classmethod
    def _brings_ids(cls, pull: int) -> bool:
        """Return whether a table's slices bring ids, where it has the number of a pull."""
        return cls.brings_ids

    def _make_table(self, name: str, count: int, dim: int, form: WireFormat, pull: int, make: MakeArray) -> _Table:
        brings_ids = self._brings_ids(pull)
        ids = make((count,), ID) if brings_ids else _NO_IDS
        rows = make(form.shape(count, dim), form.dtype) if self.brings_rows else _NO_ROWS
        return _Table(name, count, pull, brings_ids, ids, rows)

    def _count(self, table: _Table, ids: bytes, rows: bytes) -> int:
        """Return how many rows a slice brings."""
        row_bytes = table.rows.dtype.itemsize * table.rows.shape[1]
        count, rest = divmod(len(ids), ID.itemsize) if table.brings_ids else divmod(len(rows), row_bytes)
        if rest:
            raise InvalidRequest(table.what, f"{len(ids)} bytes of ids, {len(rows)} bytes of rows", "whole ids and rows")
        if len(ids) != count * ID.itemsize * table.brings_ids or len(rows) != count * row_bytes:
            want = f"{ID.itemsize * table.brings_ids} bytes of ids and {row_bytes} bytes of rows for each"
            raise InvalidRequest(table.what, f"{len(ids)} bytes of ids, {len(rows)} bytes of rows", want)
        return count


class PullAssembler(Assembler[Pull]):
    """Takes PullPart messages."""

    part = pb.PullPart
    header = pb.PullHeader
    brings_rows = False
    pulls_max = PULL_MAX

    @staticmethod
    def _decode_header(header: pb.PullHeader) -> dict[str, Any]:
        check_limits("Pull", "wait_s", header.wait_s)
        check_limits("Pull", "at_step", header.at_step)
        finished = decode(Finished, header.finished) if header.HasField("finished") else None
        return {"fence": _fence("Pull", header), "finished": finished, "wait_s": header.wait_s, "at_step": header.at_step}

    def _build(self, tables: list[_Table], about: dict[str, Any]) -> Pull:
        return Pull(tables=tuple(TableIds(table.table, table.ids, table.pull) for table in tables), **about)


class PulledAssembler(Assembler[Pulled]):
    """Takes PulledPart messages."""

    part = pb.PulledPart
    header = pb.PulledHeader
    brings_ids = False
    wires = COMPRESSED

    @staticmethod
    def _decode_header(header: pb.PulledHeader) -> dict[str, Any]:
        return {"step": header.step}

    def _build(self, tables: list[_Table], about: dict[str, Any]) -> Pulled:
        return Pulled(tuple(table.rows for table in tables), **about)


class PushAssembler(Assembler[Push]):
    """Takes PushPart messages."""

    part = pb.PushPart
    header = pb.PushHeader
    wires = COMPRESSED
    pulls_max = PULL_MAX

    @classmethod
    def _brings_ids(cls, pull: int) -> bool:
        return pull == 0

    @staticmethod
    def _decode_header(header: pb.PushHeader) -> dict[str, Any]:
        check_limits("Push", "seq", header.seq)
        hyperparameters = tuple(decode(Hyperparameters, item) for item in header.hyperparameters)
        return {"fence": _fence("Push", header), "seq": header.seq, "hyperparameters": hyperparameters}

    def _build(self, tables: list[_Table], about: dict[str, Any]) -> Push:
        return Push(tables=_table_rows(tables), **about)


class AssignAssembler(Assembler[Assign]):
    """Takes AssignPart messages."""

    part = pb.AssignPart
    header = pb.AssignHeader
    columns_max = MAX_WIDTH

    @staticmethod
    def _decode_header(header: pb.AssignHeader) -> dict[str, Any]:
        check_limits("Assign", "seq", header.seq)
        columns = tuple(decode(ColumnLayout, column) for column in header.columns)
        return {"fence": _fence("Assign", header), "seq": header.seq, "only_absent": header.only_absent, "columns": columns}

    def _build(self, tables: list[_Table], about: dict[str, Any]) -> Assign:
        return Assign(tables=_table_rows(tables), **about)


class ExportAssembler(Assembler[ExportPart]):
    """Takes ExportedPart messages."""

    part = pb.ExportedPart
    header = pb.ExportedHeader
    columns_max = MAX_WIDTH

    @staticmethod
    def _decode_header(header: pb.ExportedHeader) -> dict[str, Any]:
        if len(header.tables) != 1:
            raise InvalidRequest("header.tables", f"{len(header.tables)} tables", "one table")
        return {}

    def _build(self, tables: list[_Table], about: dict[str, Any]) -> ExportPart:
        return ExportPart(tables[0].ids, tables[0].rows, **about)


ASSEMBLERS: dict[type, type[Assembler[Any]]] = {
    Pull: PullAssembler,
    Pulled: PulledAssembler,
    Push: PushAssembler,
    Assign: AssignAssembler,
    ExportPart: ExportAssembler,
}


def _fence(what: str, header: Any) -> Fence:
    if not header.HasField("fence"):
        raise InvalidRequest(f"{what}.fence", "missing", "a message")
    return decode(Fence, header.fence)


def _table_rows(tables: list[_Table]) -> tuple[TableRows, ...]:
    return tuple(TableRows(table.table, table.ids, table.rows, table.pull) for table in tables)

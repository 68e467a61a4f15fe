"""A safetensors file, written from buffers where they lie and read as views.

    u64 length of the header | header: JSON, padded with spaces to 8 | the arrays' bytes, one after the other, little-endian

The format is safetensors' own (https://github.com/huggingface/safetensors#format), whose writer would copy every array once more and whose
reader hands out copies. Arrays lie with the widest numbers first, so that each begins at a multiple of its item's size.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from ps_proto.errors import CorruptFile
from ps_server.storage.store import Data, buffers_of

Column = NDArray[Any] | Sequence[NDArray[Any]]  # a list stands for its arrays, one or more, one after the other along the first axis

_DTYPES = {
    "U8": np.dtype(np.uint8),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 8
_METADATA = "__metadata__"  # strings for people, which the format allows beside the arrays


def encode(arrays: Mapping[str, Column]) -> list[bytes | memoryview]:
    """Return the file's bytes as buffers: the header, then a view of each array, which must stay as it is until they are written.

    Arrays are C-contiguous and of one of these dtypes: uint8, int32, uint32, float32, int64, uint64.
    """
    columns = [(name, [column] if isinstance(column, np.ndarray) else column) for name, column in arrays.items()]
    columns.sort(key=lambda column: (-column[1][0].itemsize, column[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, pieces in columns:
        dtype, shape = pieces[0].dtype, [sum([len(piece) for piece in pieces]), *pieces[0].shape[1:]]
        for piece in pieces:
            assert piece.flags.c_contiguous, f"{name} does not lie in one piece"
            assert (piece.dtype, *piece.shape[1:]) == (dtype, *shape[1:]), f"{name} is made of pieces that differ"
        begin, end = end, end + sum([piece.nbytes for piece in pieces])
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [
        len(text).to_bytes(_LENGTH_BYTES, "little") + text,
        *[piece.reshape(-1).view(np.uint8).data for _, pieces in columns for piece in pieces],
    ]


def decode(data: memoryview, path: str) -> dict[str, NDArray[Any]]:
    """Return a file's arrays by name, read-only: views of `data`, or copies where it lies so that their numbers are not aligned.

    `path` is for errors: what is no such file raises CorruptFile.
    """
    data = data.toreadonly()
    if len(data) < _LENGTH_BYTES:
        raise CorruptFile(path, f"it has {len(data)} bytes, which is no header")
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if begin > len(data):
        raise CorruptFile(path, f"its header would end at byte {begin:,}, but it has {len(data):,}")
    try:
        entries = _entries_of(bytes(data[_LENGTH_BYTES:begin]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFile(path, f"its header is none of a safetensors file: {error!r}") from None
    body = data[begin:]
    arrays = {}
    end_of_last = 0
    for name, dtype, shape, first, end in entries:
        if first != end_of_last or end - first != math.prod(shape) * dtype.itemsize or end > len(body):
            raise CorruptFile(path, f"its header gives {name!r} bytes {first:,} to {end:,}, which do not fit")
        array = np.frombuffer(body[first:end], np.uint8)
        is_aligned = array.__array_interface__["data"][0] % dtype.itemsize == 0
        arrays[name] = (array if is_aligned else array.copy()).view(dtype).reshape(shape)
        arrays[name].flags.writeable = False
        end_of_last = end
    if end_of_last != len(body):
        raise CorruptFile(path, f"it has {len(body) - end_of_last:,} bytes behind its arrays")
    return arrays


def checksum(data: Data) -> str:
    """Return the XXH3 hash of all the bytes: 128 bits, in hex. It is there for damage by accident, and no lock against people.

    Runs without the GIL where a buffer is large.
    """
    hashed = xxh3_128()
    for buffer in buffers_of(data):
        hashed.update(buffer)
    return hashed.hexdigest()


def _entries_of(header: bytes) -> list[tuple[str, Any, tuple[int, ...], int, int]]:
    """Return name, dtype, shape, first byte and end of each array, in the order in which they lie."""
    found = json.loads(header)
    if not isinstance(found, dict):
        raise ValueError(f"it is a {type(found).__name__}")
    entries: list[tuple[str, Any, tuple[int, ...], int, int]] = []
    for name, entry in found.items():
        if name == _METADATA:
            continue
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not all([type(number) is int and number >= 0 for number in [*shape, *offsets]]):
            raise ValueError(f"{name!r} has the shape {shape} and the bytes {offsets}")
        first, end = offsets
        entries.append((name, _DTYPES[entry["dtype"]], tuple(shape), first, end))
    return sorted(entries, key=lambda entry: entry[3:])  # by the end too: an empty array lies before one that begins there

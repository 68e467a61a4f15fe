"""Plain values as bytes, and back: what state_dict() gives, never pickle, so that nothing in it can run.

Packed:  None, bool, int of any size, float, str, bytes; list, tuple, dict, collections.OrderedDict and Counter; numpy arrays and scalars,
torch tensors. Keys of dicts are str or int. Types are exact: a subclass, such as a namedtuple or an enum, is refused and not taken for
what it derives from. An OrderedDict keeps its attributes, in which torch's modules say their versions.

    format 1     one byte, then the value
    a value      one byte that says its type, then what the type needs; lengths are u32, little-endian
    b"&"         bytes that came before, by their number: several states of one random generator are mostly the same
"""

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ps_proto.errors import InvalidRequest
from ps_worker.resume.tensors import array_from_bytes, array_to_bytes, is_tensor, tensor_from_bytes, tensor_to_bytes

FORMAT = 1
DEPTH_MAX = 64  # of values in values: beyond it a value has itself in it
SHARED_MIN = 64  # bytes from which on a repeat is worth looking for
PLAIN = "plain data: None, numbers, text, bytes, lists, tuples, dicts with str or int keys, arrays and tensors"

_LENGTH = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_SHAPE_AXIS = struct.Struct("<q")


def pack(value: Any, where: str = "the resume state") -> bytes:
    """Return the value as bytes. Raises InvalidRequest that names, from `where` on, the place of what is no plain data."""
    packer = _Packer()
    packer.add(value, where)
    return packer.packed()


def unpack(data: bytes) -> Any:
    """Return what `pack` was given, in new objects; InvalidRequest where the bytes are not its."""
    if data[:1] != bytes([FORMAT]):
        raise InvalidRequest(
            "The resume state", f"of format {data[0] if data else None}", f"of format {FORMAT}: one version on all workers"
        )
    try:
        return _Unpacker(data).whole()
    except (struct.error, ValueError, TypeError, IndexError, KeyError, RecursionError) as error:
        raise InvalidRequest("The resume state", f"damaged ({error})", "as it was packed") from None


class _Packer:
    """Packs one value."""

    def __init__(self) -> None:
        self._parts: list[bytes] = [bytes([FORMAT])]
        self._known: dict[bytes, int] = {}

    def packed(self) -> bytes:
        """Return all bytes."""
        return b"".join(self._parts)

    def add(self, value: Any, where: str, depth: int = 0) -> None:
        """Pack one value, which errors say is at `where`."""
        if depth > DEPTH_MAX:
            raise InvalidRequest(where, f"more than {DEPTH_MAX} values deep", "data that does not contain itself")
        pack_it = _PACKERS.get(type(value))
        if pack_it is not None:
            pack_it(self, value, where, depth)
        elif type(value) is np.ndarray or isinstance(value, np.generic):
            self._add_array(value, where)
        elif is_tensor(value):
            self._add_tensor(value, where)
        else:
            raise InvalidRequest(where, f"a {type(value).__name__}", PLAIN)

    def _write(self, data: bytes) -> None:
        self._parts.append(data)

    def _write_length(self, length: int) -> None:
        self._write(_LENGTH.pack(length))

    def _add_none(self, value: None, where: str, depth: int) -> None:
        self._write(b"n")

    def _add_bool(self, value: bool, where: str, depth: int) -> None:
        self._write(b"T" if value else b"F")

    def _add_int(self, value: int, where: str, depth: int) -> None:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        self._write(b"i")
        self._write_length(len(data))
        self._write(data)

    def _add_float(self, value: float, where: str, depth: int) -> None:
        self._write(b"f")
        self._write(_FLOAT.pack(value))

    def _add_str(self, value: str, where: str, depth: int) -> None:
        data = value.encode("utf-8", "surrogatepass")
        self._write(b"s")
        self._write_length(len(data))
        self._write(data)

    def _add_bytes(self, value: bytes, where: str = "", depth: int = 0) -> None:
        known = self._known.get(value)
        if known is not None:
            self._write(b"&")
            self._write_length(known)
            return
        if len(value) >= SHARED_MIN:
            self._known[value] = len(self._known)
        self._write(b"b")
        self._write_length(len(value))
        self._write(value)

    def _add_items(self, value: list[Any] | tuple[Any, ...], where: str, depth: int) -> None:
        self._write(b"l" if type(value) is list else b"t")
        self._write_length(len(value))
        for position, item in enumerate(value):
            self.add(item, f"{where}[{position}]", depth + 1)

    def _add_dict(self, value: dict[Any, Any], where: str, depth: int) -> None:
        self._write(_DICTS[type(value)])
        self._write_length(len(value))
        for key, item in value.items():
            if type(key) not in (str, int):
                raise InvalidRequest(f"a key of {where}", f"{key!r}", "a str or an int")
            self.add(key, where, depth + 1)
            self.add(item, f"{where}[{key!r}]", depth + 1)
        if type(value) is OrderedDict:
            self._add_dict(vars(value), f"{where}.__dict__", depth + 1)

    def _add_array(self, value: Any, where: str) -> None:
        described = array_to_bytes(value)
        if described is None:
            raise InvalidRequest(where, f"a {type(value).__name__} of dtype {value.dtype}", PLAIN)
        dtype, shape, data = described
        self._write(b"a" if isinstance(value, np.ndarray) else b"g")
        self._add_described((dtype,), shape, data)

    def _add_tensor(self, value: Any, where: str) -> None:
        described = tensor_to_bytes(value)
        if described is None:
            raise InvalidRequest(where, f"a tensor of {value.layout}, {value.dtype} on {value.device}", "a dense tensor")
        dtype, device, shape, data = described
        self._write(b"x")
        self._add_described((dtype, device), shape, data)

    def _add_described(self, names: tuple[str, ...], shape: tuple[int, ...], data: bytes) -> None:
        for name in names:
            self._add_str(name, "", 0)
        self._write_length(len(shape))
        self._write(b"".join([_SHAPE_AXIS.pack(axis) for axis in shape]))
        self._add_bytes(data)


_DICTS: dict[type, bytes] = {dict: b"d", OrderedDict: b"o", Counter: b"c"}
_PACKERS: dict[type, Callable[[_Packer, Any, str, int], None]] = {
    type(None): _Packer._add_none,
    bool: _Packer._add_bool,
    int: _Packer._add_int,
    float: _Packer._add_float,
    str: _Packer._add_str,
    bytes: _Packer._add_bytes,
    list: _Packer._add_items,
    tuple: _Packer._add_items,
    **dict.fromkeys(_DICTS, _Packer._add_dict),
}


class _Unpacker:
    """Reads one value after another; struct.error, ValueError and their like where the bytes end or say what cannot be."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1
        self._known: list[bytes] = []

    def whole(self) -> Any:
        """Return the value that all the bytes are."""
        value = self._value()
        if self._at != len(self._data):
            raise ValueError("more bytes than a value has")
        return value

    def _take(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise ValueError("it ends too early")
        self._at += length
        return self._data[self._at - length : self._at]

    def _length(self) -> int:
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size))
        return int(length)

    def _value(self) -> Any:
        tag = self._take(1)
        match tag:
            case b"n":
                return None
            case b"T" | b"F":
                return tag == b"T"
            case b"i":
                return int.from_bytes(self._take(self._length()), "little", signed=True)
            case b"f":
                return _FLOAT.unpack(self._take(_FLOAT.size))[0]
            case b"s":
                return self._take(self._length()).decode("utf-8", "surrogatepass")
            case b"b":
                data = self._take(self._length())
                if len(data) >= SHARED_MIN:
                    self._known.append(data)
                return data
            case b"&":
                return self._known[self._length()]
            case b"l":
                return [self._value() for _ in range(self._length())]
            case b"t":
                return tuple([self._value() for _ in range(self._length())])
            case b"d":
                return self._pairs()
            case b"o":
                ordered: OrderedDict[Any, Any] = OrderedDict(self._pairs())
                vars(ordered).update(self._value())
                return ordered
            case b"c":
                return Counter(self._pairs())
            case b"a":
                return self._array()
            case b"g":
                return self._array()[()]
            case b"x":
                dtype, device = self._value(), self._value()
                return tensor_from_bytes(dtype, device, self._shape(), self._value())
        raise ValueError(f"no value begins with {tag!r}")

    def _pairs(self) -> dict[Any, Any]:
        pairs = {}
        for _ in range(self._length()):
            key = self._value()  # before its value: Python evaluates the right side of an assignment first
            pairs[key] = self._value()
        return pairs

    def _array(self) -> Any:
        return array_from_bytes(self._value(), self._shape(), self._value())

    def _shape(self) -> tuple[int, ...]:
        shape = tuple([_SHAPE_AXIS.unpack(self._take(_SHAPE_AXIS.size))[0] for _ in range(self._length())])
        if any(axis < 0 for axis in shape):
            raise ValueError(f"shape {list(shape)}")
        return shape

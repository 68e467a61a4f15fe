"""Requests and replies as frames, for the fast lane: a fixed head, a protobuf message, then the arrays as they lie in memory.

    offset  bytes
    0       4      "ROWS"
    4       1      version: 1
    5       1      kind: 1 hello, 2 request, 3 reply, 4 error
    6       2      method: its number in LANE_METHODS
    8       8      call: the caller's number, which the answer repeats
    16      4      message_bytes: the message's length
    20      4      place: where the arrays lie; 0 behind the message, 1 in the caller's arena
    24      8      arrays_bytes: their length, each array filled up to a multiple of 64
    32      8      arrays_begin: where they begin in the arena, if they lie there
    40      8      room_begin: of a request, where in the arena the arrays of its reply may lie
    48      8      room_bytes: how much room there is; 0: none
    56      8      zeros
    64             the message, filled up to a multiple of 64
                   the arrays, unless they lie in the arena

A message is that of gRPC: the whole one or, for values that carry rows, the header of their parts, whose shapes say which arrays there are:
of each table the ids, then the rows, each where the contract has them. So a frame says nothing that parts do not say, and one Assembler
checks both. The message of a hello is the token, that of an error its ErrorDetail. All numbers are little-endian.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ps_proto.codec import decode, encode, message_type, parse
from ps_proto.errors import InvalidRequest
from ps_proto.orders import InstallMap
from ps_proto.parts import ASSEMBLERS, STREAMED, Announced, MakeArray, headed
from ps_proto.requests import Assign, ClearTable, CloseExport, Finish, GetStats, OpenExport, Pull, Push, ReadExport

VERSION = 1
HELLO, REQUEST, REPLY, ERROR = 1, 2, 3, 4
IN_FRAME, IN_ARENA = 0, 1
ALIGNMENT_BYTES = 64
HEAD_BYTES = 64
MESSAGE_BYTES_MAX = 64 << 20
SMALL_MESSAGE_BYTES = 1 << 10
ARENA_SEALS = 0x1 | 0x2 | 0x4  # Linux's F_SEAL_SEAL, SHRINK and GROW: an arena's size never changes

# What workers ask servers. A method's place is its number on the wire: append only.
LANE_METHODS: tuple[type, ...] = (Pull, Push, Assign, ClearTable, Finish, OpenExport, ReadExport, CloseExport, GetStats, InstallMap)
METHOD_NUMBERS = {method: number for number, method in enumerate(LANE_METHODS)}

_HEAD = struct.Struct("<4sBBHQIIQQQQ8x")
_MAGIC = b"ROWS"
_PADS = tuple([bytes(length) for length in range(ALIGNMENT_BYTES)])

Array = NDArray[Any]


class Head(NamedTuple):
    """The first 64 bytes of a frame."""

    kind: int
    method: int = 0
    call: int = 0
    message_bytes: int = 0
    place: int = IN_FRAME
    arrays_bytes: int = 0
    arrays_begin: int = 0
    room_begin: int = 0
    room_bytes: int = 0

    def pack(self) -> bytes:
        """Return the bytes."""
        return _HEAD.pack(_MAGIC, VERSION, *self)

    @classmethod
    def unpack(cls, data: Any) -> "Head":
        """Return the head that the first 64 bytes of a buffer are; InvalidRequest where they are none, or of another version."""
        magic, version, *fields = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise InvalidRequest("the first four bytes of a frame", repr(magic), repr(_MAGIC))
        if version != VERSION:
            raise InvalidRequest("a frame's version", str(version), str(VERSION))
        head = cls(*fields)
        if not HELLO <= head.kind <= ERROR:
            raise InvalidRequest("a frame's kind", str(head.kind), f"from {HELLO} to {ERROR}")
        if head.message_bytes > MESSAGE_BYTES_MAX:
            raise InvalidRequest("a frame's message", f"{head.message_bytes} bytes", f"at most {MESSAGE_BYTES_MAX}")
        return head

    @property
    def begin_bytes(self) -> int:
        """How long the head and its message are, filled up."""
        return HEAD_BYTES + filled(self.message_bytes)


def filled(length: int) -> int:
    """Return the length, filled up to a multiple of 64.

    >>> filled(0), filled(1), filled(64)
    (0, 64, 64)
    """
    return -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def filled_bytes(arrays: Sequence[Array]) -> int:
    """Return how long the arrays are in a frame or in the arena."""
    return sum([filled(array.nbytes) for array in arrays])


def message_of(value: Any) -> tuple[bytes, list[Array]]:
    """Return what a value is in a frame: its message, and the arrays behind it. What fits no message raises InvalidRequest."""
    if isinstance(value, STREAMED):
        header, arrays = headed(value)
        return header.SerializeToString(), arrays
    return encode(value).SerializeToString(), []


def begin_of(head: Head, message: bytes) -> bytes:
    """Return the bytes of head and message."""
    return head.pack() + message + _PADS[-len(message) % ALIGNMENT_BYTES]


def pieces_of(arrays: Sequence[Array]) -> Iterator[Any]:
    """Yield the buffers that are the arrays in a frame."""
    for array in arrays:
        if array.nbytes:
            yield array.data.cast("B")
            if array.nbytes % ALIGNMENT_BYTES:
                yield _PADS[-array.nbytes % ALIGNMENT_BYTES]


class Incoming:
    """A value of class `kind` that comes in a frame: from its message, then the arrays, whose bytes somebody else brings.

    Raises InvalidRequest for what is malformed, RequestTooLarge for more than `bytes_max` array bytes; in the name of `peer`.
    """

    def __init__(self, kind: type, message: bytes, peer: str, bytes_max: int) -> None:
        self._kind = kind
        self._assembler = ASSEMBLERS[kind](peer, bytes_max) if kind in ASSEMBLERS else None
        self._message = message
        if self._assembler is not None:
            self._announced = (_announced_again if len(message) <= SMALL_MESSAGE_BYTES else _announced)(kind, message)

    def rooms(self, head: Head, make: MakeArray) -> list[Array]:
        """Return the value's arrays, made by `make`, in the order in which they travel. None is made that the head has no bytes for."""
        left = head.arrays_bytes

        def make_counted(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            nonlocal left
            left -= filled(math.prod(shape) * dtype.itemsize)
            if left < 0:
                self._say_lying(head, "more")
            return make(shape, dtype)

        if self._assembler is not None:
            self._assembler.make_room(self._announced, make_counted)
        if left:
            self._say_lying(head, "fewer")
        return [] if self._assembler is None else self._assembler.rooms()

    def value(self) -> Any:
        """Return the value, once its arrays are there."""
        if self._assembler is not None:
            return self._assembler.value()
        return decode(self._kind, parse(message_type(self._kind.__name__), self._message))

    def _say_lying(self, head: Head, which: str) -> None:
        raise InvalidRequest("a frame's arrays", f"{head.arrays_bytes} bytes", f"as its message says, which are {which}")


def _announced(kind: type, message: bytes) -> Announced:
    """Return what a header announces."""
    assembler = ASSEMBLERS[kind]
    return assembler.announced(parse(assembler.header, message))


_announced_again = lru_cache(maxsize=256)(_announced)  # small requests come with the same header many times over in a step

"""A worker's shared memory, as a server sees it: it reads gradients there, and writes rows to the rooms that a request names."""

import fcntl
import math
import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_proto.errors import InvalidRequest
from ps_proto.frames import ALIGNMENT_BYTES, ARENA_SEALS, filled
from sharding.arrays import empty_aligned
from sharding.wire_format import WireRows

_FileId = tuple[int, int]  # device and inode


class MappedArena:
    """The memory file behind a descriptor, mapped for as long as anybody holds this or an array of it.

    To touch a file that was cut short would end this process with SIGBUS, so one that is not sealed against that is refused.
    """

    def __init__(self, descriptor: int) -> None:
        """Map it; the descriptor stays open. Raises InvalidRequest, or OSError for what cannot be mapped."""
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        except OSError:  # EINVAL: a file on a disk has none
            seals = 0
        if seals & ARENA_SEALS != ARENA_SEALS:
            raise InvalidRequest(
                "the arena", f"a file with the seals {seals:#x}", f"a memory file sealed with {ARENA_SEALS:#x}, of fixed size"
            )
        self.nbytes = os.fstat(descriptor).st_size
        if self.nbytes == 0:
            raise InvalidRequest("the arena", "empty", "a memory file of some size")
        self._mapping = mmap.mmap(descriptor, self.nbytes)
        self._address = int(np.frombuffer(self._mapping, np.uint8).__array_interface__["data"][0])

    def array(self, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the array that lies at `begin`; InvalidRequest where it does not lie within."""
        nbytes = math.prod(shape) * dtype.itemsize
        if begin % ALIGNMENT_BYTES or begin + nbytes > self.nbytes:
            raise InvalidRequest(
                "an array's place", f"{nbytes} bytes from {begin} on", f"a multiple of 64 within the arena's {self.nbytes}"
            )
        return np.ndarray(shape, dtype, self._mapping, begin)

    def holds_at(self, begin: int, array: NDArray[Any]) -> bool:
        """Return whether the array is the memory at `begin`."""
        return array.nbytes == 0 or int(array.__array_interface__["data"][0]) == self._address + begin


class Arenas:
    """The arenas that are mapped: one mapping of each, however many connections its worker has."""

    def __init__(self) -> None:
        self._mapped: weakref.WeakValueDictionary[_FileId, MappedArena] = weakref.WeakValueDictionary()

    def get(self, descriptor: int) -> MappedArena:
        """Return the arena behind a descriptor, which stays open; raises as MappedArena does."""
        status = os.fstat(descriptor)
        arena = self._mapped.get((status.st_dev, status.st_ino))  # a mapped file's inode is no other's
        if arena is None:
            arena = self._mapped[status.st_dev, status.st_ino] = MappedArena(descriptor)
        return arena


class Room:
    """Where in the arena the rows of one reply go, one array behind the other; what does not fit is made in our own memory."""

    def __init__(self, arena: MappedArena, begin: int, nbytes: int) -> None:
        self._arena = arena
        self._next, self._end = begin, begin + nbytes

    def rows(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> WireRows:
        """Return room for rows of this shape."""
        nbytes = filled(math.prod(shape) * dtype.itemsize)
        if self._next + nbytes > self._end:
            return empty_aligned(shape, dtype)
        rows = self._arena.array(self._next, shape, dtype)
        self._next += nbytes
        return rows

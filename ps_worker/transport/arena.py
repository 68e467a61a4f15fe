"""A worker's shared memory: a server on the same host reads gradients there and writes rows there. Results are views of it.

A block of it is used by a call, or by a push and all its attempts, then by the views that came of it, and is free again once nothing refers
to it any more. So what somebody holds is never written over. The lowest places are given out first: those have been touched.
"""

import ctypes
import fcntl
import logging
import mmap
import os
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_proto.frames import ALIGNMENT_BYTES, ARENA_SEALS, filled

NAME = "rowstead-arena"  # as /proc shows it

log = logging.getLogger("rowstead")


class Block:
    """Some of an arena, free again when this and every array of it are garbage. A multiple of 64 bytes, at a multiple of 64."""

    def __init__(self, arena: "Arena", begin: int, nbytes: int) -> None:
        self.arena = arena
        self.begin = begin
        self.nbytes = nbytes
        # What numpy makes an array of: that array's base is this object, and so is the base of every view of it.
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (arena.address + begin, False), "version": 3}

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the array that lies `offset` bytes into the block, and keeps it; TypeError where it does not lie within."""
        return np.ndarray(shape, dtype, np.asarray(self), offset)

    def __del__(self) -> None:
        self.arena.returned.append((self.begin, self.nbytes))


class Arena:
    """A memory file of fixed size. Any thread may allocate, and any may let go. OSError where the system has no memory files."""

    def __init__(self, nbytes: int) -> None:
        """Take no memory yet: the system gives it as it is touched."""
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory files (memfd_create)")
        self.descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, nbytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, ARENA_SEALS)
            self._mapping = mmap.mmap(self.descriptor, nbytes)
        except BaseException:
            os.close(self.descriptor)
            raise
        weakref.finalize(self, os.close, self.descriptor)
        self.address = int(np.frombuffer(self._mapping, np.uint8).__array_interface__["data"][0])
        self.nbytes = nbytes
        self.returned: deque[tuple[int, int]] = deque()  # a block may be let go in the middle of anything: no lock here
        self.times_full = 0
        self._lock = threading.Lock()  # guards the two below
        self._begins = [0]  # of the free places, ascending; no two of them touch
        self._sizes = {0: nbytes}
        with _forking:
            _arenas.add(self)

    def allocate(self, nbytes: int) -> Block | None:
        """Return a block of at least that many bytes, or None where there is no such place, which `times_full` counts."""
        block = self.find(nbytes)
        if block is None:
            with self._lock:
                self.times_full += 1
                is_first = self.times_full == 1
            if is_first:
                log.warning(
                    "The %d MiB shared with servers are full of rows that are held: more of them come over the socket.", self.nbytes >> 20
                )
        return block

    def find(self, nbytes: int) -> Block | None:
        """Return a block of at least that many bytes, or None where there is no such place: for what is counted when it is sent."""
        nbytes = max(filled(nbytes), filled(1))
        with self._lock:
            self._take_back()
            for position, begin in enumerate(self._begins):
                rest = self._sizes[begin] - nbytes
                if rest >= 0:
                    del self._sizes[begin]
                    if rest:
                        self._begins[position] = begin + nbytes
                        self._sizes[begin + nbytes] = rest
                    else:
                        del self._begins[position]
                    return Block(self, begin, nbytes)
        return None

    def place_of(self, arrays: Sequence[NDArray[Any]]) -> int | None:
        """Return where arrays of one block begin that lie one behind another as a frame has them, each filled up to 64 bytes; else None."""
        begin = end = block = None
        for array in [array for array in arrays if array.nbytes]:
            owner, place = _owner_of(array), int(array.__array_interface__["data"][0]) - self.address
            if not isinstance(owner, Block) or owner.arena is not self or not array.flags.c_contiguous or place % ALIGNMENT_BYTES:
                return None
            if begin is None:
                begin, end, block = place, place, owner
            if owner is not block or place != end:
                return None
            end = place + filled(array.nbytes)
        return begin

    def free_bytes(self) -> int:
        """Return how many bytes no block has."""
        with self._lock:
            self._take_back()
            return sum(self._sizes.values())

    def _take_back(self) -> None:
        """Make free what was let go, joined with what is free beside it."""
        while self.returned:
            begin, nbytes = self.returned.popleft()
            position = bisect_left(self._begins, begin)
            if position < len(self._begins) and self._begins[position] == begin + nbytes:
                nbytes += self._sizes.pop(self._begins.pop(position))
            if position and (before := self._begins[position - 1]) + self._sizes[before] == begin:
                self._sizes[before] += nbytes
            else:
                self._sizes[begin] = nbytes
                self._begins.insert(position, begin)

    # --- forks -------------------------------------------------------------------------------------------------------------------

    def stand_still(self) -> None:
        """Give nothing out until `go_on`: this process is about to fork."""
        self._lock.acquire()

    def go_on(self) -> None:
        self._lock.release()

    def become_private(self) -> None:
        """Lay memory of this process alone in the arena's place, with the same bytes in all blocks: for a child that was forked."""
        held = [(begin, ctypes.string_at(self.address + begin, end - begin)) for begin, end in self._held()]
        _map_private_memory(self.address, self.nbytes)
        for begin, data in held:
            ctypes.memmove(self.address + begin, data, len(data))

    def _held(self) -> list[tuple[int, int]]:
        """Return [begin, end) of the places that are not free."""
        edges = [0, *[edge for begin in self._begins for edge in (begin, begin + self._sizes[begin])], self.nbytes]
        return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


def _owner_of(array: NDArray[Any]) -> object:
    """Return what owns an array's memory: of the arrays of a block, that block."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner


def _map_private_memory(address: int, nbytes: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    if libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_MAP_FIXED = 0x10  # Linux's; only there are memory files


# A forked child has its own copy of everything but shared memory: it would see the rows that it holds change as its parent goes on. So it
# copies them, and until it has, its parent waits.
_forking = threading.Lock()  # guards the three below, by one fork from before it until after
_arenas: "weakref.WeakSet[Arena]" = weakref.WeakSet()
_standing: list[Arena] = []
_pipe: list[int] = []


def _before_fork() -> None:
    _forking.acquire()
    _standing.extend(_arenas)
    for arena in _standing:
        arena.stand_still()
    if _standing:
        _pipe.extend(os.pipe())


def _after_fork_in_child() -> None:
    try:
        for arena in _standing:
            arena.become_private()
    finally:
        _go_on()


def _after_fork_in_parent() -> None:
    try:
        if _pipe:
            os.close(_pipe.pop())  # the child has the other end open until it has copied, or has died
            os.read(_pipe[0], 1)
    finally:
        _go_on()


def _go_on() -> None:
    for arena in _standing:
        arena.go_on()
    _standing.clear()
    while _pipe:
        os.close(_pipe.pop())
    _forking.release()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child, after_in_parent=_after_fork_in_parent)

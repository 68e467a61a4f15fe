import fcntl
import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from ps_proto.errors import InvalidRequest
from ps_proto.frames import ARENA_SEALS
from ps_server.edge.lane.arena import Arenas, MappedArena, Room
from ps_worker.transport.arena import Arena

NBYTES = 1 << 16
FLOAT32 = np.dtype(np.float32)


@contextmanager
def memory_file(nbytes: int, seals: int) -> Iterator[int]:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        if seals:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor
    finally:
        os.close(descriptor)


def test_the_seals_are_linuxs() -> None:
    assert ARENA_SEALS == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def test_both_sides_see_the_same_memory() -> None:
    arena = Arena(NBYTES)
    mapped = MappedArena(arena.descriptor)
    arena.allocate(64)
    block = arena.allocate(256)
    assert block is not None
    ours = block.array(0, (4, 16), FLOAT32)
    theirs = mapped.array(block.begin, (4, 16), FLOAT32)
    ours[...] = 3.0
    assert (theirs == 3.0).all()
    theirs[1, 2] = 4.0
    assert ours[1, 2] == 4.0
    assert theirs.ctypes.data % 64 == 0
    assert mapped.holds_at(block.begin, theirs)
    assert not mapped.holds_at(block.begin + 64, theirs)
    assert not mapped.holds_at(block.begin, ours), "at another address of this process"


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL, ARENA_SEALS & ~fcntl.F_SEAL_GROW])
def test_a_file_that_could_change_its_size_is_refused(seals: int) -> None:
    with memory_file(NBYTES, seals) as descriptor, pytest.raises(InvalidRequest, match="sealed with 0x7"):
        MappedArena(descriptor)


def test_a_file_on_a_disk_is_refused() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(NBYTES)
        with pytest.raises(InvalidRequest, match="sealed with 0x7"):
            MappedArena(file.fileno())


def test_an_empty_file_is_refused() -> None:
    with memory_file(0, ARENA_SEALS) as descriptor, pytest.raises(InvalidRequest, match="empty"):
        MappedArena(descriptor)


def test_a_file_that_may_not_be_written_to_cannot_be_mapped() -> None:
    with memory_file(NBYTES, ARENA_SEALS & ~fcntl.F_SEAL_SEAL) as descriptor:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
        with pytest.raises(PermissionError):
            MappedArena(descriptor)


@pytest.mark.parametrize(
    ("begin", "shape"),
    [(1, (1, 1)), (NBYTES - 64, (1, 17)), (NBYTES, (1, 1)), (2**63, (1, 1)), (0, (2**40, 65_536)), (2**64 - 64, (1, 16))],
)
def test_an_array_that_lies_outside_is_refused(begin: int, shape: tuple[int, int]) -> None:
    arena = Arena(NBYTES)
    with pytest.raises(InvalidRequest, match="place"):
        MappedArena(arena.descriptor).array(begin, shape, FLOAT32)


def test_the_last_place_is_within() -> None:
    arena = Arena(NBYTES)
    mapped = MappedArena(arena.descriptor)
    mapped.array(NBYTES - 64, (1, 16), FLOAT32)[...] = 1.0
    assert mapped.array(NBYTES, (0, 16), FLOAT32).size == 0


def test_an_arena_is_mapped_once_for_all_connections_of_its_worker() -> None:
    arenas, arena, other = Arenas(), Arena(NBYTES), Arena(NBYTES)
    again = os.dup(arena.descriptor)
    one = arenas.get(arena.descriptor)
    assert arenas.get(again) is one
    assert arenas.get(other.descriptor) is not one
    os.close(again)
    array = one.array(0, (1, 16), FLOAT32)
    del one
    gc.collect()
    array[...] = 1.0  # an array keeps the mapping
    assert os.pread(arena.descriptor, 64, 0) == array.tobytes()


def test_a_room_is_filled_in_order_and_what_does_not_fit_lies_elsewhere() -> None:
    arena = Arena(NBYTES)
    mapped = MappedArena(arena.descriptor)
    room = Room(mapped, 128, 3 * 64)
    one, two = room.rows((1, 3), FLOAT32), room.rows((2, 16), FLOAT32)
    assert mapped.holds_at(128, one)
    assert mapped.holds_at(192, two)
    three = room.rows((1, 1), FLOAT32)
    assert not mapped.holds_at(320, three)
    assert three.shape == (1, 1)
    assert three.ctypes.data % 64 == 0
    assert room.rows((0, 8), FLOAT32).size == 0


def test_a_room_beyond_the_arena_is_refused_when_it_is_used() -> None:
    arena = Arena(NBYTES)
    room = Room(MappedArena(arena.descriptor), NBYTES - 64, 2**40)
    room.rows((1, 16), FLOAT32)
    with pytest.raises(InvalidRequest, match="place"):
        room.rows((1, 16), FLOAT32)

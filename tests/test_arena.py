import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from ps_worker.transport.arena import Arena, Block

FLOAT32 = np.dtype(np.float32)
NBYTES = 1 << 16


def filled_rows(block: Block, value: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    rows = block.array(0, (4, 16), FLOAT32)
    rows[...] = value
    return rows


def test_blocks_are_the_lowest_places_that_are_free_and_come_back() -> None:
    arena = Arena(NBYTES)
    one, two, three = [arena.allocate(100) for _ in range(3)]
    assert one is not None
    assert two is not None
    assert three is not None
    assert [block.begin for block in (one, two, three)] == [0, 128, 256]
    del two
    assert arena.free_bytes() == NBYTES - 256
    small = arena.allocate(64)
    assert small is not None
    assert small.begin == 128
    del one, three, small
    assert arena.free_bytes() == NBYTES
    assert arena.allocate(NBYTES) is not None, "what lies side by side is one place again"


def test_what_is_only_looked_for_is_not_counted_where_there_is_no_place() -> None:
    arena = Arena(NBYTES)
    assert arena.find(NBYTES + 1) is None
    assert arena.times_full == 0
    assert arena.allocate(NBYTES + 1) is None
    assert arena.times_full == 1


def test_arrays_that_lie_as_a_frame_has_them_are_known_by_their_place() -> None:
    arena = Arena(NBYTES)
    before = arena.allocate(64)
    block = arena.allocate(1_000)
    assert before is not None
    assert block is not None
    ids = block.array(0, (3,), np.dtype(np.uint64))
    nothing = np.empty(0, np.float32)
    rows = block.array(64, (5, 5), np.dtype(np.float32))
    more = block.array(192, (2,), np.dtype(np.uint64))
    assert arena.place_of([ids, nothing, rows, more]) == 64
    assert arena.place_of([rows]) == 128
    assert arena.place_of([nothing]) is None
    assert arena.place_of([ids, more]) is None, "there is something between"
    assert arena.place_of([rows, ids]) is None
    assert arena.place_of([ids, rows.copy()]) is None
    assert arena.place_of([rows[:, :3]]) is None, "it is no array of a frame"
    assert arena.place_of([rows.reshape(-1)[1:]]) is None
    beside = arena.allocate(64)
    assert beside is not None
    assert beside.begin == block.begin + block.nbytes
    last = block.array(block.nbytes - 64, (8,), np.dtype(np.uint64))
    assert arena.place_of([last, beside.array(0, (8,), np.dtype(np.uint64))]) is None, "somebody else's, who may change it"
    other = Arena(NBYTES).allocate(1_000)
    assert other is not None
    assert arena.place_of([other.array(0, (8,), np.dtype(np.uint64))]) is None


def test_a_block_is_held_by_every_view_of_it() -> None:
    arena = Arena(NBYTES)
    block = arena.allocate(1_000)
    assert block is not None
    rows = filled_rows(block, 1.0)
    del block
    part = rows[2:, ::2].T
    del rows
    gc.collect()
    assert arena.free_bytes() == NBYTES - 1_024
    del part
    assert arena.free_bytes() == NBYTES


def test_arrays_are_aligned_and_writable_and_the_files_memory() -> None:
    arena = Arena(NBYTES)
    arena.allocate(1)
    block = arena.allocate(600)
    assert block is not None
    rows = filled_rows(block, 2.5)
    assert rows.ctypes.data % 64 == 0
    assert rows.flags.c_contiguous
    assert rows.flags.writeable
    assert os.pread(arena.descriptor, 256, block.begin) == rows.tobytes()
    with pytest.raises(TypeError, match="too small"):
        block.array(600, (4, 16), FLOAT32)


def test_a_full_arena_has_no_block_counts_it_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    arena = Arena(NBYTES)
    held = arena.allocate(NBYTES - 64)
    assert held is not None
    assert arena.allocate(65) is None
    assert arena.allocate(NBYTES * 2) is None
    assert arena.times_full == 2
    assert arena.allocate(64) is not None
    assert arena.times_full == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_thousand_held_results_keep_their_rows() -> None:
    arena = Arena(300 << 20)
    held = []
    for number in range(1_000):
        block = arena.allocate(1_000 * 64 * 4)
        assert block is not None
        rows = block.array(0, (1_000, 64), FLOAT32)
        rows[...] = number
        held.append(rows)
    assert all([(rows == number).all() for number, rows in enumerate(held)])
    del rows, block, held
    assert arena.free_bytes() == 300 << 20


def test_threads_allocate_and_let_go_at_once() -> None:
    arena = Arena(NBYTES)
    wrong = []

    def work(number: int) -> None:
        for turn in range(500):
            block = arena.allocate(64 * (1 + turn % 7))
            if block is not None:
                rows = block.array(0, (16,), FLOAT32)
                rows[...] = number
                if not (rows == number).all():
                    wrong.append(turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    del threads
    assert arena.free_bytes() == NBYTES


def test_the_descriptor_is_closed_with_the_arena_and_not_inherited() -> None:
    arena = Arena(NBYTES)
    descriptor = arena.descriptor
    assert not os.get_inheritable(descriptor)
    del arena
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_system_without_memory_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="memory files"):
        Arena(NBYTES)


FORKING = """
import os
import numpy as np
from ps_worker.transport.arena import Arena

arena = Arena(1 << 20)
first, second = [arena.allocate(4096).array(0, (1024,), np.dtype(np.float32)) for _ in range(2)]
first[...], second[...] = 1.0, 2.0
go = os.pipe()
child = os.fork()
if child == 0:
    os.read(go[0], 1)                                         # the parent has written over its rows, and let go of them
    ok = (first == 1.0).all() and (second == 2.0).all()       # but these are the child's own
    first[...] = 7.0
    os._exit(0 if ok else 1)
second[...] = 3.0
second = arena.allocate(8192).array(0, (2048,), np.dtype(np.float32))
second[...] = 4.0
os.write(go[1], b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (first == 1.0).all(), "the child wrote to its parent's rows"
assert arena.allocate(64) is not None                          # nobody holds the lock
"""


def test_a_forked_child_has_the_rows_that_it_held_for_itself() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=20, env=environment)

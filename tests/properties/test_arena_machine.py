"""An arena against what it must be: blocks that never overlap, rows that stay, and everything back in the end."""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ps_worker.transport.arena import Arena

NBYTES = 64 * 200
ID = np.dtype(np.uint64)


class ArenaMachine(RuleBasedStateMachine):
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(NBYTES)
        self.alive: dict[int, tuple[int, int]] = {}  # number -> begin, end
        self.arrays: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.uint64]]] = {}
        self.count = 0

    @rule(target=held, words=st.integers(0, 8 * 80))
    def allocate(self, words: int) -> int:
        self.count += 1
        block = self.arena.allocate(8 * words)
        if block is None:
            assert self.arena.times_full > 0
            return -self.count
        assert block.begin % 64 == 0
        assert block.nbytes >= 8 * words
        self.alive[self.count] = block.begin, block.begin + block.nbytes
        array = block.array(0, (words,), ID)
        array[...] = self.count
        self.arrays[self.count] = array
        return self.count

    @rule(number=consumes(held))
    def let_go(self, number: int) -> None:
        self.arrays.pop(number, None)
        self.alive.pop(number, None)

    @rule(number=held)
    def hold_a_view_only(self, number: int) -> None:
        if number in self.arrays:
            self.arrays[number] = self.arrays[number][:]

    @invariant()
    def nothing_overlaps_and_nothing_is_lost(self) -> None:
        places = sorted(self.alive.values())
        assert all([before[1] <= after[0] for before, after in pairwise(places)])
        assert self.arena.free_bytes() == NBYTES - sum([end - begin for begin, end in places])
        assert all([(array == number).all() for number, array in self.arrays.items()])

    def teardown(self) -> None:
        self.arrays.clear()
        self.alive.clear()
        assert self.arena.free_bytes() == NBYTES
        assert self.arena.allocate(NBYTES) is not None


TestArena = ArenaMachine.TestCase

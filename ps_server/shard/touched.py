"""Which slots of a table were written to since its last save: what an increment has to have.

    off, base unknown ──begin──> on ──settle(True)───> on: what was taken is forgotten
                                    ──settle(False)──> on: what was taken is back, and the base is as unknown as it was

Words are uint64[k]: slot s is bit s % 64 of word s // 64. A bit costs an eighth of a byte a row. There may be bits of rows that did not
change, and of slots that are free; never one too few.
"""

import numpy as np
import numpy.typing as npt

from ps_server.shard.records import Slots
from sharding.kernel import kernel

Words = npt.NDArray[np.uint64]

WORD_SLOTS = 64
_ONE = np.uint64(1)


def words_for(num_slots: int) -> int:
    """Return how many words have a bit for each of so many slots."""
    return -(-num_slots // WORD_SLOTS)


class Touched:
    """The slots touched since the save that the next increment stands on: its base. Off, at no cost, before the first one begins."""

    def __init__(self) -> None:
        self._is_on = False
        self._has_base = False
        self._words: Words = np.zeros(0, dtype=np.uint64)
        self._taken: Words | None = None  # by a save that nobody has settled yet
        self._had_base = False  # when that save began

    @property
    def nbytes(self) -> int:
        """Return the bytes of all bits."""
        return self._words.nbytes + (0 if self._taken is None else self._taken.nbytes)

    def mark(self, slots: Slots, num_slots: int) -> None:
        """Note that `slots` int32[n] are written to, all of them below `num_slots`."""
        if self._is_on:
            self._make_room(words_for(num_slots))
            _mark(self._words, slots)

    def lose_base(self) -> None:
        """Make the next save a full one: something happened that an increment does not tell, as the loss of rows."""
        self._has_base = False

    def begin(self, incremental: bool, num_slots: int) -> Words | None:
        """Begin a save of this instant: return the slots that it has to have, of `num_slots`; None: it is full, and has all of them.

        `incremental`: an increment would do, if the base is known. The words stay ours; whoever asked does not change them. A save before
        it that was not settled counts as failed.
        """
        self.settle(False)
        self._make_room(words_for(num_slots))
        taken, self._words = self._words[: words_for(num_slots)], np.zeros(0, dtype=np.uint64)
        is_full = not (incremental and self._has_base)
        self._taken, self._had_base = taken, self._has_base
        self._is_on = self._has_base = True
        return None if is_full else taken

    def settle(self, is_committed: bool) -> None:
        """Hear of the last save: it is complete, so the next increment stands on it; or it failed, so that is to have all of its bits too.

        Without a save that waits for it, nothing is done.
        """
        if self._taken is not None and not is_committed:
            self._make_room(self._taken.size)
            self._words[: self._taken.size] |= self._taken
            self._has_base = self._has_base and self._had_base
        self._taken = None

    def count_as_saved(self) -> None:
        """Take the rows, as they are now, for those of the save that the next increment stands on: they were loaded from it."""
        self._is_on = self._has_base = True
        self._words, self._taken = np.zeros(0, dtype=np.uint64), None

    def _make_room(self, num_words: int) -> None:
        if num_words > self._words.size:
            words = np.zeros(max(num_words, 2 * self._words.size), dtype=np.uint64)
            words[: self._words.size] = self._words
            self._words = words


@kernel
def _mark(words: Words, slots: Slots) -> None:
    """Set the bit of each slot."""
    for i in range(slots.size):
        words[slots[i] >> 6] |= _ONE << np.uint64(slots[i] & 63)

"""How a record lies in a slab, and how it looks to whoever reads or writes one.

    seen                        [ row: dim words, float32             | state columns ]
    stored, dtype float32       [ row: dim words, float32             | state columns ]
    stored, dtype bfloat16      [ row: (dim + 1) // 2 words, two each | state columns ]      number 2k in the first half of word k

State columns are float32 or uint32 words in both. The second half of an odd row's last word is 0.
"""

from abc import ABC, abstractmethod

import numpy as np

from ps_server.shard.bfloat16_records import open_records
from ps_server.shard.records import Records, Slots, gather
from sharding.arrays import aligned_rows


class RecordLayout(ABC):
    """Records of `dim` numbers and `state_words` more."""

    def __init__(self, dim: int, state_words: int) -> None:
        self.dim = dim
        self.state_words = state_words

    @property
    def width(self) -> int:
        """Return the words of a record as it is seen."""
        return self.dim + self.state_words

    @property
    def stored_width(self) -> int:
        """Return the words of a record as it is stored."""
        return self.row_words + self.state_words

    @property
    @abstractmethod
    def row_words(self) -> int:
        """Return the words of a stored row: state columns begin there."""

    @abstractmethod
    def read(self, records: Records, slots: Slots, out: Records) -> None:
        """Write the stored records in `slots` int32[n] to `out` float32[n, dim or width] as they are seen; where one is -1, leave it."""

    @abstractmethod
    def opened(self, stored: Records) -> Records:
        """Return stored records or rows, float32[n, stored_width or row_words], as they are seen; it may be the same array."""


class Float32Layout(RecordLayout):
    """Stored as it is seen."""

    @property
    def row_words(self) -> int:
        return self.dim

    def read(self, records: Records, slots: Slots, out: Records) -> None:
        gather(records, slots, out)

    def opened(self, stored: Records) -> Records:
        return stored


class Bfloat16Layout(RecordLayout):
    """Stored with a row of half the size."""

    @property
    def row_words(self) -> int:
        return (self.dim + 1) // 2

    def read(self, records: Records, slots: Slots, out: Records) -> None:
        open_records(records, slots, self.dim, out)

    def opened(self, stored: Records) -> Records:
        out = aligned_rows(len(stored), self.dim + stored.shape[1] - self.row_words)
        open_records(stored, np.arange(len(stored), dtype=np.int32), self.dim, out)
        return out

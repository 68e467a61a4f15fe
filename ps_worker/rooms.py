"""Where a push lies to be sent without one more copy: in memory that the transport lends, as a frame of the fast lane has it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ps_proto.frames import filled
from ps_proto.requests import Ids
from sharding.wire_format import WireRows

Lend = Callable[[int], NDArray[np.uint8] | None]  # bytes -> so many of them at a multiple of 64, or None; they are given back as garbage


def lends_nothing(nbytes: int) -> None:
    """Lend nothing: where a transport copies what it sends, or sends it from where it lies."""


class Size(NamedTuple):
    """How much room a table needs: for so many rows of `width` elements and, if it `has_ids`, as many ids."""

    rows_count: int
    width: int
    dtype: np.dtype[Any]
    has_ids: bool = True

    @classmethod
    def of(cls, rows_count: int, rows: WireRows, has_ids: bool = True) -> "Size":
        """Return the size of `rows_count` rows such as these."""
        return cls(rows_count, rows.shape[1], rows.dtype, has_ids)

    @property
    def ids_count(self) -> int:
        return self.rows_count if self.has_ids else 0

    @property
    def ids_bytes(self) -> int:
        return filled(8 * self.ids_count)

    @property
    def rows_bytes(self) -> int:
        return filled(self.dtype.itemsize * self.rows_count * self.width)


def rooms(sizes: Sequence[Size], lend: Lend) -> list[tuple[Ids, WireRows]] | None:
    """Return room for the ids uint64[ids_count] and rows dtype[rows_count, width] of each table, or None where none is lent.

    They lie one behind another, each filled up to a multiple of 64 bytes: a lane of shared memory sends arrays that do as they are.
    """
    memory = lend(sum([size.ids_bytes + size.rows_bytes for size in sizes]))
    if memory is None:
        return None
    made, begin = [], 0
    for size in sizes:
        ids: Ids = np.ndarray((size.ids_count,), np.uint64, memory, begin)
        rows: WireRows = np.ndarray((size.rows_count, size.width), size.dtype, memory, begin + size.ids_bytes)
        begin += size.ids_bytes + size.rows_bytes
        made.append((ids, rows))
    return made

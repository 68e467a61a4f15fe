"""Where a push lies to be sent without one more copy: in memory that the transport lends, as a frame of the fast lane has it."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ps_proto.frames import filled
from ps_proto.requests import Ids, Rows

Lend = Callable[[int], NDArray[np.uint8] | None]  # bytes -> so many of them at a multiple of 64, or None; they are given back as garbage


def lends_nothing(nbytes: int) -> None:
    """Lend nothing: where a transport copies what it sends, or sends it from where it lies."""


def rooms(sizes: Sequence[tuple[int, int]], lend: Lend) -> list[tuple[Ids, Rows]] | None:
    """Return room for the ids uint64[n] and rows float32[n, width] of each table's size (n, width), or None where none is lent.

    They lie one behind another, each filled up to a multiple of 64 bytes: a lane of shared memory sends arrays that do as they are.
    """
    memory = lend(sum([filled(8 * n) + filled(4 * n * width) for n, width in sizes]))
    if memory is None:
        return None
    made, begin = [], 0
    for n, width in sizes:
        ids: Ids = np.ndarray((n,), np.uint64, memory, begin)
        begin += filled(ids.nbytes)
        rows: Rows = np.ndarray((n, width), np.float32, memory, begin)
        begin += filled(rows.nbytes)
        made.append((ids, rows))
    return made

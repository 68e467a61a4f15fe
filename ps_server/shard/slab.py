"""The memory that rows lie in.

    slot        ids            records
    0           id    [ row | state columns ]   `width` words, as record_layout.py says
    1           id    [ ...                 ]

The mapping is reserved once and never moves: a page of it costs memory from the first time it is written to. So a table grows without
copying, and an array over it stays valid for as long as anyone holds it. Ids and records are read at random, where each page of 4 KiB is
one more miss: so from some size on they lie in huge pages, where the system has any.
"""

import contextlib
import gc
import mmap

import numpy as np
import numpy.typing as npt

ROWS_MAX = 2**31 - 1  # a slot, counted from 1, fits 31 bits of an index entry
RESERVED_BYTES_MAX = 256 << 30  # of address space: hundreds of such tables fit in one process

_MAP_NORESERVE = 0x4000  # Linux: promise no memory for the reservation; the mmap module has no name for it
_PAGE_BYTES = mmap.PAGESIZE
_SMALL_BYTES = 4 << 20  # of ids, and of records, before huge pages: a small table takes what it needs


class Slab:
    """Records of `width` float32 words, one after another, and the id of each.

    ids      uint64[capacity]           the id whose row lies in a slot; SlotIndex keeps it
    records  float32[capacity, width]   row and state columns; zero where nobody wrote
    words    uint32[capacity, width]    the same memory, for state columns that count
    """

    def __init__(self, width: int, rows_max: int | None = None) -> None:
        """Reserve room for `rows_max` records, or for as many as the limits above allow; less where the machine refuses."""
        capacity = min(ROWS_MAX, RESERVED_BYTES_MAX // (8 + 4 * width), ROWS_MAX if rows_max is None else max(rows_max, 1))
        mapping = _try_reserve(capacity, width)
        if mapping is None:
            gc.collect()  # tables in unreachable cycles hold address space
            mapping = _try_reserve(capacity, width)
        while mapping is None:
            capacity //= 2
            mapping = _try_reserve(capacity, width)
        self.capacity = capacity
        self.width = width
        self.ids: npt.NDArray[np.uint64] = np.frombuffer(mapping, dtype=np.uint64, count=capacity)
        words = np.frombuffer(mapping, dtype=np.uint32, count=capacity * width, offset=_ids_bytes(capacity))
        self.words: npt.NDArray[np.uint32] = words.reshape(capacity, width)
        self.records: npt.NDArray[np.float32] = self.words.view(np.float32)


def _ids_bytes(capacity: int) -> int:
    return -(-8 * capacity // _PAGE_BYTES) * _PAGE_BYTES


def _try_reserve(capacity: int, width: int) -> mmap.mmap | None:
    if capacity == 0:
        raise MemoryError("The machine refuses to reserve a single page of address space for a table.")
    try:
        mapping = mmap.mmap(-1, _ids_bytes(capacity) + 4 * capacity * width, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except OSError:
        return None
    for begin, end in ((0, _ids_bytes(capacity)), (_ids_bytes(capacity), len(mapping))):
        if end - begin > _SMALL_BYTES:
            with contextlib.suppress(OSError):  # a kernel built without them
                mapping.madvise(mmap.MADV_HUGEPAGE, begin + _SMALL_BYTES, end - begin - _SMALL_BYTES)
    return mapping

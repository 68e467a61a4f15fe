"""How the rows of a table lie in a request or a reply: as float32, as bfloat16, or as int8 with a scale for each row.

    float32     float32[n, dim]         4 dim bytes a row
    bfloat16    uint16[n, dim]          2 dim bytes: the upper halves of the float32s
    int8        uint8[n, 4 + dim]       4 + dim bytes: the scale, a little-endian float32, then dim two's complements of -127 to 127

An array's dtype says which of them it is. wire_rows.py has the kernels that go from one to the other.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WireRows = NDArray[Any]  # float32, uint16 or uint8, C-contiguous, of a shape as above


@dataclass(frozen=True, slots=True)
class WireFormat:
    """One of the three. `beside`: elements of a row's array that are none of its numbers."""

    name: str
    dtype: np.dtype[Any]
    beside: int = 0

    def shape(self, rows_count: int, dim: int) -> tuple[int, int]:
        """Return the shape of the array that holds so many rows."""
        return rows_count, self.beside + dim

    def dim(self, rows: WireRows) -> int:
        """Return how many numbers a row of the array holds."""
        return int(rows.shape[1]) - self.beside

    def row_size_bytes(self, dim: int) -> int:
        """Return the bytes of a row."""
        return self.dtype.itemsize * (self.beside + dim)


FLOAT32 = WireFormat("float32", np.dtype("<f4"))
BFLOAT16 = WireFormat("bfloat16", np.dtype("<u2"))
INT8 = WireFormat("int8", np.dtype("u1"), beside=4)
FORMATS = {form.name: form for form in (FLOAT32, BFLOAT16, INT8)}
_BY_DTYPE = {form.dtype: form for form in FORMATS.values()}


def format_of(rows: WireRows) -> WireFormat:
    """Return the format of an array of rows; what is of no dtype of theirs counts as float32."""
    return _BY_DTYPE.get(rows.dtype, FLOAT32)

"""Rows into the bytes that travel, and back; wire_format.py has the picture.

    bfloat16    each number to the nearest, of two as near to the even one; beyond the greatest it is the greatest (bfloat16.py)
    int8        scale = max |x| / 127 of the row, and each number the nearest whole multiple of it, of two as near the even one

So an int8 is off by half a scale at most, and the greatest number of a row never becomes 0, however small it is. A row of zeros has the
scale 0. Two corners: the scale of any other row is at least the least normal float32, and at most the greatest whose 127th multiple is
finite. A row that is not finite (the client refuses to send one, but a table may hold one) reads as nan everywhere: no scale fits it.

After the row-wise quantization of Guan et al., "Post-Training 4-bit Quantization on Embedding Tables", 2019, whose rows have a bias beside
the scale; ours are symmetric, so that 0 stays 0: gradients are full of it. Only + - * / in a fixed order (R16).
"""

import numpy as np
import numpy.typing as npt

from sharding.arrays import aligned_rows, empty_aligned, read_only
from sharding.bfloat16 import HALF, nearest
from sharding.kernel import kernel
from sharding.partition import scatter_rows
from sharding.wire_format import BFLOAT16, FLOAT32, FORMATS, WireRows, format_of

Rows = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Halves = npt.NDArray[np.uint16]
Bytes = npt.NDArray[np.uint8]
Multiples = npt.NDArray[np.int8]
Indexes = npt.NDArray[np.int64]

_SCALE_BYTES = 4
_MAGNITUDE = np.uint32(0x7FFF_FFFF)
_INFINITY = np.uint32(0x7F80_0000)
_MOST = np.float32(127.0)
_SCALE_MIN = np.float32(2.0**-126)
_SCALE_MAX = np.float32(float.fromhex("0x1.020406p+121"))  # 127 times the next one is an infinity
# From 2**23 to 2**24 on a float32 has no fraction, so an addition rounds to a whole number, to the even one of two as near.
_WHOLE = np.float32(1.5 * 2.0**23)
_ONE = np.float32(1.0)
_NAN_BITS = np.uint32(0x7FC0_0000)
_ALL, _NONE = np.uint32(0xFFFF_FFFF), np.uint32(0)
_BYTE = np.uint32(0xFF)
_BYTE_1, _BYTE_2, _BYTE_3 = np.uint32(8), np.uint32(16), np.uint32(24)  # shifts


def encode_rows(rows: Rows, name: str) -> WireRows:
    """Return float32[n, dim], C-contiguous, in the format `name`; as float32 they are the same array."""
    form = FORMATS[name]
    if form is FLOAT32:
        return rows
    out = empty_aligned(form.shape(*rows.shape), form.dtype)
    encode_to(rows, out)
    return out


def encode_to(rows: Rows, out: WireRows) -> None:
    """Write float32[n, dim], C-contiguous, to `out`, an array of bfloat16 or int8 for as many rows of that dim."""
    words = read_only(rows.view(np.uint32))
    if format_of(out) is BFLOAT16:
        _encode_bfloat16(words, out)
    else:
        _encode_int8(words, out, out.view(np.int8))


def decode_rows(rows: WireRows) -> Rows:
    """Return float32[n, dim]: the same array where it is one, else a fresh one that begins at a multiple of 64 bytes."""
    if format_of(rows) is FLOAT32:
        return rows
    out = aligned_rows(len(rows), format_of(rows).dim(rows))
    decode_to(rows, np.arange(len(rows)), out)
    return out


def decode_to(rows: WireRows, order: Indexes, out: Rows) -> None:
    """Write row i of `rows`, of any format, to row `order[i]` of `out`; ValueError for shapes that do not fit.

    order  int64[m].     out  float32[n, dim], its other rows are left as they are.
    """
    form = format_of(rows)
    if form is FLOAT32:
        scatter_rows(rows, order, out)
        return
    shape = form.shape(order.size, out.shape[1])
    if rows.shape != shape:
        raise ValueError(f"The part is {rows.dtype}{list(rows.shape)}, but must be {form.dtype}{list(shape)}.")
    rows, order = read_only(rows), read_only(order)
    if form is BFLOAT16:
        fits = _decode_bfloat16(rows, order, out.view(np.uint32))
    else:
        fits = _decode_int8(rows, read_only(rows.view(np.int8)), order, out)
    if not fits:
        raise ValueError(f"The order has an index beyond {len(out)} rows.")


@kernel
def _encode_bfloat16(words: Words, out: Halves) -> None:
    for i in range(words.shape[0]):
        row = words[i]
        target = out[i]
        for column in range(row.size):
            target[column] = nearest(row[column])


@kernel
def _decode_bfloat16(rows: Halves, order: Indexes, out: Words) -> bool:
    """Copy until an index is out of range; return whether none was."""
    for i in range(order.size):
        if order[i] < 0 or order[i] >= out.shape[0]:
            return False
        row = rows[i]
        target = out[order[i]]
        for column in range(row.size):
            target[column] = np.uint32(np.uint32(row[column]) << HALF)
    return True


@kernel
def _encode_int8(words: Words, out: Bytes, multiples: Multiples) -> None:
    """`multiples` is the memory of `out`."""
    for i in range(words.shape[0]):
        row = words[i]
        greatest = _NONE
        for column in range(row.size):  # magnitudes order as whole numbers as they do as floats
            greatest = max(greatest, np.uint32(row[column] & _MAGNITUDE))
        is_finite = greatest < _INFINITY
        divisor = _bounded(np.float32(np.uint32(greatest).view(np.float32) / _MOST)) if is_finite else _ONE
        kept = _ALL if is_finite else _NONE  # by a mask, not by a branch, so that the loop vectorises
        scale = _NAN_BITS if not is_finite else (_NONE if greatest == _NONE else np.float32(divisor).view(np.uint32))
        out[i, 0] = np.uint8(scale & _BYTE)
        out[i, 1] = np.uint8((scale >> _BYTE_1) & _BYTE)
        out[i, 2] = np.uint8((scale >> _BYTE_2) & _BYTE)
        out[i, 3] = np.uint8(scale >> _BYTE_3)
        target = multiples[i, _SCALE_BYTES:]
        for column in range(row.size):
            number = np.uint32(row[column] & kept).view(np.float32)
            target[column] = np.int8(np.float32(np.float32(number / divisor) + _WHOLE) - _WHOLE)


@kernel
def _bounded(scale: np.float32) -> np.float32:
    return min(max(scale, _SCALE_MIN), _SCALE_MAX)


@kernel
def _decode_int8(rows: Bytes, multiples: Multiples, order: Indexes, out: Rows) -> bool:
    """As `_decode_bfloat16`; `multiples` is the memory of `rows`."""
    for i in range(order.size):
        if order[i] < 0 or order[i] >= out.shape[0]:
            return False
        low = np.uint32(rows[i, 0]) | np.uint32(np.uint32(rows[i, 1]) << _BYTE_1)
        high = np.uint32(np.uint32(rows[i, 2]) << _BYTE_2) | np.uint32(np.uint32(rows[i, 3]) << _BYTE_3)
        scale = np.uint32(low | high).view(np.float32)
        row = multiples[i, _SCALE_BYTES:]
        target = out[order[i]]
        for column in range(row.size):
            target[column] = np.float32(np.float32(row[column]) * scale)
    return True

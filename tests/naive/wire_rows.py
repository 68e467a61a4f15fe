"""Rows as they travel, one number at a time."""

import math
import struct

import numpy as np
import numpy.typing as npt

from naive import bfloat16

Row = npt.NDArray[np.float32]

SCALE_MIN = 2.0**-126
SCALE_MAX = float.fromhex("0x1.020406p+121")


def encode(row: Row, wire: str) -> bytes:
    """Return the bytes of a row."""
    if wire == "float32":
        return struct.pack(f"<{row.size}f", *row.tolist())
    if wire == "bfloat16":
        return struct.pack(f"<{row.size}H", *[bfloat16.nearest(float(value)) for value in row])
    scale = scale_of(row)
    if not math.isfinite(scale):
        return struct.pack("<I", 0x7FC0_0000) + bytes(row.size)
    steps = [0 if scale == 0 else round(float(value / np.float32(scale))) for value in row]  # Python's round is to the even one
    return struct.pack(f"<f{row.size}b", scale, *steps)


def scale_of(row: Row) -> float:
    """Return the scale of a row in int8; nan where it is not finite."""
    if not all(math.isfinite(value) for value in row):
        return math.nan
    greatest = max((abs(value) for value in row), default=np.float32(0))
    return min(max(float(greatest / np.float32(127)), SCALE_MIN), SCALE_MAX) if greatest else 0.0


def decode(data: bytes, wire: str) -> Row:
    """Return the row that some bytes stand for."""
    if wire == "float32":
        return np.array(struct.unpack(f"<{len(data) // 4}f", data), np.float32)
    if wire == "bfloat16":
        return np.array([bfloat16.float_of(half) for half in struct.unpack(f"<{len(data) // 2}H", data)], np.float32)
    scale, *steps = struct.unpack(f"<f{len(data) - 4}b", data)
    with np.errstate(over="ignore"):  # a peer may send any scale
        return np.array([np.float32(step) * np.float32(scale) for step in steps], np.float32)


def travelled(row: Row, wire: str) -> Row:
    """Return a row as it arrives."""
    return decode(encode(row, wire), wire)

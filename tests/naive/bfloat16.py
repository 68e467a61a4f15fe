"""bfloat16 and the bits it is rounded with, in plain Python: one number at a time."""

import math
import struct

import numpy as np
import numpy.typing as npt

from naive.sharding import hash_id, mix64

Row = npt.NDArray[np.float32]

GREATEST = 0x7F7F


def bits_of(value: float) -> int:
    """Return the bits of a float32."""
    return int.from_bytes(struct.pack("<f", value), "little")


def float_of(upper: int) -> float:
    """Return what a bfloat16's 16 bits stand for."""
    return float(struct.unpack("<f", (upper << 16).to_bytes(4, "little"))[0])


def neighbours(value: float) -> tuple[int, int]:
    """Return the bfloat16s that a finite float32 lies between, as bits: the one towards 0, and the next, as far as there is one."""
    lower = bits_of(value) >> 16
    return lower, lower + (bits_of(value) & 0xFFFF != 0 and lower & 0x7FFF < GREATEST)


def nearest(value: float) -> int:
    """Return the nearest bfloat16's bits; of two as near the even one. Beyond the greatest it is the greatest."""
    if not math.isfinite(value):
        return bits_of(value) >> 16
    lower, upper = neighbours(value)
    below, above = abs(value - float_of(lower)), abs(float_of(upper) - value)
    return lower if below < above or (below == above and lower % 2 == 0) else upper


def drawn(value: float, draw: int) -> int:
    """Return the bits of the neighbour that a draw of 0 to 65,535 chooses: up in as many of 65,536 as the distance says."""
    if not math.isfinite(value):
        return bits_of(value) >> 16
    lower, upper = neighbours(value)
    return upper if draw >= 65_536 - (bits_of(value) & 0xFFFF) else lower


def draws_of(seed: int, name: str, id: int, step: int, rank: int, dim: int) -> list[int]:
    """Return the draws of a row."""
    key = mix64(mix64(mix64(seed ^ 0x6A09E667F3BCC909) ^ step % 2**64) ^ rank % 2**64)
    stream = mix64(hash_id(name, id) ^ key)
    low, high = stream % 2**32, stream >> 32
    draws = []
    for column in range(dim):
        bits = (low + column * 0x9E3779B9) % 2**32
        bits = (bits ^ bits >> 16) * 0x7FEB352D % 2**32 ^ high
        bits = (bits ^ bits >> 15) * 0x846CA68B % 2**32
        draws.append((bits ^ bits >> 16) >> 16)
    return draws


def nearest_row(row: Row) -> Row:
    """Return the row as bfloat16 has it."""
    return np.array([float_of(nearest(float(value))) for value in row], dtype=np.float32)


def drawn_row(row: Row, draws: list[int]) -> Row:
    """Return the row, each number rounded by its draw."""
    return np.array([float_of(drawn(float(value), draw)) for value, draw in zip(row, draws, strict=True)], dtype=np.float32)


def packed_row(row: Row) -> Row:
    """Return a row of bfloat16s as it lies in a record: two numbers in a word, an odd one out beside a 0."""
    upper = [bits_of(float(value)) >> 16 for value in row] + [0] * (row.size % 2)
    return np.array(upper, dtype=np.uint16).view(np.float32)

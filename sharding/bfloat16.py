"""bfloat16: the upper half of a float32's bits, and how a float32 becomes one.

    float32     [ sign 1 | exponent 8 | 7 | 16 ]
    bfloat16    [ sign 1 | exponent 8 | 7 ]          what it holds is a float32 whose lower 16 bits are 0

Both ways of rounding add a number of 16 bits to the lower half and cut the lower half off: half of the last bit kept, which rounds to the
nearest, or random bits, which round up as often as what is cut off says (Gupta et al., "Deep learning with limited numerical precision",
ICML 2015). A number that bfloat16 has stays what it is either way.
"""

import numpy as np
import numpy.typing as npt

from sharding.kernel import kernel

Rows = npt.NDArray[np.float32]
Places = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint32]

_SIGN = np.uint32(0x8000_0000)
_MAGNITUDE = np.uint32(0x7FFF_FFFF)
_INFINITY = np.uint32(0x7F80_0000)
_GREATEST = np.uint32(0x7F7F_FFFF)  # cut off: the greatest finite bfloat16
_QUIET = np.uint32(0x0040_0000)
HALF = np.uint32(16)  # a shift
_BELOW_HALF = np.uint32(0x7FFF)
_ONE = np.uint32(1)


@kernel
def cut(word: np.uint32, added: np.uint32) -> np.uint16:
    """Return the bfloat16 of a float32's bits, `added` < 65,536 to its lower half first.

    What is finite stays finite: beyond the greatest it is the greatest. An infinity and a nan stay one.
    """
    magnitude = np.uint32(word & _MAGNITUDE)
    finite = min(np.uint32(magnitude + added), _GREATEST)
    special = np.uint32(magnitude | _QUIET) if magnitude > _INFINITY else magnitude
    kept = finite if magnitude < _INFINITY else special
    return np.uint16(np.uint32(kept | np.uint32(word & _SIGN)) >> HALF)


@kernel
def nearest(word: np.uint32) -> np.uint16:
    """Return the nearest bfloat16 of a float32's bits; of two as near the even one."""
    return cut(word, np.uint32(_BELOW_HALF + np.uint32((word >> HALF) & _ONE)))


@kernel
def _round(words: Words, places: Places, dim: int) -> None:
    for i in range(places.size):
        row = words[places[i], :dim]
        for column in range(dim):
            row[column] = np.uint32(np.uint32(nearest(row[column])) << HALF)


def round_rows(rows: Rows, places: Places, dim: int) -> None:
    """Round the first `dim` columns of rows[places] float32[m, at least dim] to what bfloat16 has, to the nearest."""
    _round(rows.view(np.uint32), places, dim)

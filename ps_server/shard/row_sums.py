"""The one reduction over a row that the server has, so that every norm and mean of a row has the same bits everywhere (R16)."""

import numpy as np

from ps_server.shard.records import Rows
from sharding.kernel import kernel

LANES = 8


@kernel
def sum_of_squares(row: Rows) -> float:
    """Return the sum of the squares of `row` float32[dim], as a float64.

    Number j of the row goes to lane j mod 8, in ascending order; what is left behind the last eight makes a ninth, in ascending order too.
    The lanes are added as ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)), then the ninth. The square of a float32 is exact in float64 and
    65,536 of the greatest are no infinity there, so neither a tiny nor a huge row loses its norm.
    """
    lane0 = lane1 = lane2 = lane3 = lane4 = lane5 = lane6 = lane7 = 0.0  # one name each: an array would live in memory
    end = row.size - row.size % LANES
    for begin in range(0, end, LANES):
        part = row[begin : begin + LANES]
        lane0 += np.float64(part[0]) * np.float64(part[0])
        lane1 += np.float64(part[1]) * np.float64(part[1])
        lane2 += np.float64(part[2]) * np.float64(part[2])
        lane3 += np.float64(part[3]) * np.float64(part[3])
        lane4 += np.float64(part[4]) * np.float64(part[4])
        lane5 += np.float64(part[5]) * np.float64(part[5])
        lane6 += np.float64(part[6]) * np.float64(part[6])
        lane7 += np.float64(part[7]) * np.float64(part[7])
    rest = 0.0
    for column in range(end, row.size):
        rest += np.float64(row[column]) * np.float64(row[column])
    return ((lane0 + lane4) + (lane2 + lane6)) + ((lane1 + lane5) + (lane3 + lane7)) + rest

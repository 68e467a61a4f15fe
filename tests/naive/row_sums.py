"""The sum of a row's squares, lane by lane."""

import numpy as np
import numpy.typing as npt


def sum_of_squares(row: npt.NDArray[np.float32]) -> float:
    """Return it as the server adds it up: eight lanes, then what is left behind the last eight."""
    squares = [float(number) * float(number) for number in row]
    end = len(squares) - len(squares) % 8
    lanes = [0.0] * 8
    for place, square in enumerate(squares[:end]):
        lanes[place % 8] += square
    rest = 0.0
    for square in squares[end:]:
        rest += square
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[place] + lanes[place + half] for place in range(half)]
    return lanes[0] + rest

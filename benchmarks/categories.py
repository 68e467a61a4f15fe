"""The ids of W5's samples: one from each of 26 categories, drawn by Zipf's law. numpy alone."""

import numpy as np
import numpy.typing as npt

CATEGORIES, DIM = 26, 16
IDS, EXPONENT = 200_000, 1.1  # of each category


class Popularity:
    """Which ids of a category are drawn how often; `rng` chooses which are the popular ones, in each category the same."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._shares = np.cumsum(np.arange(1, IDS + 1) ** -EXPONENT)
        self._shuffled = rng.permutation(IDS)
        self._first = np.arange(CATEGORIES)[:, None] * IDS

    def draw(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
        """Return the ids of `size` samples, int64[26, size], of each category others."""
        ranks = np.searchsorted(self._shares, rng.random((CATEGORIES, size)) * self._shares[-1])
        ids: npt.NDArray[np.int64] = (self._shuffled[ranks] + self._first).astype(np.int64)
        return ids

"""The ids of a rank's batches, each once, as a training loop has them after looking for repeats."""

import numpy as np

from benchmarks.categories import Popularity
from ps_proto.requests import Ids

POOL = 8  # different batches of a rank, used in turn


def id_batches(samples: int, seed: int, rank: int) -> list[Ids]:
    """Return POOL batches, each the ids uint64[n] of so many samples of W5. All ranks draw by the same popularity."""
    popularity, rng = Popularity(np.random.default_rng(seed)), np.random.default_rng([seed, rank])
    return [np.unique(popularity.draw(rng, samples).view(np.uint64)) for _ in range(POOL)]

"""What the rows must be after all pushes, to the bit.

Every gradient is 1, so Adagrad's result does not depend on the order of the pushes: a row that n of them touched is the same number in all
its columns, and no two n have the same. So rows show whether each push was applied once.
"""

import numpy as np
import numpy.typing as npt

import ps_worker as ps
from benchmarks.emulated.batches import POOL
from ps_proto.requests import Ids

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


def due_after_pushes(batches: list[list[Ids]], steps: int, adagrad: ps.Adagrad) -> tuple[Ids, Values]:
    """Return the ids that any rank pushed, ascending, and their values float32[n], where each push is applied as it arrives."""
    ids, counts = _counted([batch for pool in batches for batch in pool], [_times(steps, k) for pool in batches for k in range(len(pool))])
    row, state = np.float32(0.0), np.float32(0.0)
    after = np.zeros(counts.max(initial=0) + 1, np.float32)
    for count in range(1, after.size):
        state += np.float32(1.0)
        row -= np.float32(adagrad.lr) / (np.sqrt(state) + np.float32(adagrad.eps))
        after[count] = row
    return ids, after[counts]


def due_after_steps(batches: list[list[Ids]], steps: int, adagrad: ps.Adagrad) -> tuple[Ids, Values]:
    """Return the same where each step's mean over the ranks is applied once (synchronous mode)."""
    ids = np.unique(np.concatenate([batch for pool in batches for batch in pool]))
    rows, state = np.zeros(ids.size, np.float32), np.zeros(ids.size, np.float32)
    for step in range(steps):
        touched, counts = _counted([pool[step % POOL] for pool in batches], [1] * len(batches))
        places = np.searchsorted(ids, touched)
        mean = counts.astype(np.float32) / np.float32(len(batches))
        state[places] += mean * mean
        rows[places] -= np.float32(adagrad.lr) * mean / (np.sqrt(state[places]) + np.float32(adagrad.eps))
    used = np.unique(np.concatenate([batch for pool in batches for batch in pool[:steps]]))
    return used, rows[np.searchsorted(ids, used)]


def _times(steps: int, position: int) -> int:
    """Return how often the batch at this position of a pool is used in so many steps."""
    return len(range(position, steps, POOL))


def _counted(batches: list[Ids], times: list[int]) -> tuple[Ids, Counts]:
    """Return the ids of the batches that are used at all, ascending, and how often each is pushed."""
    used = [(batch, many) for batch, many in zip(batches, times, strict=True) if many]
    ids, places = np.unique(np.concatenate([batch for batch, _ in used]), return_inverse=True)
    weights = np.repeat([many for _, many in used], [batch.size for batch, _ in used])
    counts = np.zeros(ids.size, np.int64)
    np.add.at(counts, places, weights)
    return ids, counts

"""The model of W5 and its batches: a DLRM with 13 numbers and 26 categories, whose ids are drawn by Zipf's law."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.categories import CATEGORIES, DIM, Popularity

DENSE = 13
POOL = 16  # different batches, used in turn


@dataclass(frozen=True)
class Batch:
    """counts float32[B, 13]; ids int64[26, B], of each category others; labels float32[B]."""

    counts: Tensor
    ids: Tensor
    labels: Tensor


def batches(size: int, seed: int, rank: int = 0) -> list[Batch]:
    """Return POOL batches, of each rank others. All ranks draw by the same popularity."""
    popularity, rng = Popularity(np.random.default_rng(seed)), np.random.default_rng([seed, rank])
    drawn = [popularity.draw(rng, size) for _ in range(POOL)]
    return [
        Batch(
            torch.from_numpy(rng.standard_normal((size, DENSE), dtype=np.float32)),
            torch.from_numpy(ids),
            torch.from_numpy((rng.random(size) < 0.3).astype(np.float32)),
        )
        for ids in drawn
    ]


def endless(pool: list[Batch]) -> Iterator[Batch]:
    """Yield the batches again and again."""
    while True:
        yield from pool


class Layers(nn.Module):
    """All but the embeddings: MLPs of 13-64-16 and 432-256-64-1."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        width = DIM * (CATEGORIES + 1)
        self.top = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, counts: Tensor, embedded: Tensor) -> Tensor:
        """Return a logit for each of float32[B, 13] and float32[B, 26 * 16]."""
        logits: Tensor = self.top(torch.cat([self.bottom(counts), embedded], dim=1))
        return logits.squeeze(1)

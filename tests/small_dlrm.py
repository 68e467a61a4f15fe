"""A small DLRM (Naumov et al., arXiv 1906.00091) with exchangeable bags, torch's bags for it, and the batches of a planted log."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

DIM, ROWS, COUNTS = 4, 12, 3
HIDDEN = 64  # so that the dense parameters are several blocks
FEATURES = {"C1": "C1", "C2": "shared", "C3": "shared"}


class PlainBags(nn.Module):
    """What ps.nn.EmbeddingBagCollection does, by one torch.nn.EmbeddingBag for each table."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({table: nn.EmbeddingBag(ROWS, DIM, mode="sum") for table in dict.fromkeys(FEATURES.values())})

    def weight(self, table: str) -> Tensor:
        return cast(nn.EmbeddingBag, self.tables[table]).weight

    def forward(self, sparse: Mapping[str, Tensor]) -> Tensor:
        """Return float32[B, DIM * features] for ids[B, n] of each feature."""
        return torch.cat([self.tables[table](sparse[feature]) for feature, table in FEATURES.items()], dim=1)


class SmallDlrm(nn.Module):
    """Bottom layers, the dot products of all pairs of features, top layers; returns logits [B]."""

    def __init__(self, bags: nn.Module) -> None:
        super().__init__()
        self.bags = bags
        self.bottom = nn.Sequential(nn.Linear(COUNTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
        vectors = 1 + len(FEATURES)
        self.top = nn.Sequential(nn.Linear(DIM + vectors * (vectors - 1) // 2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self.register_buffer("pairs", torch.triu_indices(vectors, vectors, 1))

    def forward(self, counts: Tensor, sparse: Mapping[str, Tensor]) -> Tensor:
        bottom = self.bottom(counts)
        vectors = torch.cat([bottom, self.bags(sparse)], dim=1).reshape(len(counts), -1, DIM)
        rows, columns = cast(Tensor, self.pairs)
        dots = (vectors @ vectors.transpose(1, 2))[:, rows, columns]
        return cast(Tensor, self.top(torch.cat([bottom, dots], dim=1))).squeeze(1)


@dataclass(frozen=True)
class Batch:
    """counts float32[B, COUNTS], ids int64[B, 2] of each feature, labels float32[B]."""

    counts: Tensor
    sparse: dict[str, Tensor]
    labels: Tensor

    def part(self, rank: int, world_size: int) -> "Batch":
        """Return a rank's part of the samples."""
        mine = slice(rank, None, world_size)
        return Batch(self.counts[mine], {feature: ids[mine] for feature, ids in self.sparse.items()}, self.labels[mine])


def batch_of(step: int, size: int) -> Batch:
    """Return the batch of a step. Each one has every id of every table, so that no optimizer has idle rows to treat in its own way."""
    generator = torch.Generator().manual_seed(1_000 + step)
    counts = torch.rand(size, COUNTS, generator=generator)
    sparse = {feature: torch.randint(0, ROWS, (size, 2), generator=generator) for feature in FEATURES}
    for ids in sparse.values():
        ids[:ROWS, 0] = torch.randperm(ROWS, generator=generator)
    chance = torch.sigmoid(4 * counts[:, 0] - 2 + (sparse["C1"][:, 0] % 3 - 1))
    return Batch(counts, sparse, torch.bernoulli(chance, generator=generator))

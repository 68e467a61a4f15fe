"""The plain torch modules that stand in for ours once a model is for serving: no cluster, no client, and torch.jit.script takes them.

ids     int64[n], ascending                 a uint64 id is taken bit for bit: torch orders and searches no uint64
weight  float[n + 2, dim]                   their rows, then zeros for an unknown id, then zeros for padding, which no bag counts
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RowLookup(nn.Module):
    """Where in `weight` each id's row is."""

    ids: Tensor
    weight: Tensor

    def __init__(self, ids: Tensor, weight: Tensor, padding: int | None = None) -> None:
        super().__init__()
        self.register_buffer("ids", ids)
        self.register_buffer("weight", weight)
        self.padding = padding

    def places(self, given: Tensor) -> Tensor:
        """Return int64 of the shape of `given`, ids of any integer dtype: an index of `weight` for each."""
        wanted = given.to(device=self.ids.device, dtype=torch.int64).contiguous()
        rows = self.ids.numel()
        if rows == 0:
            places = torch.full_like(wanted, rows)
        else:
            found = torch.searchsorted(self.ids, wanted).clamp(max=rows - 1)
            places = torch.where(self.ids[found] == wanted, found, rows)
        padding = self.padding
        if padding is not None:
            places = torch.where(wanted == padding, rows + 1, places)
        return places

    def pooled(
        self, values: Tensor, offsets: Tensor | None, weights: Tensor | None, mode: str, include_last_offset: bool = False
    ) -> Tensor:
        """Return float[B, dim] of bags: ids[B, n], or ids[n] with offsets[B] ([B + 1] with `include_last_offset`)."""
        places = self.places(values)
        if offsets is None and places.size(1) == 0:
            return self.weight.new_zeros((places.size(0), self.weight.size(1)))
        if weights is not None:
            weights = weights.to(self.weight).reshape(places.shape)
        if offsets is not None:
            offsets = offsets.to(device=places.device, dtype=torch.int64)
        return F.embedding_bag(
            places,
            self.weight,
            offsets,
            mode=mode,
            per_sample_weights=weights,
            include_last_offset=include_last_offset,
            padding_idx=self.ids.numel() + 1,
        )


class PlainEmbedding(nn.Module):
    """Stands in for ps.nn.Embedding."""

    def __init__(self, lookup: RowLookup, embedding_dim: int) -> None:
        super().__init__()
        self.lookup = lookup
        self.embedding_dim = embedding_dim

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(self.lookup.places(input), self.lookup.weight)


class PlainEmbeddingBag(nn.Module):
    """Stands in for ps.nn.EmbeddingBag."""

    def __init__(
        self,
        lookup: RowLookup,
        embedding_dim: int,
        mode: str,
        include_last_offset: bool,
    ) -> None:
        super().__init__()
        self.lookup = lookup
        self.embedding_dim = embedding_dim
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return self.lookup.pooled(input, offsets, per_sample_weights, self.mode, self.include_last_offset)


class PlainFeature(nn.Module):
    """One feature of a PlainEmbeddingBagCollection: takes its own out of all of them."""

    def __init__(self, name: str, lookup: RowLookup, pooling: str) -> None:
        super().__init__()
        self.name = name
        self.lookup = lookup
        self.pooling = pooling

    def forward(self, sparse: Any) -> Tensor:
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            given = sparse[self.name]
            if isinstance(given, Tensor):
                return self.single(given)
            return self.lookup.pooled(given[0], given[1], given[2] if len(given) > 2 else None, self.pooling)
        # In a script a value has one type, so a dict that has several kinds of features must be declared as what it is.
        if torch.jit.isinstance(sparse, dict[str, Tensor]):
            return self.single(sparse[self.name])
        if torch.jit.isinstance(sparse, dict[str, tuple[Tensor, Tensor]]):
            bags = sparse[self.name]
            return self.lookup.pooled(bags[0], bags[1], None, self.pooling)
        if torch.jit.isinstance(sparse, dict[str, tuple[Tensor, Tensor, Tensor]]):
            weighted = sparse[self.name]
            return self.lookup.pooled(weighted[0], weighted[1], weighted[2], self.pooling)
        if torch.jit.isinstance(sparse, dict[str, Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]]):
            one = sparse[self.name]
            if isinstance(one, Tensor):
                return self.single(one)
            if torch.jit.isinstance(one, tuple[Tensor, Tensor]):
                return self.lookup.pooled(one[0], one[1], None, self.pooling)
            if torch.jit.isinstance(one, tuple[Tensor, Tensor, Tensor]):
                return self.lookup.pooled(one[0], one[1], one[2], self.pooling)
        raise TypeError("features must be a dict from str to ids, to (values, offsets) or to (values, offsets, weights)")

    def single(self, ids: Tensor) -> Tensor:
        """Pool ids[B], one for each sample, or ids[B, n]."""
        return self.lookup.pooled(ids.unsqueeze(1) if ids.dim() == 1 else ids, None, None, self.pooling)


class PlainEmbeddingBagCollection(nn.Module):
    """Stands in for ps.nn.EmbeddingBagCollection."""

    def __init__(self, dim: int, features: dict[str, str], pooling: str, bags: list[PlainFeature]) -> None:
        super().__init__()
        self.dim = dim
        self.features = features
        self.pooling = pooling
        self.bags = nn.ModuleList(bags)

    def forward(self, sparse: Any) -> Tensor:
        pooled: list[Tensor] = []
        for feature in self.bags:
            pooled.append(feature(sparse))  # noqa: PERF401  torch.jit.script unrolls a loop over modules, no comprehension
        return torch.cat(pooled, dim=1)

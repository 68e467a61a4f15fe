"""Bags of ids, and the sum, mean or max of their rows.

values   [7 3 7 9]      offsets [0 3]      bags  {7 3 7} {9}
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids
from ps_worker.nn.pool_kernels import Placed, is_for_kernels, pool_side_by_side
from ps_worker.nn.reading import ids_of
from sharding.partition import Indexes

POOLINGS = ("sum", "mean", "max")


def check_pooling(mode: str) -> None:
    """Raise InvalidRequest for what is no way of pooling."""
    if mode not in POOLINGS:
        raise InvalidRequest("mode of pooling", repr(mode), f"one of {', '.join(POOLINGS)}")


@dataclass(frozen=True)
class Bags:
    """ids uint64[n], offsets int64[B]: bag b is ids[offsets[b]:offsets[b + 1]]. `weights` [n]: of each id; only for sums."""

    ids: Ids
    offsets: Indexes
    weights: Tensor | None = None

    @classmethod
    def of(
        cls, values: Any, offsets: Any = None, weights: Tensor | None = None, what: str = "", mode: str = "sum", has_end: bool = False
    ) -> "Bags":
        """Return the bags of a tensor: ids[B, n] without offsets, ids[n] with offsets[B] (`has_end`: [B + 1])."""
        ids = ids_of(values, f"ids of {what!r}")
        if weights is not None and mode != "sum":
            raise InvalidRequest("per_sample_weights", f"given with mode {mode!r}", "given only with mode 'sum', as in torch")
        if weights is not None and (not isinstance(weights, Tensor) or weights.shape != values.shape):
            got = str(list(weights.shape)) if isinstance(weights, Tensor) else type(weights).__name__
            raise InvalidRequest("per_sample_weights", got, f"a tensor of the shape of the ids, {list(values.shape)}")
        weights = None if weights is None else weights.reshape(-1)
        if offsets is None:
            if values.dim() != 2:
                raise InvalidRequest(f"ids of {what!r}", str(list(values.shape)), "[B, n], or [n] with offsets")
            bags, size = values.shape
            return cls(ids, np.arange(bags, dtype=np.int64) * size, weights)
        if values.dim() != 1:
            raise InvalidRequest(f"ids of {what!r}", str(list(values.shape)), "[n] where offsets are given")
        # A copy: the kernels go by it on the way back too, and do not ask again whether it fits.
        starts = ids_of(offsets, f"offsets of {what!r}").view(np.int64).copy()
        ends = np.append(starts, ids.size)
        is_ended = not has_end or (starts.size > 0 and starts[-1] == ids.size)
        if offsets.dim() != 1 or (starts.size and starts[0] != 0) or (np.diff(ends) < 0).any() or not is_ended:
            got = f"{starts[:8].tolist()}{'…' if starts.size > 8 else ''} of shape {list(offsets.shape)}"
            raise InvalidRequest(f"offsets of {what!r}", got, f"[B], ascending from 0 to {'' if has_end else 'at most '}{ids.size}")
        return cls(ids, starts[:-1] if has_end else starts, weights)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many ids each bag has, int64[B]."""
        return np.diff(np.append(self.offsets, self.ids.size))

    def only(self, kept: npt.NDArray[np.bool_]) -> "Bags":
        """Return the bags without the ids that are not kept, bool[n]."""
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)])
        weights = None if self.weights is None else self.weights[torch.from_numpy(kept).to(self.weights.device)]
        return replace(self, ids=self.ids[kept], offsets=before[self.offsets], weights=weights)


def pool(leaf: Tensor, inverse: Indexes, bags: Bags, mode: str) -> Tensor:
    """Return [B, dim]: the bags' rows, of leaf [unique, dim], pooled; an empty bag is zeros."""
    if is_for_kernels(leaf, bags.weights is not None, mode):
        placed = Placed(inverse, bags.offsets, np.zeros(1, np.int64))
        return pool_side_by_side([placed], [leaf], bags.offsets.size, leaf.shape[1], mode)
    weights = None if bags.weights is None else bags.weights.to(device=leaf.device, dtype=leaf.dtype)
    places, offsets = torch.from_numpy(inverse).to(leaf.device), torch.from_numpy(bags.offsets).to(leaf.device)
    return F.embedding_bag(places, leaf, offsets, mode=mode, per_sample_weights=weights)

"""Sums and means of bags of rows, and their gradients, in one pass each: for rows in float32 on this host.

torch's embedding_bag sorts the ids to go back through it, which took a third of a step of a DLRM (benchmarks/NOTES.md). Here the rows of a
gradient are added up in the order of the bags.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ps_worker.profiling.stopwatch import POOL, POOL_BACK, span
from sharding.kernel import kernel
from sharding.partition import Indexes

Rows = npt.NDArray[np.float32]


class Placed(NamedTuple):
    """Bags of one table's rows, and where they go.

    inverse  int64[n]: the row of each id.     offsets  int64[F * B]: where the ids of each bag begin, one feature after another.
    columns  int64[F]: the first column of each feature in the result.
    """

    inverse: Indexes
    offsets: Indexes
    columns: Indexes


def is_for_kernels(leaf: Tensor, is_weighted: bool, mode: str) -> bool:
    """Return whether bags of these rows can be pooled here; torch does the others."""
    return leaf.device.type == "cpu" and leaf.dtype == torch.float32 and mode in ("sum", "mean") and not is_weighted


def pool_side_by_side(placed: Sequence[Placed], leaves: Sequence[Tensor], batch: int, width: int, mode: str) -> Tensor:
    """Return float32[batch, width]: the bags of several tables, from the rows of each, float32[unique, dim]; their columns fill it."""
    pooled: Tensor = _PoolSideBySide.apply(placed, batch, width, mode == "mean", *leaves)  # type: ignore[no-untyped-call]
    return pooled


class _PoolSideBySide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, placed: Sequence[Placed], batch: int, width: int, is_mean: bool, *leaves: Tensor) -> Tensor:
        ctx.placed, ctx.is_mean, ctx.shapes = placed, is_mean, [leaf.shape for leaf in leaves]
        out = np.empty((batch, width), np.float32)
        with span(POOL):
            for bags, leaf in zip(placed, leaves, strict=True):
                _pool(leaf.detach().numpy(), bags.inverse, bags.offsets, bags.columns, is_mean, out)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_out = gradient.contiguous().numpy()
        gradients = []
        with span(POOL_BACK):
            for bags, shape in zip(ctx.placed, ctx.shapes, strict=True):
                of_leaf = np.zeros(shape, np.float32)
                _spread(of_out, bags.inverse, bags.offsets, bags.columns, ctx.is_mean, of_leaf)
                gradients.append(torch.from_numpy(of_leaf))
        return None, None, None, None, *gradients


@kernel
def _pool(leaf: Rows, inverse: Indexes, offsets: Indexes, columns: Indexes, is_mean: bool, out: Rows) -> None:
    """Write the sum or mean of each bag's rows to its columns of `out` float32[B, width]; of an empty bag, zeros."""
    batch, dim = out.shape[0], leaf.shape[1]
    for sample in range(batch):  # outside: `out` is written from its begin to its end
        for feature in range(columns.size):
            bag = feature * batch + sample
            begin = offsets[bag]
            end = offsets[bag + 1] if bag + 1 < offsets.size else inverse.size
            target = out[sample, columns[feature] : columns[feature] + dim]
            for column in range(dim):
                target[column] = np.float32(0.0)
            for i in range(begin, end):
                row = leaf[inverse[i]]
                for column in range(dim):
                    target[column] += row[column]
            if is_mean and end - begin > 1:
                count = np.float32(end - begin)
                for column in range(dim):
                    target[column] /= count


@kernel
def _spread(of_out: Rows, inverse: Indexes, offsets: Indexes, columns: Indexes, is_mean: bool, of_leaf: Rows) -> None:
    """Add to each row's gradient those of the bags that it is in, in their order; `of_leaf` float32[unique, dim] starts as zeros."""
    batch, dim = of_out.shape[0], of_leaf.shape[1]
    for feature in range(columns.size):
        for sample in range(batch):
            bag = feature * batch + sample
            begin = offsets[bag]
            end = offsets[bag + 1] if bag + 1 < offsets.size else inverse.size
            of_bag = of_out[sample, columns[feature] : columns[feature] + dim]
            share = np.float32(1.0) / np.float32(end - begin) if is_mean else np.float32(1.0)
            for i in range(begin, end):
                target = of_leaf[inverse[i]]
                for column in range(dim):
                    target[column] += share * of_bag[column]

"""Gradients kept within bounds."""

import numpy as np

from ps_server.shard.optimizers.decorator import RowDecorator
from ps_server.shard.optimizers.optimizer import Origin, Rows, Slots
from ps_server.shard.row_sums import sum_of_squares
from ps_server.shard.slab import Slab
from sharding.kernel import kernel


class ClippedByValue(RowDecorator):
    """g ← min(max(g, -clip_value), clip_value)"""

    kind = "clipped_by_value"

    def apply_block(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        clip_by_value(gradients, parameters["clip_value"], self.room)
        self.optimizer.apply(slab, slots, self.changed(slots.size), parameters, origin)


class ClippedByRowNorm(RowDecorator):
    """g ← (clip_row_norm / |g|) · g where the row's norm |g| is greater than that.

    Unlike torch.nn.utils.clip_grad_norm_ each row is clipped by itself, and nothing is added to the norm.
    """

    kind = "clipped_by_row_norm"

    def apply_block(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        clip_by_row_norm(gradients, parameters["clip_row_norm"], self.room)
        self.optimizer.apply(slab, slots, self.changed(slots.size), parameters, origin)


@kernel
def clip_by_value(gradients: Rows, clip_value: float, out: Rows) -> None:
    """Write gradients float32[n, dim], clipped, to the first rows of `out` float32[m, dim], n <= m."""
    high = np.float32(clip_value)
    low = -high
    for i in range(gradients.shape[0]):
        g = gradients[i]
        clipped = out[i]
        for j in range(g.size):
            number = high if g[j] > high else g[j]
            clipped[j] = low if number < low else number


@kernel
def clip_by_row_norm(gradients: Rows, clip_row_norm: float, out: Rows) -> None:
    """Write gradients float32[n, dim], clipped row by row, to the first rows of `out` float32[m, dim], n <= m."""
    for i in range(gradients.shape[0]):
        g = gradients[i]
        clipped = out[i]
        norm = np.sqrt(sum_of_squares(g))
        scale = np.float32(clip_row_norm / norm) if norm > clip_row_norm else np.float32(1.0)
        for j in range(g.size):
            clipped[j] = scale * g[j]

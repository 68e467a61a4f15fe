"""Stochastic gradient descent."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.optimizer import RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel


class SGD(RowOptimizer):
    """w ← w - lr · g"""

    kind = "sgd"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return ()

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float]) -> None:
        _apply(slab.records, slots, gradients, parameters["lr"])


@kernel
def _apply(records: npt.NDArray[np.float32], slots: Slots, gradients: Rows, lr: float) -> None:
    lr_f32 = np.float32(lr)
    dim = gradients.shape[1]
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], dim)
        w = records[slots[i], :dim]
        g = gradients[i]
        for j in range(dim):
            w[j] = w[j] - lr_f32 * g[j]

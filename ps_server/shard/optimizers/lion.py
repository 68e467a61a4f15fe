"""Lion: steps by the sign alone."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel


class Lion(RowOptimizer):
    """Chen et al., "Symbolic discovery of optimization algorithms", 2023, algorithm 2, with its authors' order: the decay comes first.

    w ← w · (1 - lr · weight_decay)
    w ← w - lr · sign(beta1 · m + (1 - beta1) · g)      sign(0) = 0
    m ← beta2 · m + (1 - beta2) · g

    Every number moves by the whole learning rate, so it wants one 3 to 10 times smaller than Adam's. A row without a gradient neither moves
    nor decays.
    """

    kind = "lion"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return (StateColumn("m", dim),)

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        lr, beta1, beta2 = parameters["lr"], parameters["beta1"], parameters["beta2"]
        _apply(slab.records, slots, gradients, lr, beta1, beta2, 1.0 - lr * parameters["weight_decay"])


@kernel
def _apply(records: npt.NDArray[np.float32], slots: Slots, gradients: Rows, lr: float, beta1: float, beta2: float, kept: float) -> None:
    lr_f32 = np.float32(lr)
    beta1_f32 = np.float32(beta1)
    beta2_f32 = np.float32(beta2)
    weight1 = np.float32(1.0 - beta1)
    weight2 = np.float32(1.0 - beta2)
    kept_f32 = np.float32(kept)
    zero = np.float32(0.0)
    dim = gradients.shape[1]
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], 2 * dim)
        w = records[slots[i], :dim]
        m = records[slots[i], dim : 2 * dim]
        g = gradients[i]
        for j in range(dim):
            direction = beta1_f32 * m[j] + weight1 * g[j]
            step = lr_f32 if direction > zero else zero
            step = -lr_f32 if direction < zero else step
            w[j] = kept_f32 * w[j] - step
            m[j] = beta2_f32 * m[j] + weight2 * g[j]

"""Row-wise Adagrad: one learning rate for a whole row, and one number beside it."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.row_sums import sum_of_squares
from ps_server.shard.slab import Slab
from sharding.kernel import kernel


class RowWiseAdagrad(RowOptimizer):
    """Gupta et al., "Training recommender systems at scale", 2020, as FBGEMM's embedding tables have it ("exact row-wise Adagrad").

    g ← g + weight_decay · w
    a ← a + mean(g²)
    w ← w - (lr / (√a + eps)) · g

    A dim-th of Adagrad's memory. The sum of squares is `row_sums.py`'s, in float64, and its mean is rounded once.
    """

    kind = "row_wise_adagrad"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return (StateColumn("sum_of_mean_squares", 1, initial=parameters["initial_accumulator_value"]),)

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        _apply(slab.records, slots, gradients, parameters["lr"], parameters["eps"], parameters["weight_decay"])


@kernel
def _apply(records: npt.NDArray[np.float32], slots: Slots, gradients: Rows, lr: float, eps: float, decay: float) -> None:
    lr_f32 = np.float32(lr)
    eps_f32 = np.float32(eps)
    decay_f32 = np.float32(decay)
    dim = gradients.shape[1]
    slope = np.empty(dim, dtype=np.float32)
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], dim + 1)
        w = records[slots[i], :dim]
        a = records[slots[i], dim : dim + 1]
        g = gradients[i]
        for j in range(dim):
            slope[j] = g[j] + decay_f32 * w[j]
        a[0] = a[0] + np.float32(sum_of_squares(slope) / dim)
        step_size = lr_f32 / (np.sqrt(a[0]) + eps_f32)
        for j in range(dim):
            w[j] = w[j] - step_size * slope[j]

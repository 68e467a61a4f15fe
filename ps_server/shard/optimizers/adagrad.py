"""Adagrad: a learning rate per number, by how much it has moved so far."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel


class Adagrad(RowOptimizer):
    """Duchi, Hazan, Singer, "Adaptive subgradient methods", JMLR 12 (2011), with a diagonal matrix; in torch's order.

    g ← g + weight_decay · w
    a ← a + g²
    w ← w - (lr · g) / (√a + eps)

    The sum only grows, so the steps of an often seen row go to zero. A new row's `a` is the `initial_accumulator_value` of the
    table's spec, whatever a later step's hyperparameters say.
    """

    kind = "adagrad"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return (StateColumn("sum_of_squares", dim, initial=parameters["initial_accumulator_value"]),)

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        _apply(slab.records, slots, gradients, parameters["lr"], parameters["eps"], parameters["weight_decay"])


@kernel
def _apply(records: npt.NDArray[np.float32], slots: Slots, gradients: Rows, lr: float, eps: float, decay: float) -> None:
    lr_f32 = np.float32(lr)
    eps_f32 = np.float32(eps)
    decay_f32 = np.float32(decay)
    dim = gradients.shape[1]
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], 2 * dim)
        w = records[slots[i], :dim]
        a = records[slots[i], dim : 2 * dim]
        g = gradients[i]
        for j in range(dim):
            slope = g[j] + decay_f32 * w[j]
            a[j] = a[j] + slope * slope
            w[j] = w[j] - lr_f32 * slope / (np.sqrt(a[j]) + eps_f32)

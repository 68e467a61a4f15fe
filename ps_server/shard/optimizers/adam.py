"""Adam: steps of about the learning rate, whatever the gradient's size."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.optimizer import RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel

COUNT_MAX = 2**32 - 1  # the count stays there; both corrections have been 1 for long


class Adam(RowOptimizer):
    """Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015; in torch's order.

    t ← t + 1
    m ← m + (1 - beta1) · (g - m)
    v ← beta2 · v + (1 - beta2) · g · g
    w ← w - (lr / (1 - beta1^t)) · m / (√v / √(1 - beta2^t) + eps)

    t is the row's own count of steps: a row without a gradient neither moves nor forgets. So it differs from torch's Adam on a dense
    embedding, where all rows do, and from its SparseAdam, where all rows share one t. The corrections are float64, rounded once.
    """

    kind = "adam"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return StateColumn("m", dim), StateColumn("v", dim), StateColumn("t", 1, dtype="uint32")

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float]) -> None:
        lr, beta1, beta2, eps = parameters["lr"], parameters["beta1"], parameters["beta2"], parameters["eps"]
        _apply(slab.records, slab.words, slots, gradients, lr, beta1, beta2, eps)


@kernel
def power(beta: float, t: int) -> float:
    """Return beta^t for t >= 0 as products of beta's squares, in a fixed order (R16: pow of libm has other bits elsewhere)."""
    result = 1.0
    square = beta
    while t > 0:
        if t & 1:
            result = result * square
        square = square * square
        t = t >> 1
    return result


@kernel
def _apply(
    records: npt.NDArray[np.float32],
    words: npt.NDArray[np.uint32],
    slots: Slots,
    gradients: Rows,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    eps_f32 = np.float32(eps)
    beta1_f32 = np.float32(beta1)
    beta2_f32 = np.float32(beta2)
    weight1 = np.float32(1.0 - beta1)
    weight2 = np.float32(1.0 - beta2)
    dim = gradients.shape[1]
    t_before = 0
    step_size = np.float32(0.0)
    root = np.float32(0.0)
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], 3 * dim + 1)
        t = int(words[slots[i], 3 * dim])
        if t < COUNT_MAX:
            t += 1
        words[slots[i], 3 * dim] = np.uint32(t)
        if t != t_before:  # the rows of a dense table, and of one batch, mostly share their count
            step_size = np.float32(lr / (1.0 - power(beta1, t)))
            root = np.float32(np.sqrt(1.0 - power(beta2, t)))
            t_before = t
        w = records[slots[i], :dim]
        m = records[slots[i], dim : 2 * dim]
        v = records[slots[i], 2 * dim : 3 * dim]
        g = gradients[i]
        # The two forms of torch.lerp: each is exact at its own end.
        if weight1 < np.float32(0.5):
            for j in range(dim):
                m[j] = m[j] + weight1 * (g[j] - m[j])
        else:
            for j in range(dim):
                m[j] = g[j] - (g[j] - m[j]) * beta1_f32
        for j in range(dim):
            v[j] = v[j] * beta2_f32 + weight2 * g[j] * g[j]
            w[j] = w[j] - step_size * m[j] / (np.sqrt(v[j]) / root + eps_f32)

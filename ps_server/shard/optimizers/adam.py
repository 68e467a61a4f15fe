"""Adam, AMSGrad and AdamW: steps of about the learning rate, whatever the gradient's size."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel

COUNT_MAX = 2**32 - 1  # the count stays there; both corrections have been 1 for long


class Adam(RowOptimizer):
    """Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015; in torch's order.

    t ← t + 1
    g ← g + weight_decay · w
    m ← m + (1 - beta1) · (g - m)
    v ← beta2 · v + (1 - beta2) · g · g
    w ← w - (lr / (1 - beta1^t)) · m / (√v / √(1 - beta2^t) + eps)

    amsgrad, after Reddi, Kale, Kumar, "On the convergence of Adam and beyond", ICLR 2018: the greatest v so far divides in the place of v.
    t is the row's own count of steps: a row without a gradient neither moves nor forgets. So it differs from torch's Adam on a dense
    embedding, where all rows do, and from its SparseAdam, where all rows share one t. The corrections are float64, rounded once.
    """

    kind = "adam"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        names = ["m", "v"] + ["v_max"] * bool(parameters["amsgrad"])
        return *[StateColumn(name, dim) for name in names], StateColumn("t", 1, dtype="uint32")

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        self._step(slab, slots, gradients, parameters, coupled=parameters["weight_decay"], kept=1.0)

    @staticmethod
    def _step(slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], coupled: float, kept: float) -> None:
        lr, beta1, beta2, eps = parameters["lr"], parameters["beta1"], parameters["beta2"], parameters["eps"]
        is_amsgrad = bool(parameters["amsgrad"])
        _apply(slab.records, slab.words, slots, gradients, lr, beta1, beta2, eps, coupled, kept, is_amsgrad)


class AdamW(Adam):
    """Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, in torch's form, where the learning rate scales the decay:
    Adam without its coupled weight decay, after w ← w · (1 - lr · weight_decay). A row without a gradient does not decay.
    """

    kind = "adamw"

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        kept = 1.0 - parameters["lr"] * parameters["weight_decay"]
        self._step(slab, slots, gradients, parameters, coupled=0.0, kept=kept)


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
    coupled: float,
    kept: float,
    is_amsgrad: bool,
) -> None:
    eps_f32 = np.float32(eps)
    beta2_f32 = np.float32(beta2)
    weight2 = np.float32(1.0 - beta2)
    weight1 = np.float32(1.0 - beta1)
    is_light = weight1 < np.float32(0.5)  # of the two forms of torch.lerp each is exact at its own end
    pull = weight1 if is_light else -np.float32(beta1)
    coupled_f32 = np.float32(coupled)
    kept_f32 = np.float32(kept)
    dim = gradients.shape[1]
    count = records.shape[1] - 1  # the column of t
    t_before = 0
    step_size = np.float32(0.0)
    root = np.float32(0.0)
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], records.shape[1])
        t = int(words[slots[i], count])
        if t < COUNT_MAX:
            t += 1
        words[slots[i], count] = np.uint32(t)
        if t != t_before:  # the rows of a dense table, and of one batch, mostly share their count
            step_size = np.float32(lr / (1.0 - power(beta1, t)))
            root = np.float32(np.sqrt(1.0 - power(beta2, t)))
            t_before = t
        w = records[slots[i], :dim]
        m = records[slots[i], dim : 2 * dim]
        v = records[slots[i], 2 * dim : 3 * dim]
        g = gradients[i]
        # Two loops: LLVM leaves one scalar that it would have to guard against more than eight overlaps of its arrays.
        for j in range(dim):
            slope = g[j] + coupled_f32 * w[j]
            before = m[j]
            m[j] = (before if is_light else slope) + pull * (slope - before)
            v[j] = v[j] * beta2_f32 + weight2 * slope * slope
        if is_amsgrad:
            v_max = records[slots[i], 3 * dim : 4 * dim]
            for j in range(dim):
                now, before = v[j], v_max[j]
                v_max[j] = now if now > before else before
                w[j] = kept_f32 * w[j] - step_size * m[j] / (np.sqrt(v_max[j]) / root + eps_f32)
        else:
            for j in range(dim):
                w[j] = kept_f32 * w[j] - step_size * m[j] / (np.sqrt(v[j]) / root + eps_f32)

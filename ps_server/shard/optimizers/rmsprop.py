"""RMSprop: steps of about the learning rate, by the gradient's size of late."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel


class RMSprop(RowOptimizer):
    """Tieleman and Hinton, lecture 6.5 of "Neural networks for machine learning", 2012; centered after Graves, "Generating sequences with
    recurrent neural networks", 2013; in torch's order.

    g ← g + weight_decay · w
    v ← alpha · v + (1 - alpha) · g · g
    m ← m + (1 - alpha) · (g - m)                   centered; else m = 0
    b ← momentum · b + g / (√(v - m²) + eps)        with momentum
    w ← w - lr · b                                  without: w - (lr · g) / (√(v - m²) + eps)

    v starts at 0 and nothing corrects for that: a row's first step is 1/√(1 - alpha) times as long. Where rounding makes v - m² negative
    it counts as 0; torch's step is nan there.
    """

    kind = "rmsprop"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        names = ["v"] + ["m"] * bool(parameters["centered"]) + ["momentum"] * bool(parameters["momentum"])
        return tuple([StateColumn(name, dim) for name in names])

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        lr, alpha, eps = parameters["lr"], parameters["alpha"], parameters["eps"]
        momentum, decay, is_centered = parameters["momentum"], parameters["weight_decay"], bool(parameters["centered"])
        _apply(slab.records, slots, gradients, lr, alpha, eps, momentum, decay, is_centered)


@kernel
def _apply(
    records: npt.NDArray[np.float32],
    slots: Slots,
    gradients: Rows,
    lr: float,
    alpha: float,
    eps: float,
    momentum: float,
    decay: float,
    is_centered: bool,
) -> None:
    lr_f32 = np.float32(lr)
    alpha_f32 = np.float32(alpha)
    weight = np.float32(1.0 - alpha)
    eps_f32 = np.float32(eps)
    momentum_f32 = np.float32(momentum)
    decay_f32 = np.float32(decay)
    is_light = weight < np.float32(0.5)  # of the two forms of torch.lerp each is exact at its own end
    pull = weight if is_light else -alpha_f32
    zero = np.float32(0.0)
    dim = gradients.shape[1]
    slope = np.empty(dim, dtype=np.float32)
    size = np.empty(dim, dtype=np.float32)
    # Several short loops: LLVM leaves one scalar that it would have to guard against more than eight overlaps of its arrays.
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], records.shape[1])
        w = records[slots[i], :dim]
        v = records[slots[i], dim : 2 * dim]
        g = gradients[i]
        for j in range(dim):
            slope[j] = g[j] + decay_f32 * w[j]
            v[j] = v[j] * alpha_f32 + weight * slope[j] * slope[j]
        if is_centered:
            m = records[slots[i], 2 * dim : 3 * dim]
            for j in range(dim):
                new, old = slope[j], m[j]
                mean = (old if is_light else new) + pull * (new - old)
                variance = v[j] - mean * mean
                m[j] = mean
                size[j] = np.sqrt(variance if variance > zero else zero) + eps_f32
        else:
            for j in range(dim):
                size[j] = np.sqrt(v[j]) + eps_f32
        if momentum > 0.0:
            b = records[slots[i], records.shape[1] - dim :]
            for j in range(dim):
                b[j] = momentum_f32 * b[j] + slope[j] / size[j]
                w[j] = w[j] - lr_f32 * b[j]
        else:
            for j in range(dim):
                w[j] = w[j] - lr_f32 * slope[j] / size[j]

"""Stochastic gradient descent, with momentum where asked for."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel

UNSET = -0.0  # what a new row's momentum is made of
UNSET_BITS = 0x8000_0000


class SGD(RowOptimizer):
    """Gradient descent, in torch's form and order: the learning rate multiplies the whole step. Momentum and Nesterov's: Sutskever et al.,
    "On the importance of initialization and momentum in deep learning", ICML 2013.

    g ← g + weight_decay · w
    b ← momentum · b + (1 - dampening) · g          at a row's first step b ← g
    w ← w - lr · (b, or Nesterov's: g + momentum · b)

    Without momentum w ← w - lr · g, and nothing lies beside a row. The first step is told by the first number of `b`: it is -0.0 in a new
    row, and never afterwards.
    """

    kind = "sgd"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return (StateColumn("momentum", dim, initial=UNSET),) if parameters["momentum"] else ()

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        lr, momentum, decay = parameters["lr"], parameters["momentum"], parameters["weight_decay"]
        if not self.columns:
            _apply(slab.records, slots, gradients, lr, decay)
        else:
            rest, is_nesterov = 1.0 - parameters["dampening"], bool(parameters["nesterov"])
            _apply_with_momentum(slab.records, slab.words, slots, gradients, lr, momentum, rest, decay, is_nesterov)


@kernel
def _apply(records: npt.NDArray[np.float32], slots: Slots, gradients: Rows, lr: float, decay: float) -> None:
    lr_f32 = np.float32(lr)
    decay_f32 = np.float32(decay)
    dim = gradients.shape[1]
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], dim)
        w = records[slots[i], :dim]
        g = gradients[i]
        for j in range(dim):
            w[j] = w[j] - lr_f32 * (g[j] + decay_f32 * w[j])


@kernel
def _apply_with_momentum(
    records: npt.NDArray[np.float32],
    words: npt.NDArray[np.uint32],
    slots: Slots,
    gradients: Rows,
    lr: float,
    momentum: float,
    rest: float,
    decay: float,
    is_nesterov: bool,
) -> None:
    lr_f32 = np.float32(lr)
    decay_f32 = np.float32(decay)
    momentum_f32 = np.float32(momentum)
    zero = np.float32(0.0)
    ahead = momentum_f32 if is_nesterov else np.float32(1.0)
    dim = gradients.shape[1]
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], 2 * dim)
        is_first = words[slots[i], dim] == UNSET_BITS
        weight = np.float32(1.0) if is_first else np.float32(rest)
        w = records[slots[i], :dim]
        b = records[slots[i], dim : 2 * dim]
        g = gradients[i]
        for j in range(dim):
            slope = g[j] + decay_f32 * w[j]
            b[j] = momentum_f32 * b[j] + weight * slope
            w[j] = w[j] - lr_f32 * ((slope if is_nesterov else zero) + ahead * b[j])
        b[0] = b[0] + np.float32(0.0)  # -0.0 becomes 0.0: the row has had its first step

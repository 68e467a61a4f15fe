"""FTRL-Proximal: sparse linear models, whose small weights become 0."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, Rows, Slots, StateColumn
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel


class FTRL(RowOptimizer):
    """McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1, with lr for its α.

    The paper keeps n and z beside a number and computes, with c = (beta + √n) · (1 / lr) + l2,

    w = 0 where |z| <= l1, else (sign(z) · l1 - z) / c
    z ← z + g - ((√(n + g²) - √n) / lr) · w
    n ← n + g²

    A w that is not 0 says what its z is, so we keep z only beside a 0 and take the same step from w, with the new n in c:

    z ← g - c · w - sign(w) · l1; where w = 0: z + g
    w ← 0 where |z| <= l1; w - g / c where it keeps its sign; else (sign(z) · l1 - z) / c

    The steps are the paper's where rows start at 0 and hyperparameters stay. Unlike there a row starts where its initializer puts it; what
    a user assigns counts, also after gradients; a new lr or l2 changes the steps to come but moves no row by itself; and a number whose
    gradient is 0 stays as it is. With lr = 0, where a scheduler may begin or end, nothing changes.
    """

    kind = "ftrl"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return StateColumn("sum_of_squares", dim), StateColumn("z", dim)

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        if parameters["lr"] > 0:
            _apply(slab.records, slots, gradients, parameters["lr"], parameters["beta"], parameters["l1"], parameters["l2"])


@kernel
def _apply(records: npt.NDArray[np.float32], slots: Slots, gradients: Rows, lr: float, beta: float, l1: float, l2: float) -> None:
    per_lr = np.float32(1.0 / lr)
    beta_f32 = np.float32(beta)
    l1_f32 = np.float32(l1)
    l2_f32 = np.float32(l2)
    zero, one = np.float32(0.0), np.float32(1.0)
    dim = gradients.shape[1]
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], 3 * dim)
        w = records[slots[i], :dim]
        n = records[slots[i], dim : 2 * dim]
        z = records[slots[i], 2 * dim : 3 * dim]
        g = gradients[i]
        for j in range(dim):
            slope = g[j]
            before = w[j]
            kept = z[j]
            n[j] = n[j] + slope * slope
            c = (beta_f32 + np.sqrt(n[j])) * per_lr + l2_f32
            dual = slope - c * before - (l1_f32 if before > zero else -l1_f32)
            if before == zero:
                dual = kept + slope
            keeps_sign = before * dual < zero
            step = (l1_f32 if dual > zero else -l1_f32) - dual
            if keeps_sign:
                step = -slope
            stays = (slope == zero) | (c == zero)  # c is 0 where beta and l2 are and g² is too small for a float32
            after = (before if keeps_sign else zero) + step / (one if stays else c)
            if abs(dual) <= l1_f32:
                after = zero
            else:
                dual = zero
            w[j] = before if stays else after
            z[j] = kept if stays else dual

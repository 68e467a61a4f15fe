"""Weight decay that no gradient statistics see."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.decorator import RowDecorator
from ps_server.shard.optimizers.optimizer import Origin, Rows, Slots
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel


class DecoupledWeightDecay(RowDecorator):
    """w ← w · (1 - lr · decoupled_weight_decay), then the optimizer's step.

    Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, in torch's form, where the learning rate scales the decay.
    Lazy: a row without a gradient does not decay.
    """

    kind = "decoupled_weight_decay"
    reads_rows = True

    def apply_block(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        decay_rows(slab.records, slots, self.dim, 1.0 - parameters["lr"] * parameters["decoupled_weight_decay"])
        self.optimizer.apply(slab, slots, gradients, parameters, origin)


@kernel
def decay_rows(records: npt.NDArray[np.float32], slots: Slots, dim: int, kept: float) -> None:
    """Multiply the row in each of `slots` int32[n] by `kept`; `records` float32[capacity, width], of which a row is the first `dim`."""
    kept_f32 = np.float32(kept)
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], records.shape[1])  # the optimizer comes next
        w = records[slots[i], :dim]
        for j in range(dim):
            w[j] = kept_f32 * w[j]

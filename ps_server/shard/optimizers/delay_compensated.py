"""Gradients of rows that have moved since they were read."""

import numpy as np
import numpy.typing as npt

from ps_server.shard.optimizers.decorator import RowDecorator
from ps_server.shard.optimizers.optimizer import Origin, Rows, Slots
from ps_server.shard.prefetch import AHEAD, prefetch_record
from ps_server.shard.slab import Slab
from sharding.kernel import kernel


class DelayCompensated(RowDecorator):
    """g ← g + compensation · g · g · (w - w_read), w_read the row as the rank that pushes pulled it.

    Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017, equation 10 (DC-ASGD-c, a constant λ): the
    first term of what g has become since, with g · gᵀ for the Hessian, of which the diagonal is taken. A row that was not pulled, or is
    no longer known as it was, keeps its gradient.
    """

    kind = "delay_compensated"
    reads_rows = True
    wants_read_rows = True

    def apply_block(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        if origin.read is not None and origin.places is not None:
            compensate(slab.records, slots, gradients, origin.read, origin.places, parameters["compensation"], self.room)
            gradients = self.changed(slots.size)
        self.optimizer.apply(slab, slots, gradients, parameters, origin)


@kernel
def compensate(
    records: npt.NDArray[np.float32], slots: Slots, gradients: Rows, read: Rows, places: Slots, compensation: float, out: Rows
) -> None:
    """Write gradients float32[n, dim], compensated, to the first rows of `out` float32[m, dim], n <= m.

    read  float32[k, dim], read-only.     places  int32[n], the row of `read` that a gradient is of, or -1.
    """
    compensation_f32 = np.float32(compensation)
    dim = gradients.shape[1]
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_record(records, slots[i + AHEAD], records.shape[1])
        g = gradients[i]
        compensated = out[i]
        if places[i] < 0:
            for j in range(dim):
                compensated[j] = g[j]
        else:
            w = records[slots[i], :dim]
            w_read = read[places[i]]
            for j in range(dim):
                # Not g · g first, which may be inf: where the row has not moved, that would make 0 · inf of it.
                compensated[j] = g[j] + compensation_f32 * g[j] * (w[j] - w_read[j]) * g[j]

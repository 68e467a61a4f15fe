"""Shorter steps for what comes late."""

from ps_server.shard.optimizers.decorator import RowDecorator
from ps_server.shard.optimizers.optimizer import Origin, Rows, Slots
from ps_server.shard.slab import Slab


class StalenessScaled(RowDecorator):
    """lr ← lr / max(1, staleness), for this call.

    Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016, §3.2. Unlike there the staleness is
    counted by each server for itself: how many other pushes of the table it took between the rank's pull and its push.
    """

    kind = "staleness_scaled"
    wants_staleness = True

    def apply_block(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        scaled = parameters | {"lr": parameters["lr"] / max(1, origin.staleness)}
        self.optimizer.apply(slab, slots, gradients, scaled, origin)

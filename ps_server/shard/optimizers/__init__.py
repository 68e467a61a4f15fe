"""The server's optimizers, one file each; `optimizer.py` says what one is.

To add one: its setting in `ps_proto.values`, its file here with a class of the same `kind`, and its name in the list below.
"""

from ps_proto.values import Optimizer
from ps_server.shard.optimizers.adagrad import Adagrad
from ps_server.shard.optimizers.adam import Adam
from ps_server.shard.optimizers.optimizer import RowOptimizer
from ps_server.shard.optimizers.sgd import SGD

OPTIMIZERS: dict[str, type[RowOptimizer]] = {optimizer.kind: optimizer for optimizer in (SGD, Adagrad, Adam)}


def row_optimizer(setting: Optimizer, dim: int) -> RowOptimizer:
    """Return what applies gradients for a table with this setting and dim."""
    return OPTIMIZERS[setting.kind](dim, setting.parameters())

"""The server's optimizers and decorators, a small file each.

    optimizer.py   what an optimizer is: state columns beside each row, and one pass over the rows of a call
    sgd.py adagrad.py row_wise_adagrad.py rmsprop.py adam.py (AdamW too) ftrl.py lion.py
    decorator.py   what a decorator is: something done first, to a block of the call at a time
    clipping.py decoupled_weight_decay.py delay_compensated.py staleness_scaled.py

A table's optimizer is that of the same `kind` as its setting in `ps_proto.values`. From outside of this package, `registering.py` beside
this folder has the way in; docs/own-optimizer.md shows it.
"""

from typing import TypeVar

from ps_proto.errors import InvalidRequest
from ps_proto.values import Decorated, Optimizer
from ps_server.shard.optimizers.adagrad import Adagrad
from ps_server.shard.optimizers.adam import Adam, AdamW
from ps_server.shard.optimizers.clipping import ClippedByRowNorm, ClippedByValue
from ps_server.shard.optimizers.decorator import RowDecorator
from ps_server.shard.optimizers.decoupled_weight_decay import DecoupledWeightDecay
from ps_server.shard.optimizers.delay_compensated import DelayCompensated
from ps_server.shard.optimizers.ftrl import FTRL
from ps_server.shard.optimizers.lion import Lion
from ps_server.shard.optimizers.optimizer import RowOptimizer
from ps_server.shard.optimizers.rmsprop import RMSprop
from ps_server.shard.optimizers.row_wise_adagrad import RowWiseAdagrad
from ps_server.shard.optimizers.sgd import SGD
from ps_server.shard.optimizers.staleness_scaled import StalenessScaled

AnyOptimizer = TypeVar("AnyOptimizer", bound=RowOptimizer)

OPTIMIZERS: dict[str, type[RowOptimizer]] = {
    optimizer.kind: optimizer for optimizer in (SGD, Adagrad, RowWiseAdagrad, RMSprop, Adam, AdamW, FTRL, Lion)
}
DECORATORS: dict[str, type[RowDecorator]] = {
    decorator.kind: decorator for decorator in (ClippedByValue, ClippedByRowNorm, DecoupledWeightDecay, DelayCompensated, StalenessScaled)
}


def row_optimizer(setting: Optimizer, dim: int) -> RowOptimizer:
    """Return what applies gradients for a table with this setting and dim, behind its decorators.

    Raises InvalidRequest where no class is registered for a kind.
    """
    if isinstance(setting, Decorated):
        return _class_of(setting, DECORATORS)(row_optimizer(setting.optimizer, dim))
    return _class_of(setting, OPTIMIZERS)(dim, setting.parameters())


def _class_of(setting: Optimizer, known: dict[str, type[AnyOptimizer]]) -> type[AnyOptimizer]:
    if setting.kind not in known:
        want = f"one that this server can run: one of {sorted(known)}, or one that a plugin registers in every server"
        raise InvalidRequest("optimizer", repr(setting.kind), want)
    return known[setting.kind]

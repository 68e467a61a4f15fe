"""What a table is and how a job runs: settings that a user writes, that travel, and that both sides compare.

    setting.py       what all settings are: a frozen dataclass with a kind and numbers
    initializers.py  what an id reads as before it has a row
    optimizers.py    what the servers do with a gradient; decorated.py what is done to it before that
    modes.py         how far workers may drift apart
    table_spec.py    a table: all of these under a name
    registering.py   how settings from outside of this package join them

On the wire a setting is its kind and a map of floats, so that a new optimizer is a new class here and no new message; nothing is ever
pickled. docs/own-optimizer.md shows how to add one from outside of this package.
"""

from ps_proto.values.decorated import (
    DECORATED,
    ClippedByRowNorm,
    ClippedByValue,
    Decorated,
    DecoupledWeightDecay,
    DelayCompensated,
    StalenessScaled,
)
from ps_proto.values.initializers import (
    INITIALIZERS,
    Assigned,
    Constant,
    HeNormal,
    HeUniform,
    Initializer,
    Normal,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zeros,
)
from ps_proto.values.modes import MODES, Async, BoundedStaleness, Mode, Sync
from ps_proto.values.optimizers import FTRL, OPTIMIZERS, SGD, Adagrad, Adam, AdamW, Lion, Optimizer, RMSprop, RowWiseAdagrad
from ps_proto.values.registering import register_initializer, register_optimizer
from ps_proto.values.setting import Setting
from ps_proto.values.table_spec import MAX_DIM, MAX_WIDTH, TableSpec
from ps_proto.values.wire import initializer_from_wire, mode_from_wire, optimizer_from_wire

__all__ = [
    "DECORATED",
    "FTRL",
    "INITIALIZERS",
    "MAX_DIM",
    "MAX_WIDTH",
    "MODES",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Assigned",
    "Async",
    "BoundedStaleness",
    "ClippedByRowNorm",
    "ClippedByValue",
    "Constant",
    "Decorated",
    "DecoupledWeightDecay",
    "DelayCompensated",
    "HeNormal",
    "HeUniform",
    "Initializer",
    "Lion",
    "Mode",
    "Normal",
    "Optimizer",
    "RMSprop",
    "RowWiseAdagrad",
    "Setting",
    "StalenessScaled",
    "Sync",
    "TableSpec",
    "TruncatedNormal",
    "Uniform",
    "XavierNormal",
    "XavierUniform",
    "Zeros",
    "initializer_from_wire",
    "mode_from_wire",
    "optimizer_from_wire",
    "register_initializer",
    "register_optimizer",
]

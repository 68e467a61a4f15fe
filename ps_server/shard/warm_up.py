"""Compiling every kernel of the tables before the first request, so that none waits a second for it."""

import numpy as np

from ps_proto.values import OPTIMIZERS, Adagrad, Constant, Normal, TableSpec, Uniform
from ps_server.shard.table import Table
from sharding.hashing import NUM_BUCKETS

_NUM_IDS = 100  # more than an index starts with, so that it grows


def warm_up_tables() -> None:
    """Run each kernel once, through tables that are thrown away; numba keeps the results on disk for the next process."""
    for initializer in (Uniform(-1.0, 1.0), Normal(), Constant(1.0)):
        _exercise(TableSpec("warm up", 1, optimizer=Adagrad(), initializer=initializer))
    for optimizer in OPTIMIZERS.values():
        _exercise(TableSpec("warm up", 1, optimizer=optimizer()))


def _exercise(spec: TableSpec) -> None:
    table, other = Table(spec, rows_max=_NUM_IDS), Table(spec, rows_max=_NUM_IDS)
    ids = np.arange(_NUM_IDS, dtype=np.uint64)
    gradients = np.ones((_NUM_IDS, spec.dim), dtype=np.float32)
    table.pull(ids)
    table.update(ids, gradients, spec.optimizer.parameters())
    snapshot = table.snapshot()
    table.assign(ids, gradients)
    snapshot.read(0, _NUM_IDS)
    other.adopt(table.extract(np.ones(NUM_BUCKETS, dtype=np.bool_)))

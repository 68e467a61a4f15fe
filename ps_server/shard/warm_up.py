"""Running the kernels of tables once, through tables that are thrown away; rehearsal.py runs those of a whole server."""

import numpy as np

from ps_proto.requests import Fence
from ps_proto.values import SGD, Adagrad, Adam, Constant, Normal, TableSpec, Uniform
from ps_server.shard.counters import Counters
from ps_server.shard.initializers import row_initializer
from ps_server.shard.read_rows import ReadRows
from ps_server.shard.table import Table
from sharding.hashing import NUM_BUCKETS

_COMMON = (
    TableSpec("warm up", 1, SGD(), Uniform(-1.0, 1.0)),
    TableSpec("warm up", 1, Adagrad(), Normal()),
    TableSpec("warm up", 1, Adam(), Constant(1.0)),
)
_NUM_IDS = 100  # more than an index starts with, so that it grows


def warm_up_tables() -> None:
    """Exercise the common tables."""
    for spec in _COMMON:
        exercise(spec, _NUM_IDS)


def exercise(spec: TableSpec, num_ids: int) -> None:
    """Do once all that is ever done to a table like `spec`, with so many rows."""
    table, other = Table(spec, rows_max=num_ids), Table(spec, rows_max=num_ids)
    ids = np.arange(num_ids, dtype=np.uint64)
    rows = np.ones((num_ids, spec.dim), dtype=np.float32)
    parameters = spec.optimizer.parameters()
    if not row_initializer(spec).has_values:
        table.assign(ids, rows)
    table.update(ids, rows, parameters)
    reads, fence = ReadRows(Counters()), Fence(1, rank=0, incarnation=1)
    reads.keep(table, fence, ids, table.pull(ids))
    table.update(ids, rows, parameters, reads.origin(table, fence, 1, ids))
    snapshot, (saved, _) = table.snapshot(), table.begin_save(incremental=True)
    table.assign(ids, rows)
    snapshot.read(0, num_ids)
    if (piece := saved.read(num_ids)) is not None:
        Table(spec, rows_max=num_ids).load(*piece, expected=num_ids)
    other.adopt(table.extract(np.ones(NUM_BUCKETS, dtype=np.bool_)))

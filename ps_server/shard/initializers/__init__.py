"""What an id reads as before it has a row, one file for each kind; `initializer.py` says what one is.

    counter.py       random bits as a pure function of (seed, table name, id, column)
    quantile.py      from such bits to the normal distribution; distribution.py the way back
    constant.py  uniform.py  normal.py  truncated_normal.py  assigned.py

Only + - * / and sqrt touch a value (R16). To add one: its setting in `ps_proto.values`, its class here with the same `kind`, and its name
in the list below; from outside of this package, `registering.py` beside this folder has the way in.
"""

from ps_proto.errors import InvalidRequest
from ps_proto.values import TableSpec
from ps_server.shard.initializers.assigned import AssignedRows
from ps_server.shard.initializers.constant import ConstantRows, ZeroRows
from ps_server.shard.initializers.initializer import RowInitializer
from ps_server.shard.initializers.normal import HeNormalRows, NormalRows, XavierNormalRows
from ps_server.shard.initializers.truncated_normal import TruncatedNormalRows
from ps_server.shard.initializers.uniform import HeUniformRows, UniformRows, XavierUniformRows

INITIALIZERS: dict[str, type[RowInitializer]] = {
    initializer.kind: initializer
    for initializer in (
        ZeroRows,
        ConstantRows,
        UniformRows,
        NormalRows,
        TruncatedNormalRows,
        XavierUniformRows,
        XavierNormalRows,
        HeUniformRows,
        HeNormalRows,
        AssignedRows,
    )
}


def row_initializer(spec: TableSpec) -> RowInitializer:
    """Return what fills the rows of the table `spec`; InvalidRequest where no class is registered for its initializer's kind."""
    kind = spec.initializer.kind
    if kind not in INITIALIZERS:
        want = f"one that this server can compute: one of {sorted(INITIALIZERS)}, or one that a plugin registers in every server"
        raise InvalidRequest(f"initializer of table {spec.name!r}", repr(kind), want)
    return INITIALIZERS[kind](spec)

"""Rows that begin without a value."""

from ps_proto.values import TableSpec
from ps_server.shard.initializers.initializer import Ids, RowInitializer, Rows, Slots


class AssignedRows(RowInitializer):
    """No initial value: a row is there once it was assigned."""

    kind = "assigned"
    has_values = False

    def __init__(self, spec: TableSpec) -> None:
        pass

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        """Raise ValueError: whoever reads such a row has not asked whether it is there."""
        raise ValueError(f"{ids.size} rows have no value, and the table has no initializer; the first is id {ids[0]}")

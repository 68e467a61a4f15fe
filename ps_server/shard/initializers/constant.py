"""Rows that begin with one value everywhere."""

import numpy as np

from ps_proto.values import Constant, TableSpec
from ps_server.shard.initializers.initializer import Ids, RowInitializer, Rows, Slots
from sharding.kernel import kernel


class ConstantRows(RowInitializer):
    """The same value everywhere."""

    kind = "constant"

    def __init__(self, spec: TableSpec) -> None:
        self._value = self.value(spec)

    @staticmethod
    def value(spec: TableSpec) -> float:
        """Return the value."""
        setting = spec.initializer
        assert isinstance(setting, Constant)
        return float(setting.value)

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        _fill_constant(target, places, dim, self._value)


class ZeroRows(ConstantRows):
    """0 everywhere."""

    kind = "zeros"

    @staticmethod
    def value(spec: TableSpec) -> float:
        return 0.0


@kernel
def _fill_constant(target: Rows, places: Slots, dim: int, value: float) -> None:
    for i in range(places.size):
        row = target[places[i]]
        for column in range(dim):
            row[column] = np.float32(value)

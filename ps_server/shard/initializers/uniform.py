"""Rows that begin uniformly distributed."""

from math import sqrt

import numpy as np

from ps_proto.values import HeUniform, TableSpec, Uniform, XavierUniform
from ps_server.shard.initializers.counter import bits_of, row_stream, seed_key, uniform_24
from ps_server.shard.initializers.initializer import Ids, RowInitializer, Rows, Slots
from sharding.hashing import table_salt
from sharding.kernel import kernel


class UniformRows(RowInitializer):
    """low + (high - low) · u in float64, u of 24 random bits; what would round up to `high` becomes the float32 below it."""

    kind = "uniform"

    def __init__(self, spec: TableSpec) -> None:
        self._key, self._salt = seed_key(spec.seed), table_salt(spec.name)
        self._low, self._high = low, high = self.limits(spec)
        highest = np.float32(high)
        if float(highest) >= high:
            highest = np.nextafter(highest, np.float32(-np.inf))
        self._highest = float(max(highest, np.float32(low)))

    @staticmethod
    def limits(spec: TableSpec) -> tuple[float, float]:
        """Return the lower limit, which may come, and the upper one, which does not unless both are the same."""
        setting = spec.initializer
        assert isinstance(setting, Uniform)
        return float(setting.low), float(setting.high)

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        _fill_uniform(target, places, ids, dim, self._key, self._salt, self._low, self._high, self._highest)


class XavierUniformRows(UniformRows):
    """Uniform on ±gain·√(6 / (fan_in + fan_out)), the bound in float64."""

    kind = "xavier_uniform"

    @staticmethod
    def limits(spec: TableSpec) -> tuple[float, float]:
        setting = spec.initializer
        assert isinstance(setting, XavierUniform)
        bound = setting.gain * sqrt(6.0 / ((setting.fan_in or spec.dim) + setting.fan_out))
        return -bound, bound


class HeUniformRows(UniformRows):
    """Uniform on ±gain·√(3 / fan_in), the bound in float64."""

    kind = "he_uniform"

    @staticmethod
    def limits(spec: TableSpec) -> tuple[float, float]:
        setting = spec.initializer
        assert isinstance(setting, HeUniform)
        bound = setting.gain * sqrt(3.0 / (setting.fan_in or spec.dim))
        return -bound, bound


@kernel
def _fill_uniform(
    target: Rows, places: Slots, ids: Ids, dim: int, key: np.uint64, salt: np.uint64, low: float, high: float, highest: float
) -> None:
    for i in range(places.size):
        row = target[places[i]]
        stream = row_stream(key, salt, ids[i])
        for column in range(dim):
            u = uniform_24(bits_of(stream, column))
            row[column] = min(np.float32(low + (high - low) * u), np.float32(highest))

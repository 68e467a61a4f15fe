"""Rows that begin normally distributed."""

from math import sqrt

import numpy as np

from ps_proto.values import HeNormal, Normal, TableSpec, XavierNormal
from ps_server.shard.initializers.counter import bits_of, row_stream, seed_key, uniform_52
from ps_server.shard.initializers.initializer import Ids, RowInitializer, Rows, Slots
from ps_server.shard.initializers.quantile import normal_quantile
from sharding.hashing import table_salt
from sharding.kernel import kernel


class NormalRows(RowInitializer):
    """mean + std · z in float64, z the normal quantile of 52 random bits."""

    kind = "normal"

    def __init__(self, spec: TableSpec) -> None:
        self._key, self._salt = seed_key(spec.seed), table_salt(spec.name)
        self._mean, self._std = self.moments(spec)

    @staticmethod
    def moments(spec: TableSpec) -> tuple[float, float]:
        """Return the mean and the standard deviation."""
        setting = spec.initializer
        assert isinstance(setting, Normal)
        return float(setting.mean), float(setting.std)

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        _fill_normal(target, places, ids, dim, self._key, self._salt, self._mean, self._std)


class XavierNormalRows(NormalRows):
    """Normal with standard deviation gain·√(2 / (fan_in + fan_out)), which is float64."""

    kind = "xavier_normal"

    @staticmethod
    def moments(spec: TableSpec) -> tuple[float, float]:
        setting = spec.initializer
        assert isinstance(setting, XavierNormal)
        return 0.0, setting.gain * sqrt(2.0 / ((setting.fan_in or spec.dim) + setting.fan_out))


class HeNormalRows(NormalRows):
    """Normal with standard deviation gain / √fan_in, which is float64."""

    kind = "he_normal"

    @staticmethod
    def moments(spec: TableSpec) -> tuple[float, float]:
        setting = spec.initializer
        assert isinstance(setting, HeNormal)
        return 0.0, setting.gain / sqrt(setting.fan_in or spec.dim)


@kernel
def _fill_normal(target: Rows, places: Slots, ids: Ids, dim: int, key: np.uint64, salt: np.uint64, mean: float, std: float) -> None:
    for i in range(places.size):
        row = target[places[i]]
        stream = row_stream(key, salt, ids[i])
        for column in range(dim):
            row[column] = np.float32(mean + std * normal_quantile(uniform_52(bits_of(stream, column))))

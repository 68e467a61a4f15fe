"""Rows that begin normally distributed between two limits."""

import numpy as np

from ps_proto.values import TableSpec, TruncatedNormal
from ps_proto.values.setting import FLOAT32_MAX
from ps_server.shard.initializers.counter import bits_of, row_stream, seed_key, uniform_52
from ps_server.shard.initializers.distribution import normal_cdf
from ps_server.shard.initializers.initializer import Ids, RowInitializer, Rows, Slots
from ps_server.shard.initializers.quantile import normal_quantile
from sharding.hashing import table_salt
from sharding.kernel import kernel

_FLAT = 2.0**-24  # where the density differs by less between the limits, a float32 cannot tell it from a flat one
_P_MAX = 1.0 - 2.0**-53  # the largest below 1, whose quantile there is


class TruncatedNormalRows(RowInitializer):
    """mean + std · z in float64, z the normal quantile of Φ(α) + u · (Φ(β) - Φ(α)), u of 52 random bits: inversion.

    α and β are the limits in standard deviations from the mean. Where they lie to the right of it, all is reflected, since Φ and its
    inverse are exact to about 1e-14 of their size on the left only. Where they are so close that the density is flat between them, u
    itself is stretched. A value that rounding would put outside of the limits becomes the float32 next inside; where there is none between
    them, all values are the lower limit, rounded.
    """

    kind = "truncated_normal"

    def __init__(self, spec: TableSpec) -> None:
        setting = spec.initializer
        assert isinstance(setting, TruncatedNormal)
        self._key, self._salt = seed_key(spec.seed), table_salt(spec.name)
        mean, std, low, high = float(setting.mean), float(setting.std), float(setting.low), float(setting.high)
        self._lowest, self._highest = _inside(low, high)
        alpha, beta, width = (low - mean) / std, (high - mean) / std, (high - low) / std
        self._is_flat = width * (max(abs(alpha), abs(beta)) + width) < _FLAT
        if self._is_flat:
            self._mean, self._std, self._p_low, self._p_high = low, high - low, 0.0, 1.0
        elif alpha + beta > 0.0:
            self._mean, self._std, self._p_low, self._p_high = mean, -std, normal_cdf(-beta), normal_cdf(-alpha)
        else:
            self._mean, self._std, self._p_low, self._p_high = mean, std, normal_cdf(alpha), normal_cdf(beta)

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        _fill_truncated(
            target,
            places,
            ids,
            dim,
            self._key,
            self._salt,
            self._mean,
            self._std,
            self._p_low,
            self._p_high,
            self._lowest,
            self._highest,
            self._is_flat,
        )


def _inside(low: float, high: float) -> tuple[float, float]:
    """Return the least and the greatest float32 between two limits; the lower one, rounded, for both where there is none."""
    lowest = _float32(low)
    if float(lowest) < low:
        lowest = np.nextafter(lowest, np.float32(FLOAT32_MAX))
    highest = _float32(high)
    if float(highest) > high:
        highest = np.nextafter(highest, np.float32(-FLOAT32_MAX))
    if lowest > highest:
        lowest = highest = _float32(low)
    return float(lowest), float(highest)


def _float32(limit: float) -> np.float32:
    return np.float32(min(max(limit, -FLOAT32_MAX), FLOAT32_MAX))


@kernel
def _fill_truncated(
    target: Rows,
    places: Slots,
    ids: Ids,
    dim: int,
    key: np.uint64,
    salt: np.uint64,
    mean: float,
    std: float,
    p_low: float,
    p_high: float,
    lowest: float,
    highest: float,
    is_flat: bool,
) -> None:
    for i in range(places.size):
        row = target[places[i]]
        stream = row_stream(key, salt, ids[i])
        for column in range(dim):
            p = p_low + uniform_52(bits_of(stream, column)) * (p_high - p_low)
            z = p if is_flat else normal_quantile(min(p, _P_MAX))
            row[column] = np.float32(min(max(mean + std * z, lowest), highest))

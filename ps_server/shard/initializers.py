"""What an id reads as before it has a row: a pure function of (seed, table name, id, column).

Random values are counter-based (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; with splitmix64's walk and
the table's own mix in place of their ciphers): no state, so any server computes any of them, in any order, to the same bits.

Only + - * / and sqrt touch a value (R16): the logarithm that the normal distribution needs is built of these.
"""

from abc import ABC, abstractmethod
from math import sqrt

import numpy as np
import numpy.typing as npt

from ps_proto.values import INITIALIZERS, Assigned, Constant, Normal, TableSpec, Uniform, Zeros
from sharding.hashing import hash_id, mix64, table_salt
from sharding.kernel import kernel

Ids = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]
Slots = npt.NDArray[np.int32]

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 / golden ratio, odd: splitmix64's step
_ONE = np.uint64(1)
_SHIFT_24 = np.uint64(40)  # keeps the top 24 bits
_SHIFT_52 = np.uint64(12)  # keeps the top 52: half a step more is still exact in float64, and never 0 or 1
_SQRT_HALF = 0.7071067811865476
_LN_2 = 0.6931471805599453


class RowInitializer(ABC):
    """Writes initial values."""

    has_values = True

    @abstractmethod
    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        """Write the initial row of each of `ids` uint64[n] into the first `dim` columns of target[places[i]].

        target  float32[m, at least dim], written.     places  int32[n].
        """


def row_initializer(spec: TableSpec) -> RowInitializer:
    """Return what fills the rows of the table `spec`."""
    salt = table_salt(spec.name)
    match spec.initializer:
        case Constant(value):
            return ConstantRows(value)
        case Zeros():
            return ConstantRows(0.0)
        case Uniform(low, high):
            return UniformRows(spec.seed, salt, low, high)
        case Normal(mean, std):
            return NormalRows(spec.seed, salt, mean, std)
        case Assigned():
            return NoRows()
    raise ValueError(f"no such initializer here: {spec.initializer.kind!r}; known are {sorted(INITIALIZERS)}")


class ConstantRows(RowInitializer):
    """The same value everywhere."""

    def __init__(self, value: float) -> None:
        self._value = value

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        _fill_constant(target, places, dim, self._value)


class UniformRows(RowInitializer):
    """low + (high - low) · u in float64, u of 24 random bits; what would round up to `high` becomes the float32 below it."""

    def __init__(self, seed: int, salt: np.uint64, low: float, high: float) -> None:
        self._key, self._salt, self._low, self._high = _seed_key(seed), salt, low, high
        highest = np.float32(high)
        if float(highest) >= high:
            highest = np.nextafter(highest, np.float32(-np.inf))
        self._highest = float(max(highest, np.float32(low)))

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        _fill_uniform(target, places, ids, dim, self._key, self._salt, self._low, self._high, self._highest)


class NormalRows(RowInitializer):
    """mean + std · z in float64, z the normal quantile of 52 random bits."""

    def __init__(self, seed: int, salt: np.uint64, mean: float, std: float) -> None:
        self._key, self._salt, self._mean, self._std = _seed_key(seed), salt, mean, std

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        _fill_normal(target, places, ids, dim, self._key, self._salt, self._mean, self._std)


class NoRows(RowInitializer):
    """No initial value: a row is there once it was assigned."""

    has_values = False

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        """Raise ValueError: whoever reads such a row has not asked whether it is there."""
        raise ValueError(f"{ids.size} rows have no value, and the table has no initializer; the first is id {ids[0]}")


def _seed_key(seed: int) -> np.uint64:
    return np.uint64(mix64(np.uint64(seed) ^ _GOLDEN))  # not the seed itself: seed 0 must not be the plain hash, and 1 not its neighbour


@kernel
def _stream(key: np.uint64, salt: np.uint64, id: np.uint64) -> np.uint64:
    """Return where the random numbers of a row begin; those of column j are mix64 of the j + 1st step from there."""
    return mix64(hash_id(salt, id) ^ key)


@kernel
def _fill_constant(target: Rows, places: Slots, dim: int, value: float) -> None:
    for i in range(places.size):
        row = target[places[i]]
        for column in range(dim):
            row[column] = np.float32(value)


@kernel
def _fill_uniform(
    target: Rows, places: Slots, ids: Ids, dim: int, key: np.uint64, salt: np.uint64, low: float, high: float, highest: float
) -> None:
    for i in range(places.size):
        row = target[places[i]]
        step = _stream(key, salt, ids[i])
        for column in range(dim):
            step = step + _GOLDEN
            u = np.float64(mix64(step) >> _SHIFT_24) * 2.0**-24
            row[column] = min(np.float32(low + (high - low) * u), np.float32(highest))


@kernel
def _fill_normal(target: Rows, places: Slots, ids: Ids, dim: int, key: np.uint64, salt: np.uint64, mean: float, std: float) -> None:
    for i in range(places.size):
        row = target[places[i]]
        step = _stream(key, salt, ids[i])
        for column in range(dim):
            step = step + _GOLDEN
            p = (np.float64(mix64(step) >> _SHIFT_52) + 0.5) * 2.0**-52
            row[column] = np.float32(mean + std * normal_quantile(p))


@kernel
def log(x: float) -> float:
    """Return the natural logarithm of 0 < x <= 1, to about 1e-16 of its size; the same bits on every machine.

    x = m · 2^e with m in [√½, √2), s = (m - 1) / (m + 1), log x = e · ln 2 + 2 · (s + s³/3 + s⁵/5 + ...), |s| < 0.172, to s²³.
    """
    m = x
    e = 0.0
    while m < _SQRT_HALF:
        m = m * 2.0
        e = e - 1.0
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    series = 1.0 / 23.0
    for k in range(10, -1, -1):
        series = series * square + 1.0 / (2.0 * k + 1.0)
    return e * _LN_2 + 2.0 * s * series


@kernel
def normal_quantile(p: float) -> float:
    """Return z with P(Z <= z) = p for a standard normal Z, 0 < p < 1, to about 1e-16 of its size.

    Wichura, "Algorithm AS 241: The percentage points of the normal distribution", Applied Statistics 37 (1988), routine PPND16.
    """
    q = p - 0.5
    if -0.425 <= q <= 0.425:
        r = 0.180625 - q * q
        above = (
            (
                (
                    (((2.5090809287301226727e3 * r + 3.3430575583588128105e4) * r + 6.7265770927008700853e4) * r + 4.5921953931549871457e4)
                    * r
                    + 1.3731693765509461125e4
                )
                * r
                + 1.9715909503065514427e3
            )
            * r
            + 1.3314166789178437745e2
        ) * r + 3.3871328727963666080e0
        below = (
            (
                (
                    (((5.2264952788528545610e3 * r + 2.8729085735721942674e4) * r + 3.9307895800092710610e4) * r + 2.1213794301586595867e4)
                    * r
                    + 5.3941960214247511077e3
                )
                * r
                + 6.8718700749205790830e2
            )
            * r
            + 4.2313330701600911252e1
        ) * r + 1.0
        return q * above / below
    tail = p if q < 0.0 else 1.0 - p
    r = sqrt(-log(tail))
    if r <= 5.0:
        r = r - 1.6
        above = (
            (
                (
                    (
                        ((7.74545014278341407640e-4 * r + 2.27238449892691845833e-2) * r + 2.41780725177450611770e-1) * r
                        + 1.27045825245236838258e0
                    )
                    * r
                    + 3.64784832476320460504e0
                )
                * r
                + 5.76949722146069140550e0
            )
            * r
            + 4.63033784615654529590e0
        ) * r + 1.42343711074968357734e0
        below = (
            (
                (
                    (
                        ((1.05075007164441684324e-9 * r + 5.47593808499534494600e-4) * r + 1.51986665636164571966e-2) * r
                        + 1.48103976427480074590e-1
                    )
                    * r
                    + 6.89767334985100004550e-1
                )
                * r
                + 1.67638483018380384940e0
            )
            * r
            + 2.05319162663775882187e0
        ) * r + 1.0
    else:
        r = r - 5.0
        above = (
            (
                (
                    (
                        ((2.01033439929228813265e-7 * r + 2.71155556874348757815e-5) * r + 1.24266094738807843860e-3) * r
                        + 2.65321895265761230930e-2
                    )
                    * r
                    + 2.96560571828504891230e-1
                )
                * r
                + 1.78482653991729133580e0
            )
            * r
            + 5.46378491116411436990e0
        ) * r + 6.65790464350110377720e0
        below = (
            (
                (
                    (
                        ((2.04426310338993978564e-15 * r + 1.42151175831644588870e-7) * r + 1.84631831751005468180e-5) * r
                        + 7.86869131145613259100e-4
                    )
                    * r
                    + 1.48753612908506148525e-2
                )
                * r
                + 1.36929880922735805310e-1
            )
            * r
            + 5.99832206555887937690e-1
        ) * r + 1.0
    z = above / below
    return -z if q < 0.0 else z

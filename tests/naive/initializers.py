"""Initial values as plain Python computes them: whole numbers without end and float64, one column at a time."""

from math import ldexp, sqrt

import numpy as np
import numpy.typing as npt

from naive.sharding import hash_id, mix64
from ps_proto.values import (
    Constant,
    HeNormal,
    HeUniform,
    Normal,
    TableSpec,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zeros,
)

GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1

CENTRE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)  # fmt: skip
NEAR_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)  # fmt: skip
FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)  # fmt: skip


def initial_row(spec: TableSpec, id: int) -> npt.NDArray[np.float32]:
    """Return the initial row of `id`, float32[dim]."""
    return np.array([np.float32(_value(spec, id, column)) for column in range(spec.dim)], dtype=np.float32)


def _value(spec: TableSpec, id: int, column: int) -> float:
    start = mix64(hash_id(spec.name, id) ^ mix64(spec.seed ^ GOLDEN))
    bits = mix64((start + (column + 1) * GOLDEN) & MASK)
    match spec.initializer:
        case Zeros():
            return 0.0
        case Constant(value):
            return value
        case Uniform(low, high):
            return _uniform(bits, low, high)
        case XavierUniform(fan_out, fan_in, gain):
            bound = gain * sqrt(6 / ((fan_in or spec.dim) + fan_out))
            return _uniform(bits, -bound, bound)
        case HeUniform(fan_in, gain):
            bound = gain * sqrt(3 / (fan_in or spec.dim))
            return _uniform(bits, -bound, bound)
        case Normal(mean, std):
            return mean + std * normal_quantile(_between_0_and_1(bits))
        case XavierNormal(fan_out, fan_in, gain):
            return gain * sqrt(2 / ((fan_in or spec.dim) + fan_out)) * normal_quantile(_between_0_and_1(bits))
        case HeNormal(fan_in, gain):
            return gain / sqrt(fan_in or spec.dim) * normal_quantile(_between_0_and_1(bits))
        case TruncatedNormal(mean, std, low, high):
            return _inside(_truncated(_between_0_and_1(bits), mean, std, low, high), low, high)
    raise AssertionError(f"no twin of {spec.initializer}")


def _between_0_and_1(bits: int) -> float:
    return ((bits >> 12) + 0.5) / 2**52


def _uniform(bits: int, low: float, high: float) -> float:
    value = low + (high - low) * ((bits >> 40) / 2**24)
    if float(np.float32(value)) < high:
        return value
    return float(max(np.nextafter(np.float32(high), np.float32(-np.inf)), np.float32(low)))


def _truncated(u: float, mean: float, std: float, low: float, high: float) -> float:
    alpha, beta, width = (low - mean) / std, (high - mean) / std, (high - low) / std
    if width * (max(abs(alpha), abs(beta)) + width) < 2**-24:
        return low + (high - low) * u
    if alpha + beta > 0:
        return mean - std * _truncated_quantile(u, -beta, -alpha)
    return mean + std * _truncated_quantile(u, alpha, beta)


def _truncated_quantile(u: float, alpha: float, beta: float) -> float:
    p = normal_cdf(alpha) + u * (normal_cdf(beta) - normal_cdf(alpha))
    return normal_quantile(min(p, 1 - 2**-53))


def _inside(value: float, low: float, high: float) -> float:
    """Return the float32 next to `value` of those between the limits, of which there are some."""
    rounded = np.float32(value)
    while float(rounded) < low:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    while float(rounded) > high:
        rounded = np.nextafter(rounded, np.float32(-np.inf))
    return float(rounded)


def exp(x: float) -> float:
    """Return e^x for -700 <= x <= 0 by its series."""
    k = -int(0.5 - x / (0.6931471803691238 + 1.9082149292705877e-10))
    r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10
    total = 1.0
    for n in range(17, 0, -1):
        total = total * r / n + 1
    return ldexp(total, k)


def normal_cdf(x: float) -> float:
    """Return Φ by its series near 0, and by Laplace's continued fraction further out."""
    if abs(x) >= 37:
        return float(x > 0)
    c = int(x * 16) / 16
    density = exp(-c * c / 2) * exp(-0.5 * (x - c) * (x + c)) / 2.5066282746310002
    if abs(x) <= 1.5:
        total = 1.0
        for n in range(30, 0, -1):
            total = total * (x * x) / (2 * n + 1) + 1
        return density * x * total + 0.5
    below = abs(x)
    for n in range(200, 0, -1):
        below = abs(x) + n / below
    return density / below if x < 0 else 1 - density / below


def log(x: float) -> float:
    """Return the logarithm of 0 < x <= 1 by its series."""
    exponent = 0
    while x < 0.7071067811865476:
        x, exponent = x * 2, exponent - 1
    s = (x - 1) / (x + 1)
    return exponent * 0.6931471805599453 + 2 * s * _polynomial([1 / k for k in range(23, 0, -2)], s * s)


def normal_quantile(p: float) -> float:
    """Return PPND16 of Wichura, AS 241."""
    q = p - 0.5
    if abs(q) <= 0.425:
        return q * _polynomial(CENTRE[0], 0.180625 - q * q) / _polynomial(CENTRE[1], 0.180625 - q * q)
    r = sqrt(-log(min(p, 1 - p)))
    (above, below), shift = (NEAR_TAIL, 1.6) if r <= 5 else (FAR_TAIL, 5.0)
    z = _polynomial(above, r - shift) / _polynomial(below, r - shift)
    return z if q > 0 else -z


def _polynomial(coefficients: tuple[float, ...] | list[float], x: float) -> float:
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total

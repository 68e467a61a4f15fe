"""The normal distribution function, of + - * / only (R16). Plain Python: a table needs two of its values, once."""

from math import ldexp

_LN_2_HIGH = 0.6931471803691238  # its last 20 bits are 0, so that a whole number up to 1,000 times it is exact
_LN_2_LOW = 1.9082149292705877e-10
_SQRT_2_PI = 2.5066282746310002
_SERIES_TO = 1.5  # beyond, ½ - ... would cancel
_SERIES_TERMS = 30  # the last is below 1e-18 of the sum at 1.5
_FRACTION_TERMS = 200  # what is left at 1.5 is below 1e-20


def exp(x: float) -> float:
    """Return e^x for x <= 0, to about 2e-16 of its size; 0 below -700.

    x = k · ln 2 + r with |r| <= ½ ln 2, e^x = 2^k · (1 + r + r²/2 + ... + r^17/17!).
    """
    if x < -700.0:
        return 0.0
    k = -int(0.5 - x / (_LN_2_HIGH + _LN_2_LOW))
    r = (x - k * _LN_2_HIGH) - k * _LN_2_LOW
    series = 1.0
    for n in range(17, 0, -1):
        series = 1.0 + series * r / n
    return ldexp(series, k)  # exact: a whole power of two


def normal_cdf(x: float) -> float:
    """Return Φ(x) = P(Z <= x) for a standard normal Z; for x <= 0 to about 1e-14 of its size, also far out; 0 from -37 on.

    Near 0 the series Φ(x) = ½ + φ(x) · (x + x³/3 + x⁵/15 + ...), further out Laplace's continued fraction for the tail,
    1 - Φ(x) = φ(x) / (x + 1/(x + 2/(x + 3/(x + ...)))): Abramowitz and Stegun, 26.2.11 and 26.2.14.
    """
    distance = abs(x)
    if distance >= 37.0:
        return 0.0 if x < 0.0 else 1.0
    if distance <= _SERIES_TO:
        series = 1.0
        for n in range(_SERIES_TERMS, 0, -1):
            series = 1.0 + series * (x * x) / (2.0 * n + 1.0)
        return 0.5 + _density(x) * x * series
    fraction = distance
    for n in range(_FRACTION_TERMS, 0, -1):
        fraction = distance + n / fraction
    tail = _density(distance) / fraction
    return tail if x < 0.0 else 1.0 - tail


def _density(x: float) -> float:
    """Return φ(x). x² = c² + (x - c)(x + c), c being x in sixteenths, whose square is exact: rounding x² would cost digits far out."""
    c = int(x * 16.0) / 16.0
    return exp(-0.5 * c * c) * exp(-0.5 * (x - c) * (x + c)) / _SQRT_2_PI

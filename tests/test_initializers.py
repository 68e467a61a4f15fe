"""Initial values: pinned, equal to their slow twins bit for bit, and distributed as they say."""

from math import erf, erfc, sqrt
from math import exp as libm_exp
from math import log as libm_log

import numpy as np
import numpy.typing as npt
import pytest
import torch

from naive.initializers import initial_row
from naive.initializers import normal_cdf as naive_cdf
from naive.initializers import normal_quantile as naive_quantile
from ps_proto import values
from ps_proto.errors import InvalidRequest
from ps_proto.values import (
    Assigned,
    Constant,
    HeNormal,
    HeUniform,
    Initializer,
    Normal,
    TableSpec,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zeros,
)
from ps_server.shard.initializers import INITIALIZERS, constant, normal, row_initializer, truncated_normal, uniform
from ps_server.shard.initializers.distribution import exp, normal_cdf
from ps_server.shard.initializers.quantile import log, normal_quantile

TRUNCATED = [
    TruncatedNormal(),
    TruncatedNormal(mean=1.0, std=0.5, low=0.25, high=3.0),  # further to the right: reflected
    TruncatedNormal(low=3.0, high=4.0),  # both limits in a tail
    TruncatedNormal(mean=5.0, std=2.0, low=-3.0, high=-1.0),  # and in the other
    TruncatedNormal(low=-100.0, high=1e300),  # as good as none
    TruncatedNormal(low=29.5, high=60.0),  # as far out as it goes
    TruncatedNormal(std=1e20, low=-1.0, high=1.0),  # flat
]
SETTINGS: list[Initializer] = [
    Zeros(),
    Constant(-0.1),
    Uniform(-0.01, 0.01),
    Uniform(1.0, 1.0001),
    Normal(),
    Normal(5.0, 0.25),
    *TRUNCATED,
    XavierUniform(fan_out=40),
    XavierUniform(fan_out=40, fan_in=3, gain=2.0),
    XavierNormal(fan_out=40),
    XavierNormal(fan_out=40, fan_in=3, gain=2.0),
    HeUniform(),
    HeUniform(fan_in=3, gain=1.0),
    HeNormal(),
    HeNormal(fan_in=3, gain=1.0),
]
# The bits of float32 values, of table "user" with dim 3 and seed 7: a change here changes every model that was ever trained.
PINNED = {
    "zeros": (Zeros(), [[0, 0, 0], [0, 0, 0]]),
    "constant": (Constant(-0.1), [[0xBDCCCCCD] * 3, [0xBDCCCCCD] * 3]),
    "uniform": (Uniform(-1.0, 1.0), [[0xBF29B19A, 0x3F35861E, 0xBD413120], [0xBF63E574, 0x3E1AB308, 0xBF0035CA]]),
    "normal": (Normal(), [[0xBF75B853, 0x3F872E4E, 0xBD72455D], [0xBFCCB1FF, 0x3E430F66, 0xBF2D0008]]),
    "truncated_normal": (TruncatedNormal(), [[0xBF66CC2C, 0x3F7CE92D, 0xBD673C4E], [0xBFB8218F, 0x3E3A1588, 0xBF23EBCC]]),
    "truncated_normal in a tail": (
        TruncatedNormal(low=3.0, high=4.0),
        [[0x405E8114, 0x4042F795, 0x404D8CF2], [0x406D60B1, 0x404A344A, 0x4058679D]],
    ),
    "xavier_uniform": (XavierUniform(fan_out=40), [[0xBE7D8D58, 0x3E879D3D, 0xBC9054CB], [0xBEAA422A, 0x3D6725D9, 0xBE3F917D]]),
    "xavier_normal": (XavierNormal(fan_out=40), [[0xBE53F92E, 0x3E693B1A, 0xBC50FF7C], [0xBEB09539, 0x3D284561, 0xBE153D9C]]),
    "he_uniform": (HeUniform(), [[0xBF6FFBB4, 0x3F805B56, 0xBD889B78], [0xBFA125A3, 0x3E5AC725, 0xBF355105]]),
    "he_normal": (HeNormal(), [[0xBF48A12A, 0x3F5CBFDC, 0xBD45D03B], [0xBFA7220D, 0x3E1F4415, 0xBF0D4106]]),
}
EDGE_IDS = [0, 1, 2, 2**63, 2**64 - 1]


def fill(spec: TableSpec, ids: list[int] | npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    rows = np.full((len(ids), spec.dim), np.nan, dtype=np.float32)
    row_initializer(spec).fill(rows, np.arange(len(ids), dtype=np.int32), np.array(ids, dtype=np.uint64), spec.dim)
    return rows


@pytest.mark.parametrize("initializer", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_values_equal_the_slow_twin(initializer: Initializer, seed: int) -> None:
    spec = TableSpec("user", 17, initializer=initializer, seed=seed)
    ids = EDGE_IDS + list(range(100, 140))
    want = np.array([initial_row(spec, id) for id in ids])
    assert fill(spec, ids).tobytes() == want.tobytes()


@pytest.mark.parametrize("name", PINNED)
def test_values_are_pinned(name: str) -> None:
    initializer, bits = PINNED[name]
    assert fill(TableSpec("user", 3, initializer=initializer, seed=7), [0, 2**64 - 1]).view(np.uint32).tolist() == bits


def test_every_initializer_has_its_rows_and_every_kind_is_pinned() -> None:
    assert INITIALIZERS.keys() == values.INITIALIZERS.keys()
    assert {initializer.kind for initializer, _ in PINNED.values()} == values.INITIALIZERS.keys() - {"assigned"}


def test_a_value_depends_on_seed_name_id_and_column_and_on_nothing_else() -> None:
    spec = TableSpec("user", 4, initializer=Normal(), seed=1)
    row = fill(spec, [5])[0]
    assert fill(TableSpec("user", 2, initializer=Normal(), seed=1), [9, 5])[1].tolist() == row[:2].tolist()
    others = [fill(TableSpec("user", 4, initializer=Normal(), seed=2), [5]), fill(TableSpec("item", 4, initializer=Normal(), seed=1), [5])]
    others.append(fill(spec, [6]))
    for other in others:
        assert not set(other[0].tolist()) & set(row.tolist())
    assert len(set(row.tolist())) == 4


def test_only_the_places_and_columns_asked_for_are_written() -> None:
    target = np.full((4, 3), 9.0, dtype=np.float32)
    row_initializer(TableSpec("user", 2, initializer=Constant(1.0))).fill(
        target, np.array([2, 0], dtype=np.int32), np.array([1, 2], dtype=np.uint64), 2
    )
    assert target.tolist() == [[1, 1, 9], [9, 9, 9], [1, 1, 9], [9, 9, 9]]


def test_uniform_values_fill_their_range_evenly() -> None:
    values = fill(TableSpec("user", 16, initializer=Uniform(-3.0, 5.0)), np.arange(20_000, dtype=np.uint64)).ravel()
    assert -3.0 <= values.min() < -2.999
    assert 4.999 < values.max() < 5.0
    counts, _ = np.histogram(values, bins=64, range=(-3.0, 5.0))
    expected = values.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # chi square of 63 degrees of freedom: 1 in 10,000 is above 112


def test_uniform_never_reaches_its_upper_bound_and_a_point_is_a_point() -> None:
    narrow = fill(TableSpec("user", 64, initializer=Uniform(1.0, 1.0 + 2**-23)), np.arange(100, dtype=np.uint64))
    assert set(narrow.ravel().tolist()) == {1.0}
    assert set(fill(TableSpec("user", 4, initializer=Uniform(0.1, 0.1)), EDGE_IDS).ravel().tolist()) == {float(np.float32(0.1))}


def test_normal_values_have_the_moments_and_quantiles_of_the_normal_distribution() -> None:
    values = fill(TableSpec("user", 16, initializer=Normal(2.0, 3.0)), np.arange(20_000, dtype=np.uint64)).ravel().astype(np.float64)
    z = (values - 2.0) / 3.0
    deviations = np.array([z.mean(), (z**2).mean() - 1, (z**3).mean(), (z**4).mean() - 3])
    assert (np.abs(deviations) < 5 * np.sqrt(np.array([1, 2, 15, 96]) / z.size)).all()  # five standard errors
    for point in (-3, -2, -1, 0, 1, 2, 3):
        p = (1 + erf(point / sqrt(2))) / 2
        assert abs((z <= point).mean() - p) < 5 * sqrt(p * (1 - p) / z.size)


def draw(initializer: Initializer, rows: int = 20_000) -> npt.NDArray[np.float64]:
    """Return the values of as many rows of 16, as float64[16 * rows]."""
    return fill(TableSpec("user", 16, initializer=initializer), np.arange(rows, dtype=np.uint64)).ravel().astype(np.float64)


def phi(x: float) -> float:
    """Return Φ(x) as libm has it."""
    return erfc(-x / sqrt(2)) / 2


@pytest.mark.parametrize("setting", TRUNCATED, ids=str)
def test_truncated_normal_values_have_their_distribution_and_moments(setting: TruncatedNormal) -> None:
    drawn = draw(setting)
    assert setting.low <= drawn.min() <= drawn.max() <= setting.high
    # In standard deviations from the mean, on the side where libm's tail is exact too.
    sign = -1 if setting.low + setting.high > 2 * setting.mean else 1
    alpha, beta = sorted([sign * (limit - setting.mean) / setting.std for limit in (setting.low, setting.high)])
    z = np.sort(sign * (drawn - setting.mean) / setting.std)
    if setting.std > 1e6:  # flat: libm's difference would be noise
        expected = (z[::1000] - alpha) / (beta - alpha)
    else:
        expected = np.array([(phi(point) - phi(alpha)) / (phi(beta) - phi(alpha)) for point in z[::1000]])
    furthest = np.abs(expected - np.arange(z.size)[::1000] / z.size).max()
    assert furthest < 2.2 / sqrt(z.size)  # Kolmogorov and Smirnov: beyond in 1 of 8,000


def test_truncated_normal_values_have_the_moments_of_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    ours = draw(TruncatedNormal(mean=0.5, std=1.5, low=-1.0, high=2.5))
    theirs = torch.nn.init.trunc_normal_(torch.empty(320_000), 0.5, 1.5, -1.0, 2.5, generator=generator).double().numpy()
    std_error = ours.std() * sqrt(2 / ours.size)
    assert abs(ours.mean() - theirs.mean()) < 5 * std_error
    assert abs(ours.std() - theirs.std()) < 5 * std_error


@pytest.mark.parametrize(
    ("low", "high"), [(0.1, 0.1 + 1e-7), (-0.3, 0.3), (0.1, 2.0), (-2.0, -0.7), (1.0, 1.0 + 2**-23), (7.7, 7.8)], ids=str
)
def test_truncated_normal_values_stay_inside_after_rounding(low: float, high: float) -> None:
    drawn = draw(TruncatedNormal(low=low, high=high), rows=500)
    assert low <= drawn.min() <= drawn.max() <= high


def test_a_truncated_normal_without_a_float32_between_its_limits_is_the_lower_one() -> None:
    assert set(draw(TruncatedNormal(low=0.1, high=0.1 + 1e-12), rows=10).tolist()) == {float(np.float32(0.1))}


@pytest.mark.parametrize(
    ("low", "high", "field"),
    [(30.1, 31.0, "TruncatedNormal.low"), (-40.0, -30.1, "TruncatedNormal.high"), (1.0, 1.0, "TruncatedNormal.low")],
)
def test_limits_that_leave_no_probability_are_refused(low: float, high: float, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TruncatedNormal(low=low, high=high)
    assert caught.value.field == field


@pytest.mark.parametrize("fan_in", [None, 24])
def test_xavier_and_he_have_the_moments_of_torch(fan_in: int | None) -> None:
    """torch takes fan_in from a weight's columns and fan_out from its rows."""
    dim, rows = fan_in or 16, 40
    generator = torch.Generator().manual_seed(1)
    init, weight = torch.nn.init, torch.empty(rows, dim)
    pairs: list[tuple[Initializer, torch.Tensor]] = [
        (XavierUniform(rows, fan_in, gain=1.5), init.xavier_uniform_(weight.clone(), 1.5, generator=generator)),
        (XavierNormal(rows, fan_in, gain=1.5), init.xavier_normal_(weight.clone(), 1.5, generator=generator)),
        (HeUniform(fan_in), init.kaiming_uniform_(weight.clone(), nonlinearity="relu", generator=generator)),
        (HeNormal(fan_in), init.kaiming_normal_(weight.clone(), nonlinearity="relu", generator=generator)),
    ]
    for setting, theirs in pairs:
        ours = draw(setting)
        assert abs(ours.mean()) < 5 * ours.std() / sqrt(ours.size)
        assert ours.std() == pytest.approx(float(theirs.std()), rel=5 / sqrt(2 * theirs.numel()))
    bounds = [1.5 * sqrt(6 / (dim + rows)), sqrt(2) * sqrt(3 / dim)]
    for (setting, _), bound in zip(pairs[::2], bounds, strict=True):
        ours = draw(setting)
        assert 0.9999 * bound < np.abs(ours).max() <= bound * (1 + 2**-24)
        assert ours.std() == pytest.approx(bound / sqrt(3), rel=0.01)
    stds = [1.5 * sqrt(2 / (dim + rows)), sqrt(2) / sqrt(dim)]
    for (setting, _), std in zip(pairs[1::2], stds, strict=True):
        assert draw(setting).std() == pytest.approx(std, rel=0.01)


def test_neighbouring_ids_and_columns_are_uncorrelated() -> None:
    z = fill(TableSpec("user", 16, initializer=Normal()), np.arange(20_000, dtype=np.uint64)).astype(np.float64)
    assert abs((z[1:] * z[:-1]).mean()) < 5 / sqrt(z[1:].size)
    assert abs((z[:, 1:] * z[:, :-1]).mean()) < 5 / sqrt(z[:, 1:].size)


@pytest.mark.parametrize("p", [2.0**-53, 1e-12, 1e-6, 0.0749, 0.075, 0.0751, 0.3, 0.5, 0.6, 0.925, 0.9251, 1 - 1e-9, 1 - 2.0**-53])
def test_the_normal_quantile_equals_its_twin_and_inverts_the_distribution(p: float) -> None:
    z = normal_quantile(p)
    assert z == naive_quantile(p)
    tail = (1 + erf(-abs(z) / sqrt(2))) / 2
    if abs(z) < 5:  # further out 1 + erf cancels
        assert tail == pytest.approx(min(p, 1 - p), rel=1e-9)


@pytest.mark.parametrize("p", [2.0**-53, 0.025, 0.3])
def test_the_normal_quantile_is_odd(p: float) -> None:
    assert normal_quantile(1 - p) == -normal_quantile(1 - (1 - p))


def test_the_published_quantiles() -> None:
    assert normal_quantile(0.25) == pytest.approx(-0.6744897501960817, rel=1e-15)  # the test values of AS 241 itself
    assert normal_quantile(0.001) == pytest.approx(-3.090232306167814, rel=1e-15)
    assert normal_quantile(1e-20) == pytest.approx(-9.262340089798408, rel=1e-15)


@pytest.mark.parametrize("x", [1.0, 0.999, 0.7071067811865476, 0.7071067811865475, 0.5, 0.1, 1e-10, 2.0**-53])
def test_the_logarithm_is_one(x: float) -> None:
    assert log(x) == pytest.approx(libm_log(x), rel=4e-16, abs=1e-18)


@pytest.mark.parametrize("x", [0.0, -1e-300, -1e-9, -0.3, -0.3465735902799727, -0.35, -1.0, -20.5, -450.0, -700.0])
def test_the_exponential_is_one(x: float) -> None:
    assert exp(x) == pytest.approx(libm_exp(x), rel=4e-16)
    assert exp(-701.0) == 0.0


@pytest.mark.parametrize("x", [-36.9, -30.0, -12.3, -8.0, -3.1, -1.6, -1.5, -1.4999, -0.7, -1e-9, 0.0, 1e-9, 0.7, 1.5, 1.6, 8.0, 36.9])
def test_the_normal_distribution_function_equals_its_twin_and_libms(x: float) -> None:
    assert normal_cdf(x) == naive_cdf(x)
    # libm is handed x / √2, whose rounding alone moves the tail by x² · 1e-16 of its size.
    assert normal_cdf(x) == pytest.approx(phi(x), rel=4e-15 + 2e-16 * x * x)
    if -20 < x < 1.5:
        assert normal_quantile(normal_cdf(x)) == pytest.approx(x, rel=1e-13, abs=1e-15)


def test_the_published_tails() -> None:
    assert normal_cdf(-5.0) == pytest.approx(2.866515718791939e-07, rel=1e-15)
    assert normal_cdf(-10.0) == pytest.approx(7.619853024160526e-24, rel=1e-15)
    assert normal_cdf(-30.0) == pytest.approx(4.906713927148187e-198, rel=1e-14)
    assert (normal_cdf(-40.0), normal_cdf(40.0), normal_cdf(-np.inf), normal_cdf(np.inf)) == (0.0, 1.0, 0.0, 1.0)


def test_a_table_without_initial_values_says_so() -> None:
    with pytest.raises(ValueError, match="first is id 3"):
        fill(TableSpec("dense", 1, initializer=Assigned()), [3])


def test_its_kernels_are_compiled_once() -> None:
    for initializer in SETTINGS:
        fill(TableSpec("user", 3, initializer=initializer), EDGE_IDS)
    kernels = (constant._fill_constant, uniform._fill_uniform, normal._fill_normal, truncated_normal._fill_truncated)
    assert [len(getattr(kernel, "signatures", [()])) for kernel in kernels] == [1] * 4

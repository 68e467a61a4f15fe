"""Initial values: pinned, equal to their slow twins bit for bit, and distributed as they say."""

from math import erf, sqrt
from math import log as libm_log

import numpy as np
import numpy.typing as npt
import pytest

from naive.initializers import initial_row
from naive.initializers import normal_quantile as naive_quantile
from ps_proto.values import Assigned, Constant, Initializer, Normal, TableSpec, Uniform, Zeros
from ps_server.shard import initializers
from ps_server.shard.initializers import log, normal_quantile, row_initializer

INITIALIZERS = [Zeros(), Constant(-0.1), Uniform(-0.01, 0.01), Uniform(1.0, 1.0001), Normal(), Normal(5.0, 0.25)]
# The bits of float32 values: a change here changes every model that was ever trained.
PINNED_UNIFORM = [[0xBF29B19A, 0x3F35861E, 0xBD413120], [0xBF63E574, 0x3E1AB308, 0xBF0035CA]]
PINNED_NORMAL = [[0xBF75B853, 0x3F872E4E, 0xBD72455D], [0xBFCCB1FF, 0x3E430F66, 0xBF2D0008]]
EDGE_IDS = [0, 1, 2, 2**63, 2**64 - 1]


def fill(spec: TableSpec, ids: list[int] | npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    rows = np.full((len(ids), spec.dim), np.nan, dtype=np.float32)
    row_initializer(spec).fill(rows, np.arange(len(ids), dtype=np.int32), np.array(ids, dtype=np.uint64), spec.dim)
    return rows


@pytest.mark.parametrize("initializer", INITIALIZERS, ids=str)
@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_values_equal_the_slow_twin(initializer: Initializer, seed: int) -> None:
    spec = TableSpec("user", 17, initializer=initializer, seed=seed)
    ids = EDGE_IDS + list(range(100, 140))
    want = np.array([initial_row(spec, id) for id in ids])
    assert fill(spec, ids).tobytes() == want.tobytes()


def test_values_are_pinned() -> None:
    uniform = fill(TableSpec("user", 3, initializer=Uniform(-1.0, 1.0), seed=7), [0, 2**64 - 1])
    normal = fill(TableSpec("user", 3, initializer=Normal(), seed=7), [0, 2**64 - 1])
    assert uniform.view(np.uint32).tolist() == PINNED_UNIFORM
    assert normal.view(np.uint32).tolist() == PINNED_NORMAL


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


def test_a_table_without_initial_values_says_so() -> None:
    with pytest.raises(ValueError, match="first is id 3"):
        fill(TableSpec("dense", 1, initializer=Assigned()), [3])


def test_its_kernels_are_compiled_once() -> None:
    for initializer in INITIALIZERS:
        fill(TableSpec("user", 3, initializer=initializer), EDGE_IDS)
    kernels = (initializers._fill_constant, initializers._fill_uniform, initializers._fill_normal)
    assert [len(getattr(kernel, "signatures", [()])) for kernel in kernels] == [1] * 3

"""Every optimizer and decorator: exactly its slow twin, and torch.optim, or its paper in float64, after a hundred steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import papers
from naive import optimizers as naive
from ps_proto import values
from ps_proto.values import Optimizer
from ps_server.shard import optimizers
from ps_server.shard.optimizers import DECORATORS, OPTIMIZERS, clipping, decoupled_weight_decay, delay_compensated, row_optimizer
from ps_server.shard.optimizers.adam import COUNT_MAX, power
from ps_server.shard.optimizers.optimizer import Origin
from ps_server.shard.slab import Slab
from sharding.arrays import read_only

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    setting: Optimizer
    reference: Callable[..., Any]  # a torch.optim class, or one like it in papers.py
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return str(self.setting)


def _case(setting: Optimizer, reference: Callable[..., Any], **arguments: Any) -> Case:
    return Case(setting, reference, arguments)


SGD, ADAM, RMS = torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop
CASES = [
    _case(values.SGD(lr=0.1), SGD, lr=0.1),
    _case(values.SGD(lr=0.1, weight_decay=0.05), SGD, lr=0.1, weight_decay=0.05),
    _case(values.SGD(lr=0.02, momentum=0.9), SGD, lr=0.02, momentum=0.9),
    _case(values.SGD(lr=0.02, momentum=0.8, dampening=0.3, weight_decay=0.1), SGD,
          lr=0.02, momentum=0.8, dampening=0.3, weight_decay=0.1),
    _case(values.SGD(lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.1), SGD,
          lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.1),
    _case(values.Adagrad(lr=0.05), torch.optim.Adagrad, lr=0.05),
    _case(values.Adagrad(lr=0.1, initial_accumulator_value=0.1, eps=1e-6, weight_decay=0.02), torch.optim.Adagrad,
          lr=0.1, initial_accumulator_value=0.1, eps=1e-6, weight_decay=0.02),
    _case(values.RowWiseAdagrad(lr=0.05), papers.RowWiseAdagrad, lr=0.05, initial=0.0, eps=1e-10, weight_decay=0.0),
    _case(values.RowWiseAdagrad(lr=0.1, initial_accumulator_value=0.1, eps=1e-3, weight_decay=0.02), papers.RowWiseAdagrad,
          lr=0.1, initial=0.1, eps=1e-3, weight_decay=0.02),
    _case(values.RMSprop(), RMS, lr=0.01),
    _case(values.RMSprop(lr=0.02, alpha=0.4, eps=1e-3, weight_decay=0.1), RMS, lr=0.02, alpha=0.4, eps=1e-3, weight_decay=0.1),
    _case(values.RMSprop(momentum=0.9), RMS, lr=0.01, momentum=0.9),
    _case(values.RMSprop(alpha=0.9, eps=1e-2, centered=True), RMS, lr=0.01, alpha=0.9, eps=1e-2, centered=True),
    _case(values.RMSprop(alpha=0.9, eps=1e-2, centered=True, momentum=0.5, weight_decay=0.1), RMS,
          lr=0.01, alpha=0.9, eps=1e-2, centered=True, momentum=0.5, weight_decay=0.1),
    _case(values.Adam(), ADAM, lr=0.001),
    _case(values.Adam(lr=0.02, betas=(0.3, 0.95), eps=1e-4), ADAM, lr=0.02, betas=(0.3, 0.95), eps=1e-4),
    _case(values.Adam(lr=0.01, betas=(0.0, 0.9), weight_decay=0.1), ADAM, lr=0.01, betas=(0.0, 0.9), weight_decay=0.1),
    _case(values.Adam(lr=0.01, amsgrad=True, weight_decay=0.01), ADAM, lr=0.01, amsgrad=True, weight_decay=0.01),
    _case(values.AdamW(), torch.optim.AdamW, lr=0.001, weight_decay=0.01),
    _case(values.AdamW(lr=0.01, betas=(0.8, 0.9), weight_decay=0.5, amsgrad=True), torch.optim.AdamW,
          lr=0.01, betas=(0.8, 0.9), weight_decay=0.5, amsgrad=True),
    _case(values.FTRL(), papers.FTRL, lr=0.1, beta=1.0, l1=0.0, l2=0.0),
    _case(values.FTRL(lr=0.5, beta=0.1, l1=2.0, l2=0.3), papers.FTRL, lr=0.5, beta=0.1, l1=2.0, l2=0.3),
    _case(values.FTRL(lr=0.3, beta=0.0, l1=0.7), papers.FTRL, lr=0.3, beta=0.0, l1=0.7, l2=0.0),
    _case(values.Lion(lr=0.01), papers.Lion, lr=0.01, beta1=0.9, beta2=0.99, weight_decay=0.0),
    _case(values.Lion(lr=0.02, betas=(0.7, 0.9), weight_decay=0.3), papers.Lion, lr=0.02, beta1=0.7, beta2=0.9, weight_decay=0.3),
    _case(values.ClippedByValue(values.Adagrad(lr=0.1), clip_value=0.5), papers.ClippedByValue,
          clip_value=0.5, inner=torch.optim.Adagrad, lr=0.1),
    _case(values.ClippedByRowNorm(values.SGD(lr=0.1), clip_row_norm=1.5), papers.ClippedByRowNorm, clip_row_norm=1.5, inner=SGD, lr=0.1),
    _case(values.DecoupledWeightDecay(values.Adam(lr=0.01), decoupled_weight_decay=0.3), torch.optim.AdamW, lr=0.01, weight_decay=0.3),
    _case(values.DelayCompensated(values.SGD(lr=0.1)), SGD, lr=0.1),  # with nothing to compensate
    _case(values.StalenessScaled(values.SGD(lr=0.1)), SGD, lr=0.1),  # with nothing stale
    _case(values.ClippedByValue(values.DecoupledWeightDecay(values.SGD(lr=0.05, momentum=0.5), decoupled_weight_decay=0.1), clip_value=1.0),
          papers.ClippedByValue, clip_value=1.0, inner=papers.SGDW, lr=0.05, momentum=0.5, decoupled_weight_decay=0.1),
]  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def make_slab(setting: Optimizer, rows: Array) -> Slab:
    """Return a slab that holds `rows`, in slots 0, 1, 2, ..., each with its initial state."""
    optimizer = row_optimizer(setting, rows.shape[1])
    slab = Slab(optimizer.width, len(rows))
    slab.records[:, : rows.shape[1]] = rows
    slab.records[:, rows.shape[1] :] = optimizer.initial_state()
    return slab


def apply(setting: Optimizer, slab: Slab, slots: list[int] | npt.NDArray[np.int64], gradients: Array, origin: Origin | None = None) -> None:
    optimizer = row_optimizer(setting, gradients.shape[1])
    optimizer.apply(slab, np.array(slots, dtype=np.int32), read_only(gradients), setting.parameters(), origin or Origin())


def random_rows(rng: np.random.Generator, num_rows: int, dim: int) -> Array:
    return rng.normal(size=(num_rows, dim)).astype(np.float32)


def test_every_setting_has_an_optimizer_and_a_case() -> None:
    kinds = {kind for case in CASES for kind in case.setting.label.split("+")}
    assert set(OPTIMIZERS) == set(values.OPTIMIZERS)
    assert set(DECORATORS) == set(values.DECORATED)
    assert kinds == {*OPTIMIZERS, *DECORATORS}


@each_case
@pytest.mark.parametrize("dim", [1, 3, 16, 67])
def test_it_equals_its_slow_twin(case: Case, dim: int) -> None:
    rng = np.random.default_rng(dim)
    label, parameters = case.setting.label, case.setting.parameters()
    rows = random_rows(rng, 9, dim)
    slab = make_slab(case.setting, rows)
    twin = [(row, naive.initial_state(label, dim, parameters)) for row in rows]
    for _ in range(25):
        slots = rng.integers(0, 9, 12)  # with repeats: applied one after another
        gradients = random_rows(rng, 12, dim) * np.float32(10.0) ** rng.integers(-6, 3, (12, 1)).astype(np.float32)
        gradients[0], gradients[1, 0] = 0.0, -0.0
        read, places, staleness = random_rows(rng, 5, dim), rng.integers(-1, 5, 12).astype(np.int32), int(rng.integers(0, 4))
        apply(case.setting, slab, slots, gradients, Origin(staleness=staleness, read=read_only(read), places=places))
        for slot, gradient, place in zip(slots.tolist(), gradients, places.tolist(), strict=True):
            w_read = None if place < 0 else read[place]
            twin[slot] = naive.step(label, twin[slot][0], twin[slot][1], gradient, parameters, staleness, w_read)
    assert slab.records.tobytes() == np.array([naive.record(*held) for held in twin]).tobytes()


@each_case
@pytest.mark.parametrize("dim", [1, 32])
def test_it_agrees_with_the_reference_after_a_hundred_steps(case: Case, dim: int) -> None:
    rng = np.random.default_rng(1)
    rows = random_rows(rng, 40, dim)
    slab, weights = make_slab(case.setting, rows), torch.nn.Parameter(torch.from_numpy(rows.copy()))
    optimizer = case.reference([weights], foreach=False, **case.arguments)
    for _ in range(100):
        gradients = random_rows(rng, 40, dim)
        weights.grad = torch.from_numpy(gradients.copy())
        optimizer.step()
        apply(case.setting, slab, list(range(40)), gradients)
    assert_close(case, slab.records[:, :dim], weights.detach().numpy())


@each_case
def test_with_rows_that_come_now_and_then_it_agrees_with_a_reference_for_each_row(case: Case) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, 12, 8)
    slab, weights = make_slab(case.setting, rows), [torch.nn.Parameter(torch.from_numpy(row.copy())) for row in rows]
    optimizer = case.reference(weights, foreach=False, **case.arguments)  # it leaves out, and does not count, a None gradient
    for _ in range(100):
        slots = np.flatnonzero(rng.random(12) < np.linspace(0.05, 1.0, 12))
        gradients = random_rows(rng, slots.size, 8)
        optimizer.zero_grad(set_to_none=True)
        for slot, gradient in zip(slots, gradients, strict=True):
            weights[slot].grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        apply(case.setting, slab, slots, gradients)
    assert_close(case, slab.records[:, :8], np.array([weight.detach().numpy() for weight in weights]))


def assert_close(case: Case, got: Array, want: Array) -> None:
    is_exact = issubclass(case.reference, papers.Written) if isinstance(case.reference, type) else False
    rtol = 1e-5 if is_exact else 1e-6  # float64 rounds neither the hundred steps nor the numbers in them; torch does as we do
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol / 2 * float(np.abs(want).max()))


@each_case
def test_rows_without_a_gradient_stay_bit_for_bit(case: Case) -> None:
    rows = random_rows(np.random.default_rng(3), 5, 4)
    slab = make_slab(case.setting, rows)
    before = slab.records.copy()
    apply(case.setting, slab, [1, 3], np.ones((2, 4), dtype=np.float32))
    assert slab.records[[0, 2, 4]].tobytes() == before[[0, 2, 4]].tobytes()
    assert (slab.records[[1, 3], :4] != before[[1, 3], :4]).any()
    apply(case.setting, slab, [], np.empty((0, 4), dtype=np.float32))


@each_case
def test_a_gradient_of_zero_is_harmless_and_gradients_stay_as_they_are(case: Case) -> None:
    slab = make_slab(case.setting, random_rows(np.random.default_rng(4), 3, 4))
    gradients = np.array([[0.0] * 4, [1e-30] * 4, [1e18] * 4], dtype=np.float32)
    handed = gradients.copy()
    for _ in range(3):
        apply(case.setting, slab, [0, 1, 2], handed)
    assert np.isfinite(slab.records[:, :4]).all()
    assert handed.tobytes() == gradients.tobytes()


@each_case
def test_hyperparameters_are_those_of_the_call(case: Case) -> None:
    rng = np.random.default_rng(5)
    rows = random_rows(rng, 4, 3)
    slab, label = make_slab(case.setting, rows), case.setting.label
    twin = [(row, naive.initial_state(label, 3, case.setting.parameters())) for row in rows]
    for lr in (0.5, 0.25, 0.001):
        setting = case.setting.with_hyperparameters({"lr": lr})
        gradients = random_rows(rng, 4, 3)
        apply(setting, slab, [0, 1, 2, 3], gradients)
        twin = [naive.step(label, *held, gradient, setting.parameters()) for held, gradient in zip(twin, gradients, strict=True)]
    assert slab.records.tobytes() == np.array([naive.record(*held) for held in twin]).tobytes()


def test_a_learning_rate_may_change_from_call_to_call() -> None:
    slab = make_slab(values.SGD(lr=0.5), np.zeros((1, 2), dtype=np.float32))
    apply(values.SGD(lr=0.5), slab, [0], np.ones((1, 2), dtype=np.float32))
    apply(values.SGD(lr=2.0), slab, [0], np.ones((1, 2), dtype=np.float32))
    assert slab.records.tolist() == [[-2.5, -2.5]]


def test_the_first_step_of_a_row_makes_its_momentum_the_gradient() -> None:
    setting = values.SGD(lr=1.0, momentum=0.5, dampening=0.5)
    slab = make_slab(setting, np.zeros((2, 2), dtype=np.float32))
    apply(setting, slab, [0, 1], np.array([[4.0, 8.0], [-0.0, 2.0]], dtype=np.float32))
    assert slab.records.tolist() == [[-4.0, -8.0, 4.0, 8.0], [0.0, -2.0, 0.0, 2.0]]
    assert not np.signbit(slab.records[1, 2])  # the first number of the momentum says that the row has had its first step
    apply(setting, slab, [0, 1], np.array([[4.0, 8.0], [-0.0, 2.0]], dtype=np.float32))
    assert slab.records.tolist() == [[-8.0, -16.0, 4.0, 8.0], [0.0, -4.0, 0.0, 2.0]]  # b = 0.5 b + 0.5 g


def test_adam_counts_the_steps_of_each_row_and_stops_at_the_greatest_count() -> None:
    slab = make_slab(values.Adam(), np.zeros((3, 2), dtype=np.float32))
    slab.words[2, 6] = COUNT_MAX
    apply(values.Adam(), slab, [0, 0, 2], np.ones((3, 2), dtype=np.float32))
    assert slab.words[:, 6].tolist() == [2, 0, COUNT_MAX]


def test_ftrl_goes_on_from_where_a_row_is_put() -> None:
    setting = values.FTRL(lr=1.0, beta=1.0)
    slab = make_slab(setting, np.full((1, 1), 8.0, dtype=np.float32))
    apply(setting, slab, [0], np.array([[3.0]], dtype=np.float32))
    assert slab.records.tolist() == [[8.0 - 3.0 / 4.0, 9.0, 0.0]]  # c = (1 + √9) / 1
    slab.records[0, 0] = 100.0
    apply(setting, slab, [0], np.array([[4.0]], dtype=np.float32))
    assert slab.records.tolist() == [[np.float32(100.0 - 4.0 / 6.0), 25.0, 0.0]]  # c = 1 + √25


def test_ftrl_changes_nothing_at_a_learning_rate_of_zero() -> None:
    setting = values.FTRL(lr=0.0)
    slab = make_slab(setting, np.full((1, 1), 8.0, dtype=np.float32))
    apply(setting, slab, [0], np.array([[3.0]], dtype=np.float32))
    assert slab.records.tolist() == [[8.0, 0.0, 0.0]]


def test_ftrl_keeps_small_weights_at_zero_and_remembers_what_pulled_at_them() -> None:
    setting = values.FTRL(lr=1.0, beta=1.0, l1=5.0)
    slab = make_slab(setting, np.zeros((1, 1), dtype=np.float32))
    apply(setting, slab, [0], np.array([[-4.0]], dtype=np.float32))
    assert slab.records.tolist() == [[0.0, 16.0, -4.0]]
    apply(setting, slab, [0], np.array([[-3.0]], dtype=np.float32))
    assert slab.records.tolist() == [[np.float32(2.0 / 6.0), 25.0, 0.0]]  # |z| = 7 is 2 outside; c = 1 + √25


def test_a_gradient_is_compensated_for_what_its_row_has_become() -> None:
    setting = values.DelayCompensated(values.SGD(lr=1.0), compensation=0.5)
    slab = make_slab(setting, np.array([[5.0], [5.0]], dtype=np.float32))
    origin = Origin(read=read_only(np.array([[9.0], [1.0]], dtype=np.float32)), places=np.array([1, -1], dtype=np.int32))
    apply(setting, slab, [0, 1], np.full((2, 1), 2.0, dtype=np.float32), origin)
    assert slab.records.tolist() == [[5.0 - (2.0 + 0.5 * 2.0 * 2.0 * (5.0 - 1.0))], [5.0 - 2.0]]


@pytest.mark.parametrize("gradient", [1e20, -3.4e38])
def test_a_huge_gradient_of_a_row_that_has_not_moved_is_left_as_it_is(gradient: float) -> None:
    setting = values.DelayCompensated(values.SGD(lr=1.0), compensation=0.5)
    slab = make_slab(setting, np.array([[5.0]], dtype=np.float32))
    origin = Origin(read=read_only(np.array([[5.0]], dtype=np.float32)), places=np.zeros(1, dtype=np.int32))
    apply(setting, slab, [0], np.full((1, 1), gradient, dtype=np.float32), origin)
    assert slab.records.tolist() == [[np.float32(5.0) - np.float32(gradient)]]


@pytest.mark.parametrize(("staleness", "after"), [(0, -8.0), (1, -8.0), (2, -4.0), (4, -2.0)])
def test_a_stale_gradient_takes_a_shorter_step(staleness: int, after: float) -> None:
    setting = values.StalenessScaled(values.SGD(lr=8.0))
    slab = make_slab(setting, np.zeros((1, 1), dtype=np.float32))
    apply(setting, slab, [0], np.ones((1, 1), dtype=np.float32), Origin(staleness=staleness))
    assert slab.records.tolist() == [[after]]


def test_the_outermost_decorator_sees_the_gradient_first() -> None:
    gradient, origin = (
        np.full((1, 1), 4.0, dtype=np.float32),
        Origin(read=read_only(np.zeros((1, 1), np.float32)), places=np.zeros(1, np.int32)),
    )
    clipped_first = values.ClippedByValue(values.DelayCompensated(values.SGD(lr=1.0), compensation=1.0), clip_value=2.0)
    clipped_last = values.DelayCompensated(values.ClippedByValue(values.SGD(lr=1.0), clip_value=2.0), compensation=1.0)
    for setting, step in ((clipped_first, 2.0 + 2.0 * 2.0 * 1.0), (clipped_last, 2.0)):
        slab = make_slab(setting, np.ones((1, 1), dtype=np.float32))
        apply(setting, slab, [0], gradient, origin)
        assert slab.records.tolist() == [[1.0 - step]]


@each_case
def test_a_call_of_many_blocks_is_as_many_calls(case: Case) -> None:
    rng = np.random.default_rng(6)
    rows, dim = random_rows(rng, 3000, 2), 2
    slots = np.concatenate([np.arange(3000), rng.integers(0, 3000, 500)])
    gradients = random_rows(rng, slots.size, dim)
    origin = Origin(staleness=2, read=read_only(random_rows(rng, 7, dim)), places=rng.integers(-1, 7, slots.size).astype(np.int32))
    whole, parts = make_slab(case.setting, rows), make_slab(case.setting, rows)
    apply(case.setting, whole, slots, gradients, origin)
    assert origin.places is not None
    for begin in range(0, slots.size, 700):
        part = slice(begin, begin + 700)
        partly = Origin(staleness=2, read=origin.read, places=origin.places[part])
        apply(case.setting, parts, slots[part], gradients[part], partly)
    assert whole.records.tobytes() == parts.records.tobytes()


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9, 0.999, 1 - 2.0**-20])
@pytest.mark.parametrize("t", [0, 1, 2, 3, 100, 99_999, COUNT_MAX])
def test_the_power_is_one(beta: float, t: int) -> None:
    assert power(beta, t) == naive.power(beta, t)
    assert power(beta, t) == pytest.approx(beta**t, rel=1e-6 if t > 1e6 else 1e-10, abs=1e-300)


@each_case
def test_state_columns_lie_behind_the_row_as_declared(case: Case) -> None:
    optimizer = row_optimizer(case.setting, 5)
    assert optimizer.width == 5 + sum(column.words for column in optimizer.columns)
    assert optimizer.initial_state().shape == (optimizer.width - 5,)
    assert optimizer.initial_state().dtype == np.float32
    assert optimizer.initial_state().size == sum(column.size for column in initial_state(case.setting).values())


def initial_state(setting: Optimizer) -> naive.State:
    return naive.initial_state(setting.label, 5, setting.parameters())


def test_their_kernels_are_compiled_once() -> None:
    for case in CASES:
        origin = Origin(read=read_only(np.zeros((1, 3), np.float32)), places=np.zeros(1, np.int32))
        slab = make_slab(case.setting, np.zeros((2, 3), dtype=np.float32))
        apply(case.setting, slab, [0], np.ones((1, 3), dtype=np.float32), origin)
    modules = [getattr(optimizers, kind) for kind in ("adagrad", "adam", "ftrl", "lion", "rmsprop", "row_wise_adagrad", "sgd")]
    kernels = [module._apply for module in modules] + [
        optimizers.sgd._apply_with_momentum,
        clipping.clip_by_value,
        clipping.clip_by_row_norm,
        decoupled_weight_decay.decay_rows,
        delay_compensated.compensate,
    ]
    assert [len(getattr(kernel, "signatures", [()])) for kernel in kernels] == [1] * len(kernels)

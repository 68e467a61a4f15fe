"""Every optimizer: exactly its slow twin, and torch.optim after a hundred steps."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from naive import optimizers as naive
from ps_proto import values
from ps_proto.values import Optimizer
from ps_server.shard.optimizers import OPTIMIZERS, adagrad, adam, row_optimizer, sgd
from ps_server.shard.optimizers.adam import COUNT_MAX, power
from ps_server.shard.slab import Slab
from sharding.arrays import read_only

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    setting: Optimizer
    torch_class: Callable[..., torch.optim.Optimizer]
    torch_arguments: dict[str, Any]


CASES = [
    Case(values.SGD(lr=0.1), torch.optim.SGD, {"lr": 0.1}),
    Case(values.Adagrad(lr=0.05), torch.optim.Adagrad, {"lr": 0.05}),
    Case(values.Adagrad(lr=0.1, initial_accumulator_value=0.1, eps=1e-6), torch.optim.Adagrad,
         {"lr": 0.1, "initial_accumulator_value": 0.1, "eps": 1e-6}),
    Case(values.Adam(), torch.optim.Adam, {"lr": 0.001}),
    Case(values.Adam(lr=0.02, betas=(0.3, 0.95), eps=1e-4), torch.optim.Adam, {"lr": 0.02, "betas": (0.3, 0.95), "eps": 1e-4}),
    Case(values.Adam(lr=0.01, betas=(0.0, 0.9)), torch.optim.Adam, {"lr": 0.01, "betas": (0.0, 0.9)}),
]  # fmt: skip
MODULES: list[ModuleType] = [sgd, adagrad, adam]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.setting))


def make_slab(setting: Optimizer, rows: Array) -> Slab:
    """Return a slab that holds `rows`, in slots 0, 1, 2, ..., each with its initial state."""
    optimizer = row_optimizer(setting, rows.shape[1])
    slab = Slab(optimizer.width, len(rows))
    slab.records[:, : rows.shape[1]] = rows
    slab.records[:, rows.shape[1] :] = optimizer.initial_state()
    return slab


def apply(setting: Optimizer, slab: Slab, slots: list[int] | npt.NDArray[np.int64], gradients: Array) -> None:
    optimizer = row_optimizer(setting, gradients.shape[1])
    optimizer.apply(slab, np.array(slots, dtype=np.int32), read_only(gradients), setting.parameters())


def random_rows(rng: np.random.Generator, num_rows: int, dim: int) -> Array:
    return rng.normal(size=(num_rows, dim)).astype(np.float32)


def test_every_setting_has_an_optimizer_and_a_case() -> None:
    assert set(OPTIMIZERS) == set(values.OPTIMIZERS) == {case.setting.kind for case in CASES}


@each_case
@pytest.mark.parametrize("dim", [1, 3, 16, 67])
def test_it_equals_its_slow_twin(case: Case, dim: int) -> None:
    rng = np.random.default_rng(dim)
    kind, parameters = case.setting.kind, case.setting.parameters()
    rows = random_rows(rng, 9, dim)
    slab = make_slab(case.setting, rows)
    twin = [(row, naive.initial_state(kind, dim, parameters)) for row in rows]
    for _ in range(25):
        slots = rng.integers(0, 9, 12)  # with repeats: applied one after another
        gradients = random_rows(rng, 12, dim) * np.float32(10.0) ** rng.integers(-6, 3, (12, 1)).astype(np.float32)
        gradients[0] = 0.0
        apply(case.setting, slab, slots, gradients)
        for slot, gradient in zip(slots.tolist(), gradients, strict=True):
            row, state = twin[slot]
            twin[slot] = naive.step(kind, row, state, gradient, parameters)
    assert slab.records.tobytes() == np.array([naive.record(kind, *held) for held in twin]).tobytes()


@each_case
@pytest.mark.parametrize("dim", [1, 32])
def test_it_agrees_with_torch_after_a_hundred_steps(case: Case, dim: int) -> None:
    rng = np.random.default_rng(1)
    rows = random_rows(rng, 40, dim)
    slab, weights = make_slab(case.setting, rows), torch.nn.Parameter(torch.from_numpy(rows.copy()))
    optimizer = case.torch_class([weights], foreach=False, **case.torch_arguments)
    for _ in range(100):
        gradients = random_rows(rng, 40, dim)
        weights.grad = torch.from_numpy(gradients.copy())
        optimizer.step()
        apply(case.setting, slab, list(range(40)), gradients)
    assert_close(slab.records[:, :dim], weights.detach().numpy())


@each_case
def test_with_rows_that_come_now_and_then_it_agrees_with_a_torch_optimizer_for_each_row(case: Case) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, 12, 8)
    slab, weights = make_slab(case.setting, rows), [torch.nn.Parameter(torch.from_numpy(row.copy())) for row in rows]
    optimizer = case.torch_class(weights, foreach=False, **case.torch_arguments)  # it leaves out, and does not count, a None gradient
    for _ in range(100):
        slots = np.flatnonzero(rng.random(12) < np.linspace(0.05, 1.0, 12))
        gradients = random_rows(rng, slots.size, 8)
        optimizer.zero_grad(set_to_none=True)
        for slot, gradient in zip(slots, gradients, strict=True):
            weights[slot].grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        apply(case.setting, slab, slots, gradients)
    assert_close(slab.records[:, :8], np.array([weight.detach().numpy() for weight in weights]))


def assert_close(got: Array, want: Array) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=5e-7 * float(np.abs(want).max()))


@each_case
def test_rows_without_a_gradient_stay_bit_for_bit(case: Case) -> None:
    rows = random_rows(np.random.default_rng(3), 5, 4)
    slab = make_slab(case.setting, rows)
    before = slab.records.copy()
    apply(case.setting, slab, [1, 3], np.ones((2, 4), dtype=np.float32))
    assert slab.records[[0, 2, 4]].tobytes() == before[[0, 2, 4]].tobytes()
    assert (slab.records[[1, 3], :4] < before[[1, 3], :4]).all()
    apply(case.setting, slab, [], np.empty((0, 4), dtype=np.float32))


def test_hyperparameters_are_those_of_the_call() -> None:
    slab = make_slab(values.SGD(lr=0.5), np.zeros((1, 2), dtype=np.float32))
    apply(values.SGD(lr=0.5), slab, [0], np.ones((1, 2), dtype=np.float32))
    apply(values.SGD(lr=2.0), slab, [0], np.ones((1, 2), dtype=np.float32))
    assert slab.records.tolist() == [[-2.5, -2.5]]


def test_adam_counts_the_steps_of_each_row_and_stops_at_the_greatest_count() -> None:
    slab = make_slab(values.Adam(), np.zeros((3, 2), dtype=np.float32))
    slab.words[2, 6] = COUNT_MAX
    apply(values.Adam(), slab, [0, 0, 2], np.ones((3, 2), dtype=np.float32))
    assert slab.words[:, 6].tolist() == [2, 0, COUNT_MAX]


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9, 0.999, 1 - 2.0**-20])
@pytest.mark.parametrize("t", [0, 1, 2, 3, 100, 99_999, COUNT_MAX])
def test_the_power_is_one(beta: float, t: int) -> None:
    assert power(beta, t) == naive.power(beta, t)
    assert power(beta, t) == pytest.approx(beta**t, rel=1e-6 if t > 1e6 else 1e-10, abs=1e-300)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_columns_lie_behind_the_row_as_declared(kind: str) -> None:
    setting = values.OPTIMIZERS[kind]()
    optimizer = row_optimizer(setting, 5)
    assert optimizer.width == 5 + sum(column.words for column in optimizer.columns)
    assert optimizer.initial_state().shape == (optimizer.width - 5,)
    assert optimizer.initial_state().dtype == np.float32


def test_their_kernels_are_compiled_once() -> None:
    for case in CASES:
        apply(case.setting, make_slab(case.setting, np.zeros((2, 3), dtype=np.float32)), [0], np.ones((1, 3), dtype=np.float32))
    assert [len(getattr(module._apply, "signatures", [()])) for module in MODULES] == [1] * 3

"""Optimizers and initializers from outside of the package: they travel and are found as ours, and what makes no sense is refused."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from ps_proto.errors import InvalidRequest
from ps_proto.values import (
    SGD,
    Adagrad,
    ClippedByValue,
    Decorated,
    Initializer,
    Optimizer,
    TableSpec,
    initializer_from_wire,
    optimizer_from_wire,
    register_initializer,
    register_optimizer,
)
from ps_server.shard.initializers.initializer import RowInitializer
from ps_server.shard.optimizers.decorator import RowDecorator
from ps_server.shard.optimizers.optimizer import Origin, RowOptimizer, StateColumn
from ps_server.shard.registering import register_row_initializer, register_row_optimizer
from ps_server.shard.slab import Slab
from ps_server.shard.table import Table
from registered import taken_back

Ids = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]
Slots = npt.NDArray[np.int32]
IDS = np.array([3, 1], dtype=np.uint64)


@dataclass(frozen=True)
class Half(Optimizer):
    """w -= lr / 2 · g, or not, as `is_on` says."""

    kind = "half"
    lr: float
    times: int = 1
    is_on: bool = True
    betas: tuple[float, float] = (0.5, 0.25)


@dataclass(frozen=True)
class Doubled(Decorated):
    """The gradient twice."""

    kind = "doubled"
    doubled_by: float = 2.0


@dataclass(frozen=True)
class Seven(Initializer):
    """`value` everywhere."""

    kind = "seven"
    value: float = 7.0


class HalfRows(RowOptimizer):
    kind = "half"

    @staticmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        return (StateColumn("count", 1, "uint32"),)

    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        for slot, gradient in zip(slots, gradients, strict=True):
            slab.records[slot, : self.dim] -= np.float32(parameters["lr"]) * np.float32(0.5) * gradient
            slab.words[slot, self.dim] += np.uint32(parameters["times"])


class DoubledRows(RowDecorator):
    kind = "doubled"

    def apply_block(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        self.optimizer.apply(slab, slots, gradients * np.float32(parameters["doubled_by"]), parameters, origin)


class SevenRows(RowInitializer):
    kind = "seven"

    def __init__(self, spec: TableSpec) -> None:
        assert isinstance(spec.initializer, Seven)
        self._value = spec.initializer.value

    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        target[places, :dim] = self._value


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with taken_back():
        yield


def test_registered_settings_travel_as_ours_do() -> None:
    assert register_optimizer(Half) is Half
    assert register_optimizer(Doubled) is Doubled
    assert register_initializer(Seven) is Seven
    for optimizer in (
        Half(0.5, 3, False, (0.1, 0.2)),
        Doubled(Half(0.5)),
        ClippedByValue(Doubled(SGD(0.1), 3.0)),
        Doubled(ClippedByValue(Half(1.0))),
    ):
        assert optimizer_from_wire(optimizer.label, optimizer.parameters()) == optimizer
        assert optimizer.with_parameters(optimizer.parameters()) == optimizer
    assert Half(0.5).parameters() == {"lr": 0.5, "times": 1.0, "is_on": 1.0, "beta1": 0.5, "beta2": 0.25}
    assert initializer_from_wire("seven", {"value": 8.0}) == Seven(8.0)


def test_a_registered_optimizer_and_initializer_work_in_a_table() -> None:
    for registered in (HalfRows, DoubledRows):
        assert register_row_optimizer(registered) is registered
    assert register_row_initializer(SevenRows) is SevenRows
    spec = TableSpec("user", 2, Doubled(Half(0.25, times=2)), Seven())
    table = Table(spec)
    for _ in range(3):
        table.update(IDS, np.array([[1, 2], [3, 4]], dtype=np.float32), spec.optimizer.parameters())
    assert table.pull(IDS).tolist() == [[7 - 0.75, 7 - 1.5], [7 - 2.25, 7 - 3.0]]
    assert table.columns[0].name == "count"


def test_the_same_class_again_is_fine_and_another_of_its_kind_is_not() -> None:
    register_optimizer(Half)
    register_optimizer(Half)
    register_row_optimizer(HalfRows)
    register_row_optimizer(HalfRows)

    @dataclass(frozen=True)
    class Other(Optimizer):
        kind = "half"

    with pytest.raises(InvalidRequest, match=r"Other\.kind is 'half', but must be one that is free: .*test_registering\.Half has it"):
        register_optimizer(Other)
    with pytest.raises(InvalidRequest, match="has it"):
        register_row_optimizer(type("Other", (HalfRows,), {}))


def optimizer_class(**attributes: object) -> type[Optimizer]:
    """Return a frozen dataclass of these attributes; a type is a field."""
    fields = {name: value for name, value in attributes.items() if isinstance(value, type)}
    given = {name: value for name, value in attributes.items() if name not in fields}
    made: type[Optimizer] = dataclass(frozen=True)(type("Mine", (Optimizer,), {"__annotations__": fields, **given}))
    return made


def test_annotations_that_are_strings_mean_the_same() -> None:
    """They are, after `from __future__ import annotations`."""
    setting = register_optimizer(optimizer_class(kind="mine", __annotations__={"times": "int", "is_on": "bool"}, times=1, is_on=False))
    back = setting.from_parameters({"times": 3.0, "is_on": 1.0})
    assert [repr(value) for value in back.hyperparameters().values()] == ["3", "True"]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (Seven, "test_registering.Seven'>, but must be a class that extends Optimizer"),
        (Half(0.1), "but must be a class that extends Optimizer"),
        (type("Mine", (Optimizer,), {"kind": "mine"}), "registered class Mine is no dataclass of its own, but must be decorated with"),
        (type("Mine", (SGD,), {"kind": "mine"}), "registered class Mine is no dataclass of its own"),
        (optimizer_class(), "Mine.kind is None, but must be a class attribute, kind = 'my_name'"),
        (optimizer_class(kind=""), "Mine.kind is '', but must be a class attribute"),
        (optimizer_class(kind="a+b"), "Mine.kind is 'a+b', but must be a class attribute, kind = 'my_name': 1 to 64 letters"),
        (optimizer_class(kind=3.0), "Mine.kind is 3.0"),
        (optimizer_class(kind="adam"), "Mine.kind is 'adam', but must be one that is free: ps_proto.values.optimizers.Adam has it"),
        (optimizer_class(kind="clipped_by_value"), "ps_proto.values.decorated.ClippedByValue has it"),
        (optimizer_class(kind="mine", name=str), "Mine.name is <class 'str'>, but must be float, int or bool, or a pair"),
        (optimizer_class(kind="mine", __annotations__={"beta1": float, "betas": tuple}, betas=(0.1, 0.2)), "of different names"),
    ],
)  # fmt: skip
def test_what_is_no_setting_is_refused(setting: type[Optimizer], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        register_optimizer(setting)
    assert sentence in str(caught.value)


def test_what_is_no_row_class_is_refused() -> None:
    for given, sentence in [
        (HalfRows(2, {}), "must be a class that extends RowOptimizer"),
        (SevenRows, "must be a class that extends RowOptimizer"),
        (
            type("Mine", (RowOptimizer,), {"kind": "mine"}),
            "registered class Mine is without apply, state_columns, but must be complete",
        ),
        (type("Mine", (HalfRows,), {"kind": None}), "Mine.kind is None"),
        (type("Mine", (HalfRows,), {"kind": "sgd"}), "ps_server.shard.optimizers.sgd.SGD has it"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            register_row_optimizer(given)  # type: ignore[type-var]
        assert sentence in str(caught.value)
    with pytest.raises(InvalidRequest, match="must be a class that extends RowInitializer"):
        register_row_initializer(HalfRows)  # type: ignore[type-var]
    with pytest.raises(InvalidRequest, match="must be a class that extends Initializer"):
        register_initializer(Half)  # type: ignore[type-var]


def test_an_unknown_kind_names_what_is_known_and_the_way_in() -> None:
    for kind in ("half", "clipped_by_value+half", "half+sgd"):
        with pytest.raises(InvalidRequest, match=r"optimizer is 'half', but must be one of \[.*, or one that a plugin registers here too"):
            optimizer_from_wire(kind, {})
    with pytest.raises(InvalidRequest, match=r"initializer is 'seven', but must be one of \[.*, or one that a plugin registers here too"):
        initializer_from_wire("seven", {})


def test_a_setting_without_a_row_class_makes_no_table() -> None:
    register_optimizer(Half)
    register_optimizer(Doubled)
    register_initializer(Seven)
    for optimizer, kind in [(Half(0.1), "half"), (ClippedByValue(Half(0.1)), "half"), (Doubled(Adagrad()), "doubled")]:
        with pytest.raises(InvalidRequest, match=rf"optimizer is '{kind}', but must be one that this server can run: .* in every server"):
            Table(TableSpec("user", 2, optimizer))
    with pytest.raises(InvalidRequest, match="initializer of table 'user' is 'seven', but must be one that this server can compute"):
        Table(TableSpec("user", 2, initializer=Seven()))

"""Settings: what each refuses, and that all come back from what travels."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import ps_worker as ps
from ps_proto import values
from ps_proto.codec import decode, encode
from ps_proto.errors import InvalidRequest
from ps_proto.values import (
    DECORATED,
    FTRL,
    INITIALIZERS,
    MODES,
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Assigned,
    ClippedByRowNorm,
    ClippedByValue,
    Constant,
    DecoupledWeightDecay,
    DelayCompensated,
    HeNormal,
    HeUniform,
    Initializer,
    Lion,
    Mode,
    Normal,
    Optimizer,
    RMSprop,
    RowWiseAdagrad,
    Setting,
    StalenessScaled,
    Sync,
    TableSpec,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zeros,
    initializer_from_wire,
    mode_from_wire,
    optimizer_from_wire,
)

# One of each kind, no number at its default.
OPTIMIZER_SAMPLES: list[Optimizer] = [
    SGD(0.5, 0.9, 0.0, 0.01, True),
    SGD(0.5, 0.9, 0.25, 0.01),
    Adagrad(0.5, 0.25, 1e-6, 0.01),
    RowWiseAdagrad(0.5, 0.25, 1e-6, 0.01),
    RMSprop(0.5, 0.25, 1e-6, 0.01, 0.5, True),
    Adam(0.5, (0.25, 0.75), 1e-6, 0.01, True),
    AdamW(0.5, (0.25, 0.75), 1e-6, 0.02, True),
    FTRL(0.5, 0.25, 0.125, 2.0),
    Lion(0.5, (0.25, 0.75), 0.01),
    ClippedByValue(Adagrad(0.5), 0.25),
    ClippedByRowNorm(Adam(betas=(0.5, 0.75)), 0.25),
    DecoupledWeightDecay(SGD(0.5), 0.25),
    DelayCompensated(SGD(0.5), 0.25),
    StalenessScaled(SGD(0.5)),
    ClippedByValue(StalenessScaled(DelayCompensated(DecoupledWeightDecay(ClippedByRowNorm(Adam(0.5), 3.0), 0.25), 0.125)), 0.5),
]
INITIALIZER_SAMPLES: list[Initializer] = [
    Zeros(), Constant(-0.5), Uniform(-1.0, 2.0), Normal(0.5, 0.25), TruncatedNormal(0.5, 0.25, -1.0, 1.5), XavierUniform(8, 4, 0.5),
    XavierUniform(8), XavierNormal(8, 4, 0.5), HeUniform(4, 0.5), HeUniform(), HeNormal(4, 0.5), HeNormal(), Assigned(),
]  # fmt: skip
MODE_SAMPLES: list[Mode] = [Sync(), Sync(backup_workers=2), values.Async(), values.BoundedStaleness(3)]


def test_there_is_a_sample_of_every_kind() -> None:
    kinds = {kind for sample in OPTIMIZER_SAMPLES for kind in sample.label.split("+")}
    assert kinds == {*OPTIMIZERS, *DECORATED}
    assert {sample.kind for sample in INITIALIZER_SAMPLES} == set(INITIALIZERS)
    assert {sample.kind for sample in MODE_SAMPLES} == set(MODES)


@pytest.mark.parametrize("sample", [*OPTIMIZER_SAMPLES, *INITIALIZER_SAMPLES, *MODE_SAMPLES], ids=str)
def test_a_setting_comes_back_from_what_travels(sample: Setting) -> None:
    if isinstance(sample, Optimizer):
        assert optimizer_from_wire(sample.label, sample.parameters()) == sample
    elif isinstance(sample, Initializer):
        assert initializer_from_wire(sample.label, sample.parameters()) == sample
    else:
        assert mode_from_wire(sample.label, sample.parameters()) == sample
    assert all(isinstance(number, float) for number in sample.parameters().values())


@pytest.mark.parametrize("optimizer", OPTIMIZER_SAMPLES, ids=str)
def test_a_table_with_it_comes_back_from_its_message(optimizer: Optimizer) -> None:
    spec = TableSpec("user", 4, optimizer, max_norm=2.0, dtype="bfloat16")
    assert decode(TableSpec, encode(spec)) == spec


@pytest.mark.parametrize("sample", [*OPTIMIZER_SAMPLES, *INITIALIZER_SAMPLES, *MODE_SAMPLES], ids=str)
def test_users_name_it_as_an_attribute_of_ps(sample: Setting) -> None:
    assert getattr(ps, type(sample).__name__) is type(sample)
    assert type(sample).__name__ in ps.__all__


NOT_A_NUMBER: list[Any] = [math.nan, math.inf, 10**400, "0.1", None, True]
NEGATIVE: list[Any] = [-1.0, -1e-30, 1e39, *NOT_A_NUMBER]
NO_FLOAT32: list[Any] = [1e39, -1e39, *NOT_A_NUMBER]
NO_FRACTION: list[Any] = [1.0, 1.5, -0.1, *NOT_A_NUMBER]
BAD: list[tuple[type[Setting], dict[str, Any], str, list[Any]]] = [
    (SGD, {}, "lr", NEGATIVE),
    (SGD, {}, "momentum", NEGATIVE),
    (SGD, {"momentum": 0.5}, "dampening", NEGATIVE),
    (SGD, {}, "weight_decay", NEGATIVE),
    (SGD, {}, "nesterov", [True, 1, 0.0, None]),  # it needs a momentum
    (SGD, {"momentum": 0.9, "dampening": 0.1}, "nesterov", [True]),
    *[
        (kind, {}, name, NEGATIVE)
        for kind in (Adagrad, RowWiseAdagrad)
        for name in ("lr", "initial_accumulator_value", "eps", "weight_decay")
    ],
    *[(RMSprop, {}, name, NEGATIVE) for name in ("lr", "eps", "weight_decay", "momentum")],
    (RMSprop, {}, "alpha", NO_FRACTION),
    (RMSprop, {}, "centered", [1, 0.0, None, "yes"]),
    *[(kind, {}, name, NEGATIVE) for kind in (Adam, AdamW) for name in ("lr", "eps", "weight_decay")],
    *[(kind, {}, "amsgrad", [1, None]) for kind in (Adam, AdamW)],
    *[(kind, {}, "betas", [0.9, (0.9,), (0.9, 0.9, 0.9), (0.9, 1.0), (-0.1, 0.5), None]) for kind in (Adam, AdamW, Lion)],
    (FTRL, {}, "lr", NEGATIVE),
    *[(FTRL, {}, name, NEGATIVE) for name in ("beta", "l1", "l2")],
    *[(Lion, {}, name, NEGATIVE) for name in ("lr", "weight_decay")],
    (ClippedByValue, {"optimizer": SGD()}, "clip_value", NEGATIVE),
    (ClippedByRowNorm, {"optimizer": SGD()}, "clip_row_norm", NEGATIVE),
    (DecoupledWeightDecay, {"optimizer": SGD()}, "decoupled_weight_decay", NEGATIVE),
    (DelayCompensated, {"optimizer": SGD()}, "compensation", NEGATIVE),
    *[(kind, {}, "optimizer", [None, "adagrad", SGD]) for kind in DECORATED.values()],
    (Constant, {}, "value", NO_FLOAT32),
    (Uniform, {"high": 1.0}, "low", [2.0, *NO_FLOAT32]),
    (Uniform, {"low": 1.0}, "high", NO_FLOAT32),
    (Normal, {}, "mean", NO_FLOAT32),
    (Normal, {}, "std", NEGATIVE),
    (TruncatedNormal, {}, "std", [0.0, *NEGATIVE]),
    (TruncatedNormal, {}, "low", [2.0, 3.0, *NOT_A_NUMBER]),
    *[(kind, {}, "fan_out", [0, -1, 1.5, None, True]) for kind in (XavierUniform, XavierNormal)],
    *[(kind, {"fan_out": 4}, "fan_in", [0, 1.5, True]) for kind in (XavierUniform, XavierNormal)],
    *[(kind, {}, "fan_in", [0, 1.5, True]) for kind in (HeUniform, HeNormal)],
    *[(kind, {"fan_out": 4}, "gain", NEGATIVE) for kind in (XavierUniform, XavierNormal)],
    (Sync, {}, "backup_workers", [-1, 1.5, None, True]),
]


@pytest.mark.parametrize(("kind", "others", "field", "bad"), BAD, ids=[f"{row[0].__name__}.{row[2]}" for row in BAD])
def test_a_bad_number_is_refused_by_its_name(kind: type[Setting], others: dict[str, Any], field: str, bad: list[Any]) -> None:
    for value in bad:
        with pytest.raises(InvalidRequest) as caught:
            kind(**others, **{field: value})
        assert caught.value.field == f"{kind.__name__}.{field}", value


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e300])
def test_a_whole_number_that_travelled_and_is_none_is_refused(number: float) -> None:
    with pytest.raises(InvalidRequest, match=r"BoundedStaleness\.bound is .*, but must be a whole number"):
        mode_from_wire("bounded", {"bound": number})
    with pytest.raises(InvalidRequest, match=r"HeUniform\.fan_in is .*, but must be a whole number"):
        initializer_from_wire("he_uniform", {"fan_in": number})


def test_a_number_of_numpys_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidRequest, match=r"SGD\.lr is np\.float32\(0\.5\), but must be a number, Python's int or float: float"):
        SGD(lr=np.float32(0.5))  # type: ignore[arg-type]


def test_every_number_of_every_optimizer_has_a_bad_one_above() -> None:
    covered = {(row[0], row[2]) for row in BAD}
    known = {(kind, item.name) for kind in (*OPTIMIZERS.values(), *DECORATED.values()) for item in fields(kind)}
    assert known <= covered


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("muon", {}, r"optimizer is 'muon', but must be one of \['adagrad', .*plugin"),
        ("muon+sgd", {}, r"optimizer is 'muon', but must be one of \['clipped_by_row_norm', "),
        ("clipped_by_value", {"clip_value": 1.0}, "optimizer is 'clipped_by_value'"),
        ("", {}, "optimizer is ''"),
        ("sgd", {"speed": 1.0}, r"parameters of sgd is \['speed'\]"),
        ("adam", {"beta1": 0.9}, r"parameters of adam is \['beta1'\], but must be all of beta1, beta2"),
        ("sgd", {"nesterov": 0.5}, "sgd.nesterov is 0.5, but must be 0 or 1"),
        ("clipped_by_value+sgd", {"lr": 1.0}, r"parameters of clipped_by_value is \['lr'\], but must be also clip_value"),
        ("clipped_by_value+sgd", {"clip_value": -1.0, "lr": 1.0}, "ClippedByValue.clip_value is -1.0"),
        ("clipped_by_value+clipped_by_value+sgd", {"clip_value": 1.0}, "ClippedByValue.optimizer is 'clipped_by_value.sgd'"),
    ],
)
def test_what_travelled_wrong_is_refused(kind: str, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        optimizer_from_wire(kind, parameters)


def test_a_decorator_stands_once_and_the_order_of_decorators_counts() -> None:
    one = ClippedByValue(DelayCompensated(SGD()))
    other = DelayCompensated(ClippedByValue(SGD()))
    assert (one.label, other.label) == ("clipped_by_value+delay_compensated+sgd", "delay_compensated+clipped_by_value+sgd")
    assert one.layout != other.layout
    with pytest.raises(InvalidRequest, match="one that is not clipped_by_value already"):
        ClippedByValue(one)


@pytest.mark.parametrize(("kind", "decorated"), [(kind, name) for kind in (DecoupledWeightDecay, StalenessScaled) for name in OPTIMIZERS])
def test_what_scales_the_learning_rate_goes_over_every_optimizer(kind: type[values.Decorated], decorated: str) -> None:
    optimizer = OPTIMIZERS[decorated]()
    assert kind(optimizer).parameters().keys() >= optimizer.parameters().keys()


@pytest.mark.parametrize("optimizer", OPTIMIZER_SAMPLES, ids=str)
def test_hyperparameters_change_by_name_and_nothing_else_does(optimizer: Optimizer) -> None:
    slower = optimizer.with_hyperparameters({"lr": 0.125})
    assert slower.hyperparameters() == optimizer.hyperparameters() | {"lr": 0.125}
    assert slower.with_hyperparameters(optimizer.hyperparameters()) == optimizer
    assert optimizer.with_parameters(slower.parameters()) == slower
    with pytest.raises(InvalidRequest, match=r"hyperparameters of .*speed"):
        optimizer.with_hyperparameters({"speed": 1.0})
    with pytest.raises(InvalidRequest, match="parameters of"):
        optimizer.with_parameters({})


@pytest.mark.parametrize(
    ("optimizer", "other"),
    [
        (SGD(momentum=0.9), SGD()),
        (SGD(), SGD(momentum=0.9)),
        (RMSprop(), RMSprop(momentum=0.9)),
        (RMSprop(), RMSprop(centered=True)),
        (Adam(), Adam(amsgrad=True)),
        (AdamW(amsgrad=True), AdamW()),
        (ClippedByValue(SGD(momentum=0.9)), ClippedByValue(SGD())),
    ],
    ids=str,
)
def test_numbers_that_change_the_state_columns_make_another_table(optimizer: Optimizer, other: Optimizer) -> None:
    assert TableSpec("user", 4, optimizer).difference(TableSpec("user", 4, other)) == "optimizer"
    with pytest.raises(InvalidRequest, match="as the table was made"):
        optimizer.with_parameters(other.parameters())


def test_numbers_that_do_not_leave_the_table_what_it_is() -> None:
    spec = TableSpec("user", 4, SGD(momentum=0.9))
    assert spec.difference(replace(spec, optimizer=SGD(lr=1.0, momentum=0.5, nesterov=True, weight_decay=0.1))) is None
    for field, value in {"dtype": "bfloat16", "wire": "int8", "max_norm": 1.0, "seed": 3}.items():
        assert spec.difference(replace(spec, **{field: value})) == field  # type: ignore[arg-type]  # each fits its field


@pytest.mark.parametrize("optimizer", [RowWiseAdagrad(), ClippedByRowNorm(SGD()), ClippedByValue(RowWiseAdagrad())], ids=str)
def test_what_reduces_rows_is_refused_for_dense_parameters(optimizer: Optimizer) -> None:
    TableSpec("user", 4, optimizer)
    with pytest.raises(InvalidRequest, match="a block of dense parameters is no row"):
        TableSpec("dense", 4, optimizer, Assigned())


def test_a_table_refuses_what_no_table_can_have() -> None:
    for field, bad in {
        "dtype": "float16",
        "wire": "int4",
        "max_norm": -1.0,
        "dim": 0,
        "name": "",
        "seed": -1,
        "optimizer": "sgd",
        "initializer": None,
    }.items():
        with pytest.raises(InvalidRequest) as caught:
            TableSpec(**{"name": "user", "dim": 4, field: bad})  # type: ignore[arg-type]  # that is the point
        assert caught.value.field == f"TableSpec.{field}"
    with pytest.raises(InvalidRequest, match="max_norm of dense table"):
        TableSpec("dense", 4, SGD(), Assigned(), max_norm=1.0)
    with pytest.raises(InvalidRequest, match="dtype of dense table"):
        TableSpec("dense", 4, SGD(), Assigned(), dtype="bfloat16")
    with pytest.raises(InvalidRequest, match="wire of dense table"):
        TableSpec("dense", 4, SGD(), Assigned(), wire="int8")
    TableSpec("dense", 4, SGD(), Assigned(), wire="bfloat16")  # number by number: blocks make no difference

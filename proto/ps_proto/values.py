"""What a table is and how a job runs: settings that a user writes, that travel, and that both sides compare.

A setting is a frozen dataclass with a `kind` and numbers. On the wire it is that kind and a map of floats, so that a new optimizer
is a new class here and no new message; nothing is ever pickled.
"""

import math
import operator
import re
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

from ps_proto.errors import InvalidRequest

MAX_DIM = 65_536  # a row of 256 KiB: far below any message limit, and requests are cut between rows
MAX_WIDTH = 4 * MAX_DIM  # of a record: the row and its state columns
MAX_BOUND = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38


def _check(holds: bool, field: str, got: object, want: str) -> None:
    if not holds:
        raise InvalidRequest(field, repr(got), want)


def _finite(field: str, value: object) -> None:
    _check(isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value), field, value, "a finite number")


def _whole(field: str, value: object, least: int, most: int) -> int:
    """Return a whole number, numpy's too, as an int."""
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    number = operator.index(value) if is_whole else least - 1  # type: ignore[arg-type]  # it has __index__
    _check(least <= number <= most, field, value, f"a whole number from {least} to {most}")
    return number


@dataclass(frozen=True)
class Setting:
    """A choice with numbers: an optimizer, an initializer or a mode."""

    kind: ClassVar[str]

    def parameters(self) -> dict[str, float]:
        """Return the numbers by name, as they travel."""
        names: tuple[str, ...] = self.__match_args__
        return {name: float(getattr(self, name)) for name in names}

    @classmethod
    def from_parameters(cls, parameters: dict[str, float]) -> Self:
        """Build the setting that travelled as `parameters`; a name it does not have raises InvalidRequest."""
        try:
            return cls(**parameters)
        except TypeError:
            wanted = ", ".join(cls.__match_args__) or "none"
            raise InvalidRequest(f"parameters of {cls.kind}", str(sorted(parameters)), wanted) from None


# --- initializers: what an id reads as before it has a row ------------------------------------------------------------------


class Initializer(Setting):
    """A row's initial value: a pure function of (seed, table name, id, column)."""


@dataclass(frozen=True)
class Zeros(Initializer):
    """0 everywhere."""

    kind = "zeros"


@dataclass(frozen=True)
class Constant(Initializer):
    """`value` everywhere."""

    kind = "constant"
    value: float

    def __post_init__(self) -> None:
        _finite("Constant.value", self.value)


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform on [low, high)."""

    kind = "uniform"
    low: float
    high: float

    def __post_init__(self) -> None:
        _finite("Uniform.low", self.low)
        _finite("Uniform.high", self.high)
        _check(self.low <= self.high, "Uniform.low", self.low, f"at most Uniform.high, {self.high}")


@dataclass(frozen=True)
class Normal(Initializer):
    """Normal with `mean` and standard deviation `std`."""

    kind = "normal"
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _finite("Normal.mean", self.mean)
        _finite("Normal.std", self.std)
        _check(self.std >= 0, "Normal.std", self.std, "at least 0")


@dataclass(frozen=True)
class Assigned(Initializer):
    """No initial value: rank 0 assigns each row once, and a pull of a row without a value waits for that (R18)."""

    kind = "assigned"


# --- optimizers: what the servers do with a gradient -------------------------------------------------------------------------


class Optimizer(Setting):
    """A server-side optimizer with its hyperparameters, which may change from step to step; its kind may not."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """w -= lr·g"""

    kind = "sgd"
    lr: float = 0.01

    def __post_init__(self) -> None:
        _check_rate("SGD", self.lr)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Duchi et al., JMLR 12 (2011), elementwise: a += g², w -= lr·g / (√a + eps)."""

    kind = "adagrad"
    lr: float = 0.01
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def __post_init__(self) -> None:
        _check_rate("Adagrad", self.lr)
        _finite("Adagrad.initial_accumulator_value", self.initial_accumulator_value)
        _check(self.initial_accumulator_value >= 0, "Adagrad.initial_accumulator_value", self.initial_accumulator_value, "at least 0")
        _finite("Adagrad.eps", self.eps)
        _check(self.eps >= 0, "Adagrad.eps", self.eps, "at least 0")


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba, ICLR 2015, with bias correction by each row's own count of steps: a row without a gradient does not move."""

    kind = "adam"
    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check_rate("Adam", self.lr)
        _check(isinstance(self.betas, tuple | list) and len(self.betas) == 2, "Adam.betas", self.betas, "two numbers in [0, 1)")
        object.__setattr__(self, "betas", tuple(self.betas))
        for beta in self.betas:
            _finite("Adam.betas", beta)
            _check(0 <= beta < 1, "Adam.betas", self.betas, "two numbers in [0, 1)")
        _finite("Adam.eps", self.eps)
        _check(self.eps >= 0, "Adam.eps", self.eps, "at least 0")

    def parameters(self) -> dict[str, float]:
        return {"lr": float(self.lr), "beta1": float(self.betas[0]), "beta2": float(self.betas[1]), "eps": float(self.eps)}

    @classmethod
    def from_parameters(cls, parameters: dict[str, float]) -> Self:
        rest = {name: value for name, value in parameters.items() if name not in ("beta1", "beta2")}
        try:
            return cls(betas=(parameters["beta1"], parameters["beta2"]), **rest)
        except (KeyError, TypeError):
            raise InvalidRequest("parameters of adam", str(sorted(parameters)), "lr, beta1, beta2 and eps") from None


def _check_rate(optimizer: str, lr: float) -> None:
    _finite(f"{optimizer}.lr", lr)
    _check(0 <= lr <= FLOAT32_MAX, f"{optimizer}.lr", lr, "at least 0 and a float32")


# --- modes: how far workers may drift apart ----------------------------------------------------------------------------------


class Mode(Setting):
    """How pulls and pushes of several workers fit together."""


@dataclass(frozen=True)
class Sync(Mode):
    """All ranks' gradients of a step are folded at once; everybody reads the same step."""

    kind = "sync"


@dataclass(frozen=True)
class Async(Mode):
    """A push is applied on arrival; a pull never waits."""

    kind = "async"


@dataclass(frozen=True)
class BoundedStaleness(Mode):
    """A push is applied on arrival; a pull for step c waits until every rank has finished all steps < c - bound."""

    kind = "bounded"
    bound: int

    def __post_init__(self) -> None:
        whole = isinstance(self.bound, int | float) and not isinstance(self.bound, bool) and self.bound == int(self.bound)
        _check(whole and 0 <= self.bound <= MAX_BOUND, "BoundedStaleness.bound", self.bound, f"a whole number from 0 to {MAX_BOUND}")
        object.__setattr__(self, "bound", int(self.bound))  # it travels as a float


INITIALIZERS: dict[str, type[Initializer]] = {setting.kind: setting for setting in (Zeros, Constant, Uniform, Normal, Assigned)}
OPTIMIZERS: dict[str, type[Optimizer]] = {setting.kind: setting for setting in (SGD, Adagrad, Adam)}
MODES: dict[str, type[Mode]] = {setting.kind: setting for setting in (Sync, Async, BoundedStaleness)}

AnySetting = TypeVar("AnySetting", bound=Setting)


def setting_from_wire(known: dict[str, type[AnySetting]], what: str, kind: str, parameters: dict[str, float]) -> AnySetting:
    """Return the setting that travelled as (kind, parameters); a kind nobody knows raises InvalidRequest."""
    if kind not in known:
        raise InvalidRequest(what, repr(kind), f"one of {sorted(known)}")
    return known[kind].from_parameters(parameters)


# --- tables ------------------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


@dataclass(frozen=True)
class TableSpec:
    """A named map from id (uint64) to a row of `dim` float32.

    `mode` overrides the job's; None follows it. `seed` is any uint64. A table is its name: initial values and placement
    depend on it, never on the order in which tables were created (R18).
    """

    name: str
    dim: int
    optimizer: Optimizer = SGD()
    initializer: Initializer = Zeros()
    seed: int = 0
    mode: Mode | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        is_name = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None
        _check(is_name, "TableSpec.name", self.name, "1 to 256 printable characters")
        object.__setattr__(self, "dim", _whole("TableSpec.dim", self.dim, 1, MAX_DIM))
        _check(isinstance(self.optimizer, Optimizer), "TableSpec.optimizer", self.optimizer, "an optimizer such as ps.Adagrad(lr=0.05)")
        is_initializer = isinstance(self.initializer, Initializer)
        _check(is_initializer, "TableSpec.initializer", self.initializer, "an initializer such as ps.Uniform(-0.01, 0.01)")
        object.__setattr__(self, "seed", _whole("TableSpec.seed", self.seed, 0, 2**64 - 1))
        _check(self.mode is None or isinstance(self.mode, Mode), "TableSpec.mode", self.mode, "None or a mode such as ps.Async()")
        _check(self.dtype == "float32", "TableSpec.dtype", self.dtype, "'float32'")

    def difference(self, other: "TableSpec") -> str | None:
        """Return the name of the first field that makes two specs different tables, or None.

        Hyperparameters (learning rates and the like) are no such field: they may change from step to step.
        """
        for field in ("dim", "dtype", "initializer", "seed", "mode"):
            if getattr(self, field) != getattr(other, field):
                return field
        return "optimizer" if self.optimizer.kind != other.optimizer.kind else None

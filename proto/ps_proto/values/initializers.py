"""What an id reads as before it has a row."""

from dataclasses import dataclass

from ps_proto.values.setting import FLOAT32_MAX, Setting, check, check_at_least, check_finite, whole

FAN_MAX = 2**53  # a float64, as which it travels, counts so far
_REACH_STD = 30


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
        check_at_least("Constant.value", self.value, -FLOAT32_MAX)


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform on [low, high)."""

    kind = "uniform"
    low: float
    high: float

    def __post_init__(self) -> None:
        check_at_least("Uniform.low", self.low, -FLOAT32_MAX)
        check_at_least("Uniform.high", self.high, -FLOAT32_MAX)
        check(self.low <= self.high, "Uniform.low", self.low, f"at most Uniform.high, {self.high}")


@dataclass(frozen=True)
class Normal(Initializer):
    """Normal with `mean` and standard deviation `std`."""

    kind = "normal"
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _check_normal("Normal", self.mean, self.std)


@dataclass(frozen=True)
class TruncatedNormal(Initializer):
    """Normal with `mean` and `std`, given that it lies in [low, high]: absolute limits, as torch.nn.init.trunc_normal_ has them.

    [low, high] comes within 30 std of the mean: float64 still has the probabilities of what lies there.
    """

    kind = "truncated_normal"
    mean: float = 0.0
    std: float = 1.0
    low: float = -2.0
    high: float = 2.0

    def __post_init__(self) -> None:
        _check_normal("TruncatedNormal", self.mean, self.std)
        check(self.std > 0, "TruncatedNormal.std", self.std, "more than 0")
        check_finite("TruncatedNormal.low", self.low)
        check_finite("TruncatedNormal.high", self.high)
        check(self.low < self.high, "TruncatedNormal.low", self.low, f"less than TruncatedNormal.high, {self.high}")
        reach, want = _REACH_STD * self.std, f"within {_REACH_STD} std of the mean"
        check(self.low - self.mean <= reach, "TruncatedNormal.low", self.low, f"{want}, or less")
        check(self.mean - self.high <= reach, "TruncatedNormal.high", self.high, f"{want}, or more")


@dataclass(frozen=True)
class XavierUniform(Initializer):
    """Glorot and Bengio, AISTATS 2010: uniform on ±gain·√(6 / (fan_in + fan_out)).

    A table has no number of rows, so `fan_out`, which torch takes from the shape [num_embeddings, dim], is given; `fan_in` is the dim where
    it is None.
    """

    kind = "xavier_uniform"
    fan_out: int
    fan_in: int | None = None
    gain: float = 1.0

    def __post_init__(self) -> None:
        _check_fans(self, self.fan_in, self.gain)
        object.__setattr__(self, "fan_out", whole("XavierUniform.fan_out", self.fan_out, 1, FAN_MAX))


@dataclass(frozen=True)
class XavierNormal(Initializer):
    """Glorot and Bengio, AISTATS 2010: normal with standard deviation gain·√(2 / (fan_in + fan_out)); the fans as in XavierUniform."""

    kind = "xavier_normal"
    fan_out: int
    fan_in: int | None = None
    gain: float = 1.0

    def __post_init__(self) -> None:
        _check_fans(self, self.fan_in, self.gain)
        object.__setattr__(self, "fan_out", whole("XavierNormal.fan_out", self.fan_out, 1, FAN_MAX))


@dataclass(frozen=True)
class HeUniform(Initializer):
    """He et al., ICCV 2015 (torch: kaiming_uniform_): uniform on ±gain·√(3 / fan_in); fan_in is the table's dim where it is None.

    The default gain, √2, is that of relu.
    """

    kind = "he_uniform"
    fan_in: int | None = None
    gain: float = 2.0**0.5

    def __post_init__(self) -> None:
        _check_fans(self, self.fan_in, self.gain)


@dataclass(frozen=True)
class HeNormal(Initializer):
    """He et al., ICCV 2015 (torch: kaiming_normal_): normal with standard deviation gain / √fan_in; otherwise as HeUniform."""

    kind = "he_normal"
    fan_in: int | None = None
    gain: float = 2.0**0.5

    def __post_init__(self) -> None:
        _check_fans(self, self.fan_in, self.gain)


@dataclass(frozen=True)
class Assigned(Initializer):
    """No initial value: rank 0 assigns each row once, and a pull of a row without a value waits for that (R18)."""

    kind = "assigned"


def _check_normal(name: str, mean: float, std: float) -> None:
    check_at_least(f"{name}.mean", mean, -FLOAT32_MAX)
    check_at_least(f"{name}.std", std, 0)


def _check_fans(setting: Initializer, fan_in: int | None, gain: float) -> None:
    name = type(setting).__name__
    if fan_in is not None:
        object.__setattr__(setting, "fan_in", whole(f"{name}.fan_in", fan_in, 1, FAN_MAX))
    check_at_least(f"{name}.gain", gain, 0)


INITIALIZERS: dict[str, type[Initializer]] = {
    setting.kind: setting
    for setting in (Zeros, Constant, Uniform, Normal, TruncatedNormal, XavierUniform, XavierNormal, HeUniform, HeNormal, Assigned)
}

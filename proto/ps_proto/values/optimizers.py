"""What the servers do with a gradient: the optimizers by their papers, with the names and defaults that torch.optim gives their numbers.

They all are lazy: a row without a gradient in a push neither moves nor decays, and its state stays as it is.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from ps_proto.errors import InvalidRequest
from ps_proto.values.setting import Setting, check, check_at_least, check_flag, check_fraction


class Optimizer(Setting):
    """A server-side optimizer with its hyperparameters, which may change from step to step; what lies beside a row may not.

    reduces_rows  whether a number of a row depends on others of the row; then it is refused for dense parameters, whose blocks are no rows.
    """

    reduces_rows: ClassVar[bool] = False

    @property
    def is_row_wise(self) -> bool:
        """Return whether it, or what it decorates, reduces rows."""
        return self.reduces_rows

    @property
    def layout(self) -> str:
        """Return what decides the state columns beside a row: the kind, and what adds columns to it."""
        return self.label

    def hyperparameters(self) -> dict[str, Any]:
        """Return the numbers by name, as a user writes them."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def with_hyperparameters(self, numbers: dict[str, Any]) -> Self:
        """Return this optimizer with other numbers; a name that it does not have raises InvalidRequest."""
        if not numbers.keys() <= self.hyperparameters().keys():
            raise InvalidRequest(f"hyperparameters of {self.label}", str(sorted(numbers)), f"some of {sorted(self.hyperparameters())}")
        return replace(self, **numbers)

    def with_parameters(self, parameters: dict[str, float]) -> Self:
        """Return this optimizer with the numbers that travelled; all must be there, and the state columns must stay as they are."""
        if parameters.keys() != self.parameters().keys():
            raise InvalidRequest(f"parameters of {self.label}", str(sorted(parameters)), str(sorted(self.parameters())))
        other = self._from(parameters)
        if other.layout != self.layout:
            raise InvalidRequest(
                f"parameters of {self.label}", f"those of {other.layout}", f"those of {self.layout}, as the table was made"
            )
        return other

    def _from(self, parameters: dict[str, float]) -> Self:
        return type(self).from_parameters(parameters)


@dataclass(frozen=True)
class SGD(Optimizer):
    """w -= lr·g; with momentum (Sutskever et al., ICML 2013, in torch's form) or Nesterov's; coupled weight decay: g += weight_decay·w."""

    kind = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_rate(self)
        check_at_least("SGD.momentum", self.momentum, 0)
        check_at_least("SGD.weight_decay", self.weight_decay, 0)
        check_at_least("SGD.dampening", self.dampening, 0)
        check_flag("SGD.nesterov", self.nesterov)
        is_nesterov = self.momentum > 0 and self.dampening == 0
        check(not self.nesterov or is_nesterov, "SGD.nesterov", self.nesterov, "False, or with a momentum and without dampening")

    @property
    def layout(self) -> str:
        return "sgd with momentum" if self.momentum else "sgd"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Duchi et al., JMLR 12 (2011), elementwise: a += g², w -= lr·g / (√a + eps)."""

    kind = "adagrad"
    lr: float = 0.01
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_adagrad(self, self.initial_accumulator_value, self.eps, self.weight_decay)


@dataclass(frozen=True)
class RowWiseAdagrad(Optimizer):
    """Adagrad with one number a row (Gupta et al., "Training recommender systems at scale", 2020; FBGEMM's): a += mean(g²)."""

    kind = "row_wise_adagrad"
    reduces_rows = True
    lr: float = 0.01
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_adagrad(self, self.initial_accumulator_value, self.eps, self.weight_decay)


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Tieleman and Hinton, lecture 6.5 (2012), as torch has it: centered (Graves, 2013) and with momentum where asked for."""

    kind = "rmsprop"
    lr: float = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def __post_init__(self) -> None:
        check_rate(self)
        check_fraction("RMSprop.alpha", self.alpha)
        for name in ("eps", "weight_decay", "momentum"):
            check_at_least(f"RMSprop.{name}", getattr(self, name), 0)
        check_flag("RMSprop.centered", self.centered)

    @property
    def layout(self) -> str:
        return "rmsprop" + (", centered" if self.centered else "") + (" with momentum" if self.momentum else "")


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba, ICLR 2015, with bias correction by each row's own count of steps; amsgrad: Reddi et al., ICLR 2018.

    Coupled weight decay: g += weight_decay·w.
    """

    kind = "adam"
    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def __post_init__(self) -> None:
        _check_adam(self, self.eps, self.weight_decay, self.amsgrad)

    @property
    def layout(self) -> str:
        return "adam with amsgrad" if self.amsgrad else "adam"


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Loshchilov and Hutter, ICLR 2019: Adam with decoupled weight decay, w -= lr·weight_decay·w."""

    kind = "adamw"
    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    amsgrad: bool = False

    def __post_init__(self) -> None:
        _check_adam(self, self.eps, self.weight_decay, self.amsgrad)

    @property
    def layout(self) -> str:
        return "adamw with amsgrad" if self.amsgrad else "adamw"


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal with L1 and L2, McMahan et al., KDD 2013, algorithm 1; `lr` is its α, `beta`, `l1` and `l2` as there.

    Rows begin where the initializer puts them, not at 0 as in the paper: the first gradient finds the z that stands for the row.
    """

    kind = "ftrl"
    lr: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self)
        for name in ("beta", "l1", "l2"):
            check_at_least(f"FTRL.{name}", getattr(self, name), 0)


@dataclass(frozen=True)
class Lion(Optimizer):
    """Chen et al., "Symbolic discovery of optimization algorithms", 2023: steps by the sign alone; decoupled weight decay."""

    kind = "lion"
    lr: float = 0.0001
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self)
        check_betas(self)
        check_at_least("Lion.weight_decay", self.weight_decay, 0)


def check_rate(optimizer: Any) -> None:
    """Raise InvalidRequest unless its `lr` is a learning rate."""
    check_at_least(f"{type(optimizer).__name__}.lr", optimizer.lr, 0)


def check_betas(optimizer: Any) -> None:
    """Raise InvalidRequest unless its `betas` are two numbers in [0, 1); a list becomes a tuple."""
    field, betas = f"{type(optimizer).__name__}.betas", optimizer.betas
    check(isinstance(betas, tuple | list) and len(betas) == 2, field, betas, "two numbers in [0, 1)")
    object.__setattr__(optimizer, "betas", tuple(betas))
    for beta in betas:
        check_fraction(field, beta)


def _check_adagrad(optimizer: Optimizer, initial: float, eps: float, weight_decay: float) -> None:
    name = type(optimizer).__name__
    check_rate(optimizer)
    check_at_least(f"{name}.initial_accumulator_value", initial, 0)
    check_at_least(f"{name}.eps", eps, 0)
    check_at_least(f"{name}.weight_decay", weight_decay, 0)


def _check_adam(optimizer: Optimizer, eps: float, weight_decay: float, amsgrad: bool) -> None:
    name = type(optimizer).__name__
    check_rate(optimizer)
    check_betas(optimizer)
    check_at_least(f"{name}.eps", eps, 0)
    check_at_least(f"{name}.weight_decay", weight_decay, 0)
    check_flag(f"{name}.amsgrad", amsgrad)


OPTIMIZERS: dict[str, type[Optimizer]] = {
    setting.kind: setting for setting in (SGD, Adagrad, RowWiseAdagrad, RMSprop, Adam, AdamW, FTRL, Lion)
}

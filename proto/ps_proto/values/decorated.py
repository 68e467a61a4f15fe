"""What may be done to a gradient before an optimizer gets it: decorators over any optimizer, one inside another.

    ps.ClippedByValue(ps.DelayCompensated(ps.Adagrad(lr=0.05)), clip_value=1.0)      the outermost sees the gradient first

They travel as "clipped_by_value+delay_compensated+adagrad" and the numbers of all of them.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from ps_proto.errors import InvalidRequest
from ps_proto.values.optimizers import Optimizer
from ps_proto.values.setting import check, check_at_least


@dataclass(frozen=True)
class Decorated(Optimizer):
    """An optimizer behind something that changes its gradients or its learning rate; its own fields are numbers, under other names."""

    optimizer: Optimizer

    def __post_init__(self) -> None:
        name = type(self).__name__
        is_optimizer = isinstance(self.optimizer, Optimizer)
        check(is_optimizer, f"{name}.optimizer", self.optimizer, "an optimizer such as ps.Adagrad(lr=0.05)")
        kinds = self.optimizer.label.split("+")
        check(self.kind not in kinds, f"{name}.optimizer", self.optimizer.label, f"one that is not {self.kind} already")
        check_unique = set(self.parameter_names()).isdisjoint(self.optimizer.parameters())
        check(check_unique, f"{name}.optimizer", self.optimizer.label, f"one without numbers called {', '.join(self.parameter_names())}")

    @property
    def is_row_wise(self) -> bool:
        return self.reduces_rows or self.optimizer.is_row_wise

    @property
    def label(self) -> str:
        return f"{self.kind}+{self.optimizer.label}"

    @property
    def layout(self) -> str:
        return f"{self.kind}+{self.optimizer.layout}"

    def parameters(self) -> dict[str, float]:
        return self.optimizer.parameters() | {name: float(getattr(self, name)) for name in self.parameter_names()}

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        return tuple([item.name for item in fields(cls) if item.name != "optimizer"])

    def hyperparameters(self) -> dict[str, Any]:
        return self.optimizer.hyperparameters() | {name: getattr(self, name) for name in self.parameter_names()}

    def with_hyperparameters(self, numbers: dict[str, Any]) -> Self:
        mine = {name: value for name, value in numbers.items() if name in self.parameter_names()}
        rest = {name: value for name, value in numbers.items() if name not in mine}
        return replace(self, optimizer=self.optimizer.with_hyperparameters(rest), **mine)

    def _from(self, parameters: dict[str, float]) -> Self:
        mine = {name: value for name, value in parameters.items() if name in self.parameter_names()}
        rest = {name: value for name, value in parameters.items() if name not in mine}
        return replace(self, optimizer=self.optimizer._from(rest), **mine)

    @classmethod
    def around(cls, optimizer: Optimizer, parameters: dict[str, float]) -> "Decorated":
        """Return `optimizer`, decorated with the numbers that travelled; those of others may be among them."""
        missing = [name for name in cls.parameter_names() if name not in parameters]
        if missing:
            raise InvalidRequest(f"parameters of {cls.kind}", str(sorted(parameters)), f"also {', '.join(missing)}")
        return cls(optimizer, **{name: parameters[name] for name in cls.parameter_names()})


@dataclass(frozen=True)
class ClippedByValue(Decorated):
    """Each number of the gradient clipped to [-clip_value, clip_value]: of the mean over the ranks in synchronous mode, else of a push."""

    kind = "clipped_by_value"
    clip_value: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("ClippedByValue.clip_value", self.clip_value, 0)


@dataclass(frozen=True)
class ClippedByRowNorm(Decorated):
    """Each row of the gradient scaled so that its Euclidean norm is at most `clip_row_norm`; refused for dense parameters (R16)."""

    kind = "clipped_by_row_norm"
    reduces_rows = True
    clip_row_norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("ClippedByRowNorm.clip_row_norm", self.clip_row_norm, 0)


@dataclass(frozen=True)
class DecoupledWeightDecay(Decorated):
    """w -= lr·decoupled_weight_decay·w before the optimizer's own step (Loshchilov and Hutter, ICLR 2019): SGDW and its like."""

    kind = "decoupled_weight_decay"
    decoupled_weight_decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("DecoupledWeightDecay.decoupled_weight_decay", self.decoupled_weight_decay, 0)
        has_rate = "lr" in self.optimizer.parameters()
        check(has_rate, "DecoupledWeightDecay.optimizer", self.optimizer.label, "one with a learning rate, lr")


@dataclass(frozen=True)
class DelayCompensated(Decorated):
    """DC-ASGD, Zheng et al., ICML 2017, with constant λ: g + compensation·g·g·(w - w_read), w_read the row as this rank pulled it.

    Outside of synchronous mode; in it every rank's w_read is w, and nothing changes.
    """

    kind = "delay_compensated"
    compensation: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("DelayCompensated.compensation", self.compensation, 0)


@dataclass(frozen=True)
class StalenessScaled(Decorated):
    """The learning rate divided by the staleness of the push, Zhang et al., "Staleness-aware async-SGD", IJCAI 2016.

    Staleness is how many pushes the table took on the server between this rank's pull and its push; below 1 it divides by 1.
    """

    kind = "staleness_scaled"

    def __post_init__(self) -> None:
        super().__post_init__()
        has_rate = "lr" in self.optimizer.parameters()
        check(has_rate, "StalenessScaled.optimizer", self.optimizer.label, "one with a learning rate, lr")


DECORATED: dict[str, type[Decorated]] = {
    setting.kind: setting for setting in (ClippedByValue, ClippedByRowNorm, DecoupledWeightDecay, DelayCompensated, StalenessScaled)
}

"""Optimizers that torch does not have, as their papers write them, in float64 and in the shape of torch.optim."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Tensors = dict[str, Tensor]


class Written(torch.optim.Optimizer, ABC):
    """Calls `update(w, g, state, numbers)` for each parameter that has a gradient, all in float64; a row is its last dimension.

    What a float64 keeps of the weights between steps lies in the state: else each step would round them.
    """

    def __init__(self, parameters: Iterable[Parameter], foreach: bool = False, **numbers: Any) -> None:
        super().__init__(parameters, numbers)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch's may return a loss
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    w = state.setdefault("w", parameter.double())
                    state["w"] = self.update(w, parameter.grad.double(), state, group)
                    parameter.copy_(state["w"])

    @abstractmethod
    def update(self, w: Tensor, g: Tensor, state: Tensors, numbers: dict[str, float]) -> Tensor:
        """Return the new weights."""


class RowWiseAdagrad(Written):
    def update(self, w: Tensor, g: Tensor, state: Tensors, numbers: dict[str, float]) -> Tensor:
        g = g + numbers["weight_decay"] * w
        initial = torch.full((*g.shape[:-1], 1), numbers["initial"], dtype=torch.float64)
        state["a"] = state.get("a", initial) + (g * g).mean(dim=-1, keepdim=True)
        return w - numbers["lr"] * g / (state["a"].sqrt() + numbers["eps"])


class FTRL(Written):
    """Algorithm 1 of McMahan et al., 2013, begun at the z that stands for the weights."""

    def update(self, w: Tensor, g: Tensor, state: Tensors, numbers: dict[str, float]) -> Tensor:
        lr, beta, l1, l2 = (numbers[name] for name in ("lr", "beta", "l1", "l2"))
        n = state.get("n", torch.zeros_like(w))
        z = state.get("z", -w * (beta / lr + l2) - w.sign() * l1)
        sigma = ((n + g * g).sqrt() - n.sqrt()) / lr
        state["z"] = z = z + g - sigma * w
        state["n"] = n = n + g * g
        return torch.where(z.abs() <= l1, 0.0, (z.sign() * l1 - z) / ((beta + n.sqrt()) / lr + l2))


class Lion(Written):
    def update(self, w: Tensor, g: Tensor, state: Tensors, numbers: dict[str, float]) -> Tensor:
        beta1, beta2 = numbers["beta1"], numbers["beta2"]
        m = state.get("m", torch.zeros_like(w))
        state["m"] = beta2 * m + (1 - beta2) * g
        return w - numbers["lr"] * ((beta1 * m + (1 - beta1) * g).sign() + numbers["weight_decay"] * w)


class SGDW(Written):
    def update(self, w: Tensor, g: Tensor, state: Tensors, numbers: dict[str, float]) -> Tensor:
        state["b"] = g + numbers["momentum"] * state["b"] if "b" in state else g
        return w * (1 - numbers["lr"] * numbers["decoupled_weight_decay"]) - numbers["lr"] * state["b"]


class ClippedByValue:
    """Clips gradients in place, then lets the inner optimizer step."""

    def __init__(
        self, parameters: Iterable[Parameter], clip_value: float, inner: Callable[..., torch.optim.Optimizer], **arguments: Any
    ) -> None:
        self.parameters = list(parameters)
        self.clip_value = clip_value
        self.inner = inner(self.parameters, **arguments)
        self.zero_grad = self.inner.zero_grad

    def step(self) -> None:
        torch.nn.utils.clip_grad_value_(self.parameters, self.clip_value, foreach=False)
        self.inner.step()


class ClippedByRowNorm:
    """Scales each row of the gradients in place, then lets the inner optimizer step."""

    def __init__(
        self, parameters: Iterable[Parameter], clip_row_norm: float, inner: Callable[..., torch.optim.Optimizer], **arguments: Any
    ) -> None:
        self.parameters = list(parameters)
        self.clip_row_norm = clip_row_norm
        self.inner = inner(self.parameters, **arguments)
        self.zero_grad = self.inner.zero_grad

    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                norms = parameter.grad.double().norm(dim=-1, keepdim=True)
                parameter.grad.mul_(torch.clamp(self.clip_row_norm / norms, max=1.0).float())
        self.inner.step()

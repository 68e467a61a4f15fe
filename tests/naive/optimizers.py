"""Optimizers on one row at a time, in numpy's float32."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
State = dict[str, npt.NDArray[Any]]
Parameters = dict[str, float]


def initial_state(kind: str, dim: int, parameters: Parameters) -> State:
    """Return what a new row keeps beside it."""
    if kind == "adagrad":
        return {"a": np.full(dim, parameters["initial_accumulator_value"], dtype=np.float32)}
    if kind == "adam":
        return {"m": np.zeros(dim, dtype=np.float32), "v": np.zeros(dim, dtype=np.float32), "t": np.zeros(1, dtype=np.uint32)}
    return {}


def step(kind: str, w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    """Return the row and its state after the gradient `g`; what is handed in stays as it is."""
    return STEPS[kind](w, state, g, parameters)


def record(kind: str, w: Row, state: State) -> Row:
    """Return row and state as they lie in a slab, float32[width]."""
    return np.concatenate([w, *(state[name].view(np.float32) for name in COLUMNS[kind])])


def _sgd(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    return w - np.float32(parameters["lr"]) * g, state


def _adagrad(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    a = state["a"] + g * g
    return w - np.float32(parameters["lr"]) * g / (np.sqrt(a) + np.float32(parameters["eps"])), {"a": a}


def _adam(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    beta1, beta2 = parameters["beta1"], parameters["beta2"]
    t = int(state["t"][0]) + 1
    m, v = state["m"], state["v"]
    weight = np.float32(1 - beta1)
    m = m + weight * (g - m) if weight < np.float32(0.5) else g - (g - m) * np.float32(beta1)
    v = v * np.float32(beta2) + np.float32(1 - beta2) * g * g
    step_size = np.float32(parameters["lr"] / (1 - power(beta1, t)))
    root = np.float32(np.sqrt(1 - power(beta2, t)))
    return w - step_size * m / (np.sqrt(v) / root + np.float32(parameters["eps"])), {"m": m, "v": v, "t": np.array([t], dtype=np.uint32)}


def power(beta: float, t: int) -> float:
    """Return beta^t: the product of beta^(2^k) over the bits k of t, lowest first."""
    result = 1.0
    for bit in reversed(f"{t:b}"):
        result = result * beta if bit == "1" else result
        beta = beta * beta
    return result


STEPS: dict[str, Callable[[Row, State, Row, Parameters], tuple[Row, State]]] = {"sgd": _sgd, "adagrad": _adagrad, "adam": _adam}
COLUMNS: dict[str, tuple[str, ...]] = {"sgd": (), "adagrad": ("a",), "adam": ("m", "v", "t")}

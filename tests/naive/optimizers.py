"""Optimizers and decorators on one row at a time, in numpy's float32."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from naive.row_sums import sum_of_squares

Row = npt.NDArray[np.float32]
State = dict[str, npt.NDArray[Any]]
Parameters = dict[str, float]
Step = Callable[[Row, State, Row, Parameters], tuple[Row, State]]
f32 = np.float32


def initial_state(label: str, dim: int, parameters: Parameters) -> State:
    """Return what a new row keeps beside it, in the order in which it lies there."""
    zeros = np.zeros(dim, dtype=np.float32)
    initial = parameters.get("initial_accumulator_value", 0.0)
    match label.split("+")[-1]:
        case "sgd":
            return {"b": np.full(dim, -0.0, dtype=np.float32)} if parameters["momentum"] else {}
        case "adagrad":
            return {"a": np.full(dim, initial, dtype=np.float32)}
        case "row_wise_adagrad":
            return {"a": np.full(1, initial, dtype=np.float32)}
        case "rmsprop":
            is_there = {"v": True, "m": parameters["centered"], "b": parameters["momentum"]}
            return {name: zeros for name, there in is_there.items() if there}
        case "adam" | "adamw":
            moments = {"m": zeros, "v": zeros} | ({"v_max": zeros} if parameters["amsgrad"] else {})
            return moments | {"t": np.zeros(1, dtype=np.uint32)}
        case "ftrl":
            return {"n": zeros, "z": zeros}
        case "lion":
            return {"m": zeros}
    raise AssertionError(f"no twin of {label}")


def step(
    label: str, w: Row, state: State, g: Row, parameters: Parameters, staleness: int = 0, w_read: Row | None = None
) -> tuple[Row, State]:
    """Return the row and its state after the gradient `g`; what is handed in stays as it is.

    label  as it travels: "clipped_by_value+adagrad".     w_read  the row as it was when it was read, where somebody asks.
    """
    *decorators, kind = label.split("+")
    for decorator in decorators:
        match decorator:
            case "clipped_by_value":
                g = np.clip(g, -f32(parameters["clip_value"]), f32(parameters["clip_value"]))
            case "clipped_by_row_norm":
                norm = float(np.sqrt(sum_of_squares(g)))
                g = g * f32(parameters["clip_row_norm"] / norm) if norm > parameters["clip_row_norm"] else g
            case "decoupled_weight_decay":
                w = w * f32(1 - parameters["lr"] * parameters["decoupled_weight_decay"])
            case "delay_compensated":
                if w_read is not None:
                    moved: Row = w - w_read
                    g = g + f32(parameters["compensation"]) * g * moved * g
            case "staleness_scaled":
                parameters = parameters | {"lr": parameters["lr"] / max(1, staleness)}
            case _:
                raise AssertionError(f"no twin of {decorator}")
    return STEPS[kind](w, state, g, parameters)


def record(w: Row, state: State) -> Row:
    """Return row and state as they lie in a slab, float32[width]."""
    return np.concatenate([w, *(column.view(np.float32) for column in state.values())])


def power(beta: float, t: int) -> float:
    """Return beta^t: the product of beta^(2^k) over the bits k of t, lowest first."""
    result = 1.0
    for bit in reversed(f"{t:b}"):
        result = result * beta if bit == "1" else result
        beta = beta * beta
    return result


def _sgd(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    lr, momentum = f32(parameters["lr"]), f32(parameters["momentum"])
    g = g + f32(parameters["weight_decay"]) * w
    if not state:
        return w - lr * g, {}
    is_new = np.signbit(state["b"][0]) and state["b"][0] == 0
    b = g.copy() if is_new else momentum * state["b"] + f32(1 - parameters["dampening"]) * g
    w = w - lr * (g + momentum * b if parameters["nesterov"] else b)
    b[0] = b[0] + f32(0)
    return w, {"b": b}


def _adagrad(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    g = g + f32(parameters["weight_decay"]) * w
    a = state["a"] + g * g
    return w - f32(parameters["lr"]) * g / (np.sqrt(a) + f32(parameters["eps"])), {"a": a}


def _row_wise_adagrad(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    g = g + f32(parameters["weight_decay"]) * w
    a: Row = state["a"] + f32(sum_of_squares(g) / g.size)
    step_size: Row = np.divide(f32(parameters["lr"]), np.sqrt(a) + f32(parameters["eps"]))
    return w - step_size * g, {"a": a}


def _lerp(average: Row, new: Row, weight: float) -> Row:
    return average + f32(weight) * (new - average) if f32(weight) < f32(0.5) else new - (new - average) * f32(1 - weight)


def _rmsprop(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    alpha, lr = parameters["alpha"], f32(parameters["lr"])
    g = g + f32(parameters["weight_decay"]) * w
    v = state["v"] * f32(alpha) + f32(1 - alpha) * g * g
    new: State = {"v": v}
    variance: Row = v
    if parameters["centered"]:
        new["m"] = _lerp(state["m"], g, 1 - alpha)
        variance = np.maximum(v - new["m"] * new["m"], f32(0))
    size: Row = np.sqrt(variance) + f32(parameters["eps"])
    if not parameters["momentum"]:
        return w - lr * g / size, new
    b: Row = f32(parameters["momentum"]) * state["b"] + g / size
    return w - lr * b, new | {"b": b}


def _adam(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    beta1, beta2 = parameters["beta1"], parameters["beta2"]
    t = int(state["t"][0]) + 1
    g = g + f32(parameters["weight_decay"]) * w
    m = _lerp(state["m"], g, 1 - beta1)
    v = state["v"] * f32(beta2) + f32(1 - beta2) * g * g
    new = {"m": m, "v": v}
    if parameters["amsgrad"]:
        new["v_max"] = np.maximum(state["v_max"], v)
    step_size = f32(parameters["lr"] / (1 - power(beta1, t)))
    root = f32(np.sqrt(1 - power(beta2, t)))
    size: Row = np.sqrt(new.get("v_max", v)) / root + f32(parameters["eps"])
    w = w - step_size * m / size
    return w, new | {"t": np.array([t], dtype=np.uint32)}


def _adamw(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    kept = f32(1 - parameters["lr"] * parameters["weight_decay"])
    return _adam(w * kept, state, g, parameters | {"weight_decay": 0.0})


def _ftrl(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    if parameters["lr"] == 0:
        return w, state
    beta, l1, l2 = (f32(parameters[name]) for name in ("beta", "l1", "l2"))
    n = state["n"] + g * g
    after, z = w.copy(), state["z"].copy()
    for j in range(w.size):
        c = (beta + np.sqrt(n[j])) * f32(1 / parameters["lr"]) + l2
        if g[j] == 0 or c == 0:
            continue
        z_j = z[j] + g[j] if w[j] == 0 else g[j] - c * w[j] - np.sign(w[j]) * l1
        z[j] = z_j if abs(z_j) <= l1 else 0
        if abs(z_j) <= l1:
            after[j] = 0
        elif w[j] * z_j < 0:
            after[j] = w[j] - g[j] / c
        else:
            after[j] = (np.sign(z_j) * l1 - z_j) / c
    return after, {"n": n, "z": z}


def _lion(w: Row, state: State, g: Row, parameters: Parameters) -> tuple[Row, State]:
    lr, beta1, beta2 = parameters["lr"], parameters["beta1"], parameters["beta2"]
    direction = f32(beta1) * state["m"] + f32(1 - beta1) * g
    sign: Row = np.sign(direction)
    w = f32(1 - lr * parameters["weight_decay"]) * w - f32(lr) * sign
    return w, {"m": f32(beta2) * state["m"] + f32(1 - beta2) * g}


STEPS: dict[str, Step] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "row_wise_adagrad": _row_wise_adagrad,
    "rmsprop": _rmsprop,
    "adam": _adam,
    "adamw": _adamw,
    "ftrl": _ftrl,
    "lion": _lion,
}

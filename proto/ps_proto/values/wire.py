"""Settings from what travelled: a kind and a map of floats."""

from collections.abc import Mapping
from typing import TypeVar

from ps_proto.errors import InvalidRequest
from ps_proto.values.decorated import DECORATED
from ps_proto.values.initializers import INITIALIZERS, Initializer
from ps_proto.values.modes import MODES, Mode
from ps_proto.values.optimizers import OPTIMIZERS, Optimizer
from ps_proto.values.setting import Setting

AnySetting = TypeVar("AnySetting", bound=Setting)


def initializer_from_wire(kind: str, parameters: Mapping[str, float]) -> Initializer:
    """Return the initializer that travelled; a kind that nobody knows raises InvalidRequest."""
    return _known(INITIALIZERS, "initializer", kind).from_parameters(parameters)


def mode_from_wire(kind: str, parameters: Mapping[str, float]) -> Mode:
    """Return the mode that travelled; a kind that nobody knows raises InvalidRequest."""
    return _known(MODES, "mode", kind).from_parameters(parameters)


def optimizer_from_wire(kind: str, parameters: Mapping[str, float]) -> Optimizer:
    """Return the optimizer that travelled, with its decorators; a kind that nobody knows raises InvalidRequest."""
    *outer, inner = kind.split("+")
    decorators = [_known(DECORATED, "optimizer", name) for name in outer]
    taken = {name for decorator in decorators for name in decorator.parameter_names()}
    optimizer = _known(OPTIMIZERS, "optimizer", inner).from_parameters(
        {name: number for name, number in parameters.items() if name not in taken}
    )
    for decorator in reversed(decorators):
        optimizer = decorator.around(optimizer, dict(parameters))
    return optimizer


def _known(known: Mapping[str, type[AnySetting]], what: str, kind: str) -> type[AnySetting]:
    if kind not in known:
        raise InvalidRequest(what, repr(kind), f"one of {sorted(known)}, or one that a plugin registers here too")
    return known[kind]

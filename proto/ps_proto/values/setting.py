"""What optimizers, initializers and modes have in common: a kind, numbers, and checks that say which number is wrong."""

import operator
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar, Self

from ps_proto.errors import InvalidRequest

FLOAT32_MAX = 3.4028234663852886e38
# Types of fields, as classes and as the strings that `from __future__ import annotations` makes of them.
_FLAGS = (bool, "bool")
_WHOLE_NUMBERS = (int, "int", int | None, "int | None")
NUMBERS = (float, "float", float | None, "float | None", *_WHOLE_NUMBERS, *_FLAGS)


def check(holds: bool, field: str, got: object, want: str) -> None:
    """Raise InvalidRequest for `field` unless the condition holds."""
    if not holds:
        raise InvalidRequest(field, repr(got), want)


def check_finite(field: str, value: object) -> None:
    """Raise InvalidRequest unless the value is a finite number that a float64 can hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    check(is_number, field, value, "a number, Python's int or float: float(x) makes one")
    check(abs(value) <= sys.float_info.max, field, value, "a finite number")  # type: ignore[arg-type]  # it is a number


def check_at_least(field: str, value: Any, least: float) -> None:
    """Raise InvalidRequest unless the value is a finite number from `least` on that a float32 can hold."""
    check_finite(field, value)
    check(least <= value <= FLOAT32_MAX, field, value, f"at least {least:g} and a float32")


def check_fraction(field: str, value: Any) -> None:
    """Raise InvalidRequest unless the value is a number in [0, 1)."""
    check_finite(field, value)
    check(0 <= value < 1, field, value, "a number in [0, 1)")


def check_flag(field: str, value: object) -> None:
    """Raise InvalidRequest unless the value is True or False."""
    check(isinstance(value, bool), field, value, "True or False")


def whole(field: str, value: object, least: int, most: int) -> int:
    """Return a whole number, numpy's too, as an int; anything else raises InvalidRequest."""
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    number = operator.index(value) if is_whole else least - 1  # type: ignore[arg-type]  # it has __index__
    check(least <= number <= most, field, value, f"a whole number from {least} to {most}")
    return number


@dataclass(frozen=True)
class Setting:
    """A choice with numbers: an optimizer, an initializer or a mode.

    Its fields are numbers, flags, or pairs of numbers, and travel as a map of floats: a flag as 0 or 1, a pair such as `betas` as `beta1`
    and `beta2`. A field of None does not travel.
    """

    kind: ClassVar[str]

    @property
    def label(self) -> str:
        """Return the kind as it travels."""
        return self.kind

    def parameters(self) -> dict[str, float]:
        """Return the numbers by name, as they travel."""
        numbers: dict[str, float] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, tuple):
                numbers |= {name: float(part) for name, part in zip(_pair(item.name), value, strict=True)}
            elif value is not None:
                numbers[item.name] = float(value)
        return numbers

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        """Return the names under which the numbers travel."""
        return tuple([name for item in fields(cls) for name in _names(item)])

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, float]) -> Self:
        """Build the setting that travelled as `parameters`; a name that it does not have, or that is missing, raises InvalidRequest."""
        known = {item.name: _value(cls.kind, item, parameters) for item in fields(cls) if any(name in parameters for name in _names(item))}
        missing = [item.name for item in fields(cls) if item.name not in known and item.default is MISSING]
        if missing or not parameters.keys() <= set(cls.parameter_names()):
            wanted = ", ".join(cls.parameter_names()) or "none"
            raise InvalidRequest(f"parameters of {cls.kind}", str(sorted(parameters)), wanted)
        return cls(**known)


def _names(item: "Field[Any]") -> tuple[str, ...]:
    return _pair(item.name) if isinstance(item.default, tuple) else (item.name,)


def _pair(name: str) -> tuple[str, str]:
    return f"{name.removesuffix('s')}1", f"{name.removesuffix('s')}2"


def _value(kind: str, item: "Field[Any]", parameters: Mapping[str, float]) -> Any:
    """Return a field's value from what travelled."""
    given = [parameters.get(name) for name in _names(item)]
    if None in given:
        raise InvalidRequest(f"parameters of {kind}", str(sorted(parameters)), f"all of {', '.join(_names(item))}")
    if isinstance(item.default, tuple):
        return tuple(given)
    (number,) = given
    if item.type in _FLAGS:
        check(number in (0.0, 1.0), f"{kind}.{item.name}", number, "0 or 1")
        return bool(number)
    return int(number) if item.type in _WHOLE_NUMBERS and number is not None and float(number).is_integer() else number

"""Optimizers and initializers of a user's own: settings that join those of this package, so that they travel as those do.

A plugin is a module whose import registers its classes: here what a user writes, in ps_server/shard/registering.py what a server does with
it. ps_proto/plugins.py imports it in every process that needs it. docs/own-optimizer.md shows one.
"""

import re
from dataclasses import Field, fields
from typing import Any, TypeVar

from ps_proto.errors import InvalidRequest
from ps_proto.values.decorated import DECORATED, Decorated
from ps_proto.values.initializers import INITIALIZERS, Initializer
from ps_proto.values.optimizers import OPTIMIZERS, Optimizer
from ps_proto.values.setting import NUMBERS, Setting, check

AnyOptimizer = TypeVar("AnyOptimizer", bound=type[Optimizer])
AnyInitializer = TypeVar("AnyInitializer", bound=type[Initializer])

_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # no "+", which joins the kinds of an optimizer and its decorators


def register_optimizer(setting: AnyOptimizer) -> AnyOptimizer:
    """Make an optimizer's setting, or a decorator's, known under its `kind`, and return it: so it serves as a class decorator, too.

    Raises InvalidRequest for what is no frozen dataclass that extends Optimizer, whose fields are numbers, flags and pairs of numbers; for
    a class without a kind of its own, and for a kind that is taken. A class may come again, also made anew as where its module is reloaded.
    """
    _check_class(setting, Optimizer)
    known: dict[str, Any] = DECORATED if issubclass(setting, Decorated) else OPTIMIZERS
    check_kind(setting, OPTIMIZERS | DECORATED)
    known[setting.kind] = setting
    return setting


def register_initializer(setting: AnyInitializer) -> AnyInitializer:
    """Make an initializer's setting known under its `kind`; otherwise as `register_optimizer`."""
    _check_class(setting, Initializer)
    check_kind(setting, INITIALIZERS)
    INITIALIZERS[setting.kind] = setting
    return setting


def check_kind(registered: type[Any], known: dict[str, Any]) -> None:
    """Raise InvalidRequest unless the class has a kind that none of the `known` classes has, itself excepted.

    A class of the same module and name counts as itself: a module that is imported anew, after an error in it, say, makes its classes anew.
    """
    kind, field = getattr(registered, "kind", None), f"{registered.__name__}.kind"
    is_kind = isinstance(kind, str) and _KIND.fullmatch(kind) is not None
    check(is_kind, field, kind, "a class attribute, kind = 'my_name': 1 to 64 letters, digits, '_', '.' or '-'")
    other = known.get(str(kind), registered)
    check(_place(other) == _place(registered), field, kind, f"one that is free: {other.__module__}.{other.__qualname__} has it")


def _place(registered: type[Any]) -> tuple[str, str]:
    return registered.__module__, registered.__qualname__


def _check_class(setting: type[Setting], base: type[Setting]) -> None:
    is_one = isinstance(setting, type) and issubclass(setting, base)
    check(is_one, f"a registered {base.__name__.lower()}", setting, f"a class that extends {base.__name__}")
    name = setting.__name__
    if "__dataclass_params__" not in vars(setting):  # frozen it is, as Setting is
        want = "decorated with @dataclass(frozen=True) before it is registered"
        raise InvalidRequest(f"registered class {name}", "no dataclass of its own", want)
    for item in fields(setting):
        is_inner = issubclass(setting, Decorated) and item.name == "optimizer"
        check(is_inner or _is_number(item), f"{name}.{item.name}", item.type, "float, int or bool, or a pair with a default of two numbers")
    names = setting.parameter_names()
    check(len(set(names)) == len(names), f"fields of {name}", names, "of different names as they travel, too")


def _is_number(item: "Field[Any]") -> bool:
    is_pair = isinstance(item.default, tuple) and len(item.default) == 2
    return is_pair or item.type in NUMBERS

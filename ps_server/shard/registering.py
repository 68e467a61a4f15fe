"""A user's own optimizers and initializers: what a server does with the settings that ps_proto/values/registering.py makes known.

Both are called by a plugin's module while it is imported, before the server opens any table. docs/own-optimizer.md shows one.
"""

import inspect
from typing import Any, TypeVar

from ps_proto.errors import InvalidRequest
from ps_proto.values.registering import check_kind
from ps_proto.values.setting import check
from ps_server.shard.initializers import INITIALIZERS
from ps_server.shard.initializers.initializer import RowInitializer
from ps_server.shard.optimizers import DECORATORS, OPTIMIZERS
from ps_server.shard.optimizers.decorator import RowDecorator
from ps_server.shard.optimizers.optimizer import RowOptimizer

AnyRowOptimizer = TypeVar("AnyRowOptimizer", bound=type[RowOptimizer])
AnyRowInitializer = TypeVar("AnyRowInitializer", bound=type[RowInitializer])


def register_row_optimizer(optimizer: AnyRowOptimizer) -> AnyRowOptimizer:
    """Let tables whose setting has the same `kind` use this class, a RowOptimizer or a RowDecorator; return it, as a class decorator does.

    Raises InvalidRequest for what extends neither or leaves a method out, for a class without a kind, and for a kind that is taken. A
    class may come again, also made anew as where its module is reloaded.
    """
    _check_class(optimizer, RowOptimizer)
    known: dict[str, Any] = DECORATORS if issubclass(optimizer, RowDecorator) else OPTIMIZERS
    check_kind(optimizer, OPTIMIZERS | DECORATORS)
    known[optimizer.kind] = optimizer
    return optimizer


def register_row_initializer(initializer: AnyRowInitializer) -> AnyRowInitializer:
    """Let tables whose setting has the same `kind` begin as this RowInitializer says; otherwise as `register_row_optimizer`."""
    _check_class(initializer, RowInitializer)
    check_kind(initializer, INITIALIZERS)
    INITIALIZERS[initializer.kind] = initializer
    return initializer


def _check_class(registered: type[Any], base: type[Any]) -> None:
    is_one = isinstance(registered, type) and issubclass(registered, base)
    check(is_one, f"a registered {base.__name__}", registered, f"a class that extends {base.__name__}")
    if inspect.isabstract(registered):
        missing = ", ".join(sorted(registered.__abstractmethods__))
        raise InvalidRequest(f"registered class {registered.__name__}", f"without {missing}", "complete")

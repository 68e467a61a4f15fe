"""What torch.compile must leave alone: whatever asks servers for rows or weights."""

from collections.abc import Callable
from typing import TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., object])


def not_compiled(function: F) -> F:
    """Keep a function, and all that it calls, out of graphs, which break once where it is called."""
    return cast(F, torch.compiler.disable(function))  # type: ignore[no-untyped-call]

"""Which gradients there are, to tell whether some were computed since."""

import weakref
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Trainer(Protocol):
    """What gradients are computed for: an optimizer."""

    def gradients_now(self) -> list[Any]:
        """Return the gradients that are there, each a tensor that can be referred to weakly and has a `_version`."""
        ...


class Gradients:
    """Which gradients were there at some time; it keeps none of them alive."""

    def __init__(self, gradients: list[Any]) -> None:
        self._known = {id(gradient): (weakref.ref(gradient), gradient._version) for gradient in gradients}

    def has_all_of(self, later: "Gradients") -> bool:
        """Return whether none was computed, or added to, until a later time."""
        for number, (gradient, version) in later._known.items():
            known, was = self._known.get(number, (None, -1))
            if known is None or known() is not gradient() or was != version:
                return False
        return True

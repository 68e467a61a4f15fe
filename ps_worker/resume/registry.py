"""The objects whose state goes with the resume state: what the script registers, and what Rowstead does by itself."""

import logging
import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from ps_proto.errors import InvalidRequest
from ps_worker.resume.gradients import Gradients, Trainer
from ps_worker.resume.packing import pack, unpack

log = logging.getLogger("rowstead")

OURS = "rowstead."  # names that begin so are not the script's to give


@runtime_checkable
class Resumable(Protocol):
    """What can say its state and take it back: a module, an optimizer, a scheduler, a data position."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Registry:
    """Objects by name, and the states that the worker before this one left of them.

    A state is loaded when its object is registered, and again at the resume point: what the script does in between may change it, as a
    learning-rate scheduler does that is made after its optimizer was registered.
    """

    def __init__(self, states: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._states = dict(states)  # packed: an object may keep and change what it is given
        self._objects: dict[str, Resumable] = {}
        self._ours: dict[str, weakref.ref[Any]] = {}

    @property
    def objects(self) -> Mapping[str, Resumable]:
        """What the script registered, by name."""
        return MappingProxyType(self._objects)

    def register(self, name: str, obj: Resumable) -> None:
        """Add an object of the script's, and load its state where there is one. Raises InvalidRequest."""
        if not isinstance(name, str) or not name or name.startswith(OURS):
            raise InvalidRequest("name", repr(name), f"a text that is not empty and does not begin with {OURS!r}")
        if name in self._objects:
            raise InvalidRequest("name", f"{name!r}, which is taken", "another for each object")
        if isinstance(obj, type) or not isinstance(obj, Resumable):
            raise InvalidRequest(
                f"what is registered as {name!r}", f"a {type(obj).__name__}", "an object with state_dict and load_state_dict"
            )
        self._objects[name] = obj
        self._load(name, obj)

    def register_ours(self, name: str, obj: Resumable) -> None:
        """Add an object of Rowstead's, as long as somebody else has it; one of the same name takes the first one's place."""
        self._ours[OURS + name] = weakref.ref(obj)
        self._load(OURS + name, obj)

    def capture(self) -> dict[str, bytes]:
        """Return each object's state, packed. Raises InvalidRequest that names the object, and the place in it, that is no plain data."""
        return {name: pack(obj.state_dict(), f"what is registered as {name!r}") for name, obj in self._living().items()}

    def gradients(self) -> Gradients:
        """Return which gradients our optimizers have now."""
        return Gradients([each for obj in self._living().values() if isinstance(obj, Trainer) for each in obj.gradients_now()])

    def settle(self) -> None:
        """Load every state again, at the resume point; say which of them nobody has registered."""
        living = self._living()
        for name, obj in living.items():
            self._load(name, obj)
        lacking = sorted(self._states.keys() - living.keys())
        if lacking:
            log.warning("This worker resumes without what was registered as %s: register it before the training loop.", ", ".join(lacking))
        self._states.clear()

    def _load(self, name: str, obj: Resumable) -> None:
        if name in self._states:
            obj.load_state_dict(unpack(self._states[name]))

    def _living(self) -> dict[str, Resumable]:
        ours = {name: obj for name, reference in self._ours.items() if (obj := reference()) is not None}
        return {**ours, **self._objects}

"""The batches of one pass over a loader, and what brings another process to the same place in them (R15).

Which batches come is taken to follow from the random generators at the beginning of the pass, as with a torch DataLoader, shuffled or not,
with workers or without; what a batch has drawn for itself, such as an augmentation, from those just before it is read. So

    a loader with state_dict()       is given what it said before the first batch that is to be read again
    any other                        is read from its beginning as the generators were then; what was used is read and dropped

and then each batch that was read ahead is read with the generators as they were.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

from ps_proto.errors import InvalidRequest
from ps_worker.resume.registry import Resumable
from ps_worker.resume.rngs import rng_states, set_rng_states

B = TypeVar("B")
State = dict[str, Any]


class Source(Generic[B]):
    """Reads a loader. `begun`: the generators at the beginning of the pass, where `begin` was told to keep them."""

    def __init__(self, loader: Iterable[B]) -> None:
        self._loader = loader
        self._generators = _generators(loader)
        self._batches: Iterator[B] = iter(())
        self.begun: State | None = None

    def begin(self, keeps: bool) -> None:
        """Begin the pass."""
        if keeps:
            self.begun = self._around()
        self._batches = iter(self._loader)

    def read(self) -> B:
        """Return the next batch; raises StopIteration, or what the loader raises."""
        return next(self._batches)

    def state(self) -> State:
        """Return what there is to know just before a batch is read."""
        state = self._around()
        if isinstance(self._loader, Resumable):
            state["loader"] = self._loader.state_dict()
        return state

    def _around(self) -> State:
        return {"rngs": rng_states(), "generators": [generator.get_state() for generator in self._generators]}

    def set_around(self, state: State) -> None:
        """Set all generators as they were in `state`."""
        set_rng_states(state["rngs"])
        for generator, its in zip(self._generators, state["generators"], strict=False):
            generator.set_state(its)

    def set_now(self, state: State) -> None:
        """Set the generators and the loader as they were between two passes, or after the last batch of one."""
        self.set_around(state)
        if "loader" in state and isinstance(self._loader, Resumable):
            self._loader.load_state_dict(state["loader"])

    def go_on(self, used: int, following: State) -> None:
        """Begin the pass as it was `begun`, and come to behind the first `used` batches; `following`: the state before the next one.

        Raises InvalidRequest where the data ends before that.
        """
        assert self.begun is not None, "whoever goes on knows how it was begun"
        self.set_around(self.begun)
        if "loader" in following and isinstance(self._loader, Resumable):
            self._loader.load_state_dict(following["loader"])
            self._batches = iter(self._loader)
            return
        self._batches = iter(self._loader)
        for number in range(used):
            if next(self._batches, self) is self:
                raise InvalidRequest("the loader", f"at its end after {number} batches", f"the same as before: {used} of it were used")


def _generators(loader: Any) -> list[torch.Generator]:
    """Return the generators that a DataLoader was given, or its samplers, once each."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    return list(dict.fromkeys([generator for generator in found if isinstance(generator, torch.Generator)]))

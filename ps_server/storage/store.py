"""Where checkpoints lie, as the programs see it: objects by path, each put whole or not at all."""

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | memoryview
Data = Buffer | Sequence[Buffer]  # a list stands for its buffers one after the other, so that nobody has to join them


def buffers_of(data: Data) -> Sequence[Buffer]:
    """Return the data's buffers, in order."""
    return [data] if isinstance(data, bytes | memoryview) else data


class NotThere(LookupError):
    """A path at which nothing lies. A program answers it: it never travels."""

    def __init__(self, path: str) -> None:
        super().__init__(f"There is nothing at {path}.")
        self.path = path


class Store(Protocol):
    """Objects by path. A path is relative, its segments are parted by "/". What fails raises StorageFailed."""

    def put(self, path: str, data: Data) -> None:
        """Write an object, over one that is there: whole or not at all, and durable once this returns."""
        ...

    def get(self, path: str) -> memoryview:
        """Return an object's bytes; NotThere where there is none."""
        ...

    def list(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of each object below the folder `prefix`, "" for all, by path.

        Anything may lie there, also what a put that did not finish left behind: callers take what they know by its name.
        """
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Remove objects, durably once this returns; those that are not there are fine."""
        ...

"""Where the coordinator keeps its state for its next start."""

from collections.abc import Mapping
from typing import Protocol


class StateStore(Protocol):
    """Small values by key. Raises StorageFailed, or CorruptFile for what is not as it was written."""

    def load(self) -> dict[str, bytes]:
        """Return all that is kept."""
        ...

    def commit(self, puts: Mapping[str, bytes], deletes: frozenset[str]) -> None:
        """Keep `puts` and drop `deletes`, both or neither; durable on return. A key that is not there may be dropped."""
        ...

    def close(self) -> None:
        """Let go of it; another process may have it then."""
        ...


class Unkept:
    """Keeps nothing, for a coordinator that has no place for its state: that lasts as long as its process."""

    def load(self) -> dict[str, bytes]:
        """Return nothing."""
        return {}

    def commit(self, puts: Mapping[str, bytes], deletes: frozenset[str]) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Let go of nothing."""

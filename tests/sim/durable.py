"""The coordinator's store in memory: a commit is there whole or not at all, and the process may die before one or after it."""

from collections.abc import Mapping, Set

from sim.disk import Died


class SimStateStore:
    """What is stored, which outlives who stored it. `dies_before`, `dies_after`: the number of a commit, counted from 0."""

    def __init__(self) -> None:
        self.commits_count = 0
        self.dies_before: int | None = None
        self.dies_after: int | None = None
        self._stored: dict[str, bytes] = {}

    def load(self) -> dict[str, bytes]:
        """Return all that is stored."""
        return dict(self._stored)

    def commit(self, puts: Mapping[str, bytes], deletes: Set[str]) -> None:
        """Store and delete, as one."""
        number = self.commits_count
        if self.dies_before == number:
            self.dies_before = None
            raise Died(f"before commit {number}")
        self._stored.update(puts)
        for key in deletes:
            self._stored.pop(key, None)
        self.commits_count += 1
        if self.dies_after == number:
            self.dies_after = None
            raise Died(f"after commit {number}")

    def close(self) -> None:
        """Nothing is left to do."""

"""The hyperparameters that ranks want for a step: the lowest rank's count (R4)."""

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Finished, Hyperparameters
from ps_server.shard.catalog import Catalog


class Wishes:
    """By step and rank, for steps that are not folded."""

    def __init__(self, catalog: Catalog) -> None:
        self._wanted: dict[int, dict[int, tuple[Hyperparameters, ...]]] = {}
        self._catalog = catalog

    def clear(self) -> None:
        """Forget everything: another job begins."""
        self._wanted.clear()

    def check(self, rank: int, finished: Finished, may_differ: bool) -> None:
        """Raise InvalidRequest for what an optimizer cannot use, and, unless ranks may differ, for other numbers than a rank before."""
        wanted = self._wanted.get(finished.clock, {})
        if finished.hyperparameters and not any(finished.hyperparameters == known for known in wanted.values()):
            mine = self._catalog.parameters(finished.hyperparameters)
            for other, theirs in wanted.items() if not may_differ else ():
                _check_agreement(finished.clock, rank, mine, other, theirs)

    def keep(self, rank: int, finished: Finished) -> None:
        """Keep what a rank wants for the step that it finished."""
        self._wanted.setdefault(finished.clock, {})[rank] = finished.hyperparameters

    def of(self, step: int, ranks: list[int]) -> tuple[Hyperparameters, ...]:
        """Return what these ranks, ascending, want for a step: of each table what the lowest that names it wants."""
        wanted = self._wanted.get(step, {})
        by_table: dict[str, Hyperparameters] = {}
        for rank in ranks:
            for item in wanted.get(rank, ()):
                by_table.setdefault(item.table, item)
        return tuple(by_table.values())

    def drop(self, step: int) -> None:
        """Forget a step: it is folded."""
        self._wanted.pop(step, None)

    @property
    def steps(self) -> list[int]:
        """The steps for which anything is wanted."""
        return list(self._wanted)


def _check_agreement(clock: int, rank: int, mine: dict[str, dict[str, float]], other: int, known: tuple[Hyperparameters, ...]) -> None:
    for item in known:
        if item.table in mine and mine[item.table] != item.parameters:
            field = f"hyperparameters of table {item.table!r} for step {clock} from rank {rank}"
            raise InvalidRequest(field, str(mine[item.table]), f"those of rank {other}, {item.parameters}")

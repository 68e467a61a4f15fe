"""Pushes of synchronous steps that wait for their fold: acknowledged, held here, in no row yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ps_proto.requests import Ids, Rows, TableRows
from ps_server.shard.table import Places
from sharding.partition import deduplicate, sum_repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRows(TableRows):
    """Gradients of which a pull has found where their rows lie."""

    places: Places


class Staging:
    """Gradients by step, then by (rank, seq): the order of the fold, whatever the order of arrival."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[tuple[int, int], tuple[TableRows, ...]]] = {}

    def add(self, rank: int, clock: int, seq: int, tables: tuple[TableRows, ...]) -> bool:
        """Hold a push; return False where one of that name is held already."""
        step = self._steps.setdefault(clock, {})
        if (rank, seq) in step:
            return False
        step[rank, seq] = tables
        return True

    def clear(self) -> None:
        """Forget everything: another job begins."""
        self._steps.clear()

    def drop(self, rank: int, beyond: int) -> None:
        """Forget what `rank` staged for steps after `beyond`: its next incarnation redoes them (R7)."""
        for clock, step in self._steps.items():
            if clock > beyond:
                for name in [name for name in step if name[0] == rank]:
                    del step[name]

    def take(self, clock: int, roster: list[int]) -> dict[str, list[TableRows]]:
        """Remove a step; return each table's contributions of the roster in the order of the fold."""
        step = self._steps.pop(clock, {})
        contributions: dict[str, list[TableRows]] = {}
        for name in sorted(step):
            if name[0] in roster:
                for table in step[name]:
                    contributions.setdefault(table.table, []).append(table)
        return contributions

    def count_of_others(self, clock: int, ranks: list[int]) -> int:
        """Return how many pushes of a step are held of other ranks than these."""
        return sum([rank not in ranks for rank, _ in self._steps.get(clock, {})])

    def ids_of(self, table: str) -> list[Ids]:
        """Return the ids of each part held of a table: rows that will be there after the fold."""
        return [part.ids for step in self._steps.values() for tables in step.values() for part in tables if part.table == table]

    @property
    def steps(self) -> list[int]:
        """The steps of which a push is held, ascending."""
        return sorted(clock for clock, step in self._steps.items() if step)

    @property
    def rows_count(self) -> int:
        """Rows held, over all steps."""
        return sum(table.ids.size for step in self._steps.values() for tables in step.values() for table in tables)

    @property
    def nbytes(self) -> int:
        """Bytes of ids, rows and places held; the ids may be a key list's too."""
        return sum(_nbytes(part) for step in self._steps.values() for tables in step.values() for part in tables)


def _nbytes(part: TableRows) -> int:
    return part.ids.nbytes + part.rows.nbytes + (part.places.nbytes if isinstance(part, PlacedRows) else 0)


class Folded(NamedTuple):
    """ids uint64[n], each once; rows float32[n, dim]; `places` of the ids where pulls have found all of them."""

    ids: Ids
    rows: Rows
    places: Places | None


def fold(contributions: list[TableRows], ranks_count: int) -> Folded:
    """Return the mean gradient over a roster.

    A left fold in the order given, from the first contribution of each id on, in float32; then times float32(1 / ranks_count), as
    DDP averages. A rank without a gradient for an id counts as zero. The sums depend on nothing but that order (R5, R16).
    """
    places = _places(contributions)
    if len(contributions) == 1 and ranks_count == 1:
        return Folded(contributions[0].ids, contributions[0].rows, places[0] if places else None)
    ids = np.concatenate([contribution.ids for contribution in contributions])
    rows = np.concatenate([contribution.rows for contribution in contributions])
    unique, inverse = deduplicate(ids)
    sums = sum_repeats(rows, inverse, unique.size)
    means = np.multiply(sums, np.float32(1 / ranks_count), out=sums)
    return Folded(unique, means, Places.joined(places, inverse, unique.size) if places else None)


def _places(contributions: Sequence[TableRows]) -> list[Places] | None:
    """Return where the rows of each contribution lie, if that is known of all; of different standings at most one still holds."""
    places = [part.places for part in contributions if isinstance(part, PlacedRows)]
    is_one = len(places) == len(contributions) and len({id(its.standing) for its in places}) == 1
    return places if is_one else None

"""Synchronous training in one process: ranks one after another, folded in rank order, applied by the slow twins."""

from collections.abc import Iterable, Mapping

import numpy as np

from jobs import TABLES, Ids, Rows, gradients_of, halves, ids_of
from naive.table import NaiveTable
from naive.wire_rows import travelled


def train(world_size: int, steps: int) -> dict[str, tuple[Ids, Rows]]:
    """Return every row of the job of jobs.py after `steps` steps: ids ascending and their rows, by table."""
    return train_by([(dict.fromkeys(range(world_size), step), world_size) for step in range(steps)])


def train_by(steps: Iterable[tuple[Mapping[int, int], int]]) -> dict[str, tuple[Ids, Rows]]:
    """Do the same where each step is folded from some ranks: rank -> which batch of its own it had then, and what the mean is over."""
    tables = {spec.name: NaiveTable(spec) for spec in TABLES}
    for step, (batches, ranks_count) in enumerate(steps):
        contributions: dict[str, list[dict[int, Rows]]] = {name: [] for name in tables}
        for rank, batch in sorted(batches.items()):
            for name, table in tables.items():
                ids = ids_of(rank, batch, name)
                wire = table.spec.wire
                gradients = gradients_of(rank, batch, ids, _stack(table, ids))
                for half in halves(ids.size):
                    contributions[name].append({id: travelled(row, wire) for id, row in merged(ids[half], gradients[half]).items()})
        for name, table in tables.items():
            mean = {id: total * np.float32(1 / ranks_count) for id, total in _fold(contributions[name]).items()}
            table.update(mean, mean.values(), table.spec.optimizer.parameters(), step)
    return {name: _exported(table) for name, table in tables.items()}


def merged(ids: Ids, gradients: Rows) -> dict[int, Rows]:
    """Return each id's gradient, repeats summed in the order given, from the first on."""
    sums: dict[int, Rows] = {}
    for id, gradient in zip(ids.tolist(), gradients, strict=True):
        sums[id] = sums[id] + gradient if id in sums else gradient
    return sums


def _fold(contributions: list[dict[int, Rows]]) -> dict[int, Rows]:
    """Return the left fold of the contributions, in their order."""
    sums: dict[int, Rows] = {}
    for contribution in contributions:
        for id, gradient in contribution.items():
            sums[id] = sums[id] + gradient if id in sums else gradient
    return sums


def _stack(table: NaiveTable, ids: Ids) -> Rows:
    rows = [travelled(row, table.spec.wire) for row in table.pull(ids.tolist())]
    return np.stack(rows) if rows else np.empty((0, table.spec.dim), np.float32)


def _exported(table: NaiveTable) -> tuple[Ids, Rows]:
    ids = sorted(table.held)
    rows = [table.held[id][0] for id in ids]
    return np.array(ids, np.uint64), np.stack(rows) if rows else np.empty((0, table.spec.dim), np.float32)

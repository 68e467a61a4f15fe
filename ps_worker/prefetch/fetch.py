"""One batch's rows on their way: every module's forward planned, one pull for all their tables and the dense blocks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import Signature, signature
from typing import Any

import numpy as np

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids, Rows
from ps_worker.client import Client
from ps_worker.driver import Handle
from ps_worker.nn.reading import Ahead, Plan, RowModule, Versions, versions_of
from ps_worker.optim.dense import DenseBlocks
from ps_worker.profiling.stopwatch import PLAN, span
from sharding.arrays import aligned_rows


@dataclass(frozen=True)
class Planned:
    """A module's forward of a batch. `inputs`: what the module will be called with; `versions`: theirs when this was planned."""

    module: RowModule
    inputs: tuple[Any, ...]
    versions: Versions
    plan: Plan

    @classmethod
    def of(cls, module: RowModule, given: Any, moved: Any) -> "Planned":
        """Plan the forward of `given`, a tensor, a dict or a tuple of arguments; `moved` is the same where the forward will find it."""
        inputs = arguments(module, moved)
        with span(PLAN):
            return cls(module, inputs, versions_of(inputs), module.plan(*arguments(module, given)))


def arguments(module: RowModule, given: Any) -> tuple[Any, ...]:
    """Return the arguments of a forward, those left out with their defaults."""
    bound = _signature(type(module).forward).bind(module, *(given if isinstance(given, tuple) else (given,)))
    bound.apply_defaults()
    return bound.args[1:]


@cache
def _signature(forward: Callable[..., Any]) -> Signature:
    return signature(forward)


def client_of(modules: Sequence[RowModule]) -> Client:
    """Return the client that all the modules read through."""
    clients = {table.client for module in modules for table in module.tables.values()}
    if len(clients) > 1:
        raise InvalidRequest("ids", f"for modules of {len(clients)} clients", "for modules of one: give each its own ps.prefetch")
    return clients.pop()


@dataclass(frozen=True)
class _Ask:
    """A pull for the step of `turn`."""

    wanted: Mapping[str, Ids]
    turn: int
    handle: Handle[dict[str, Rows]]


@dataclass(frozen=True)
class _Share:
    """What one reader gets of the rows asked for: of each table the rows [begin, end)."""

    asks: Sequence[_Ask]
    places: Mapping[str, tuple[int, int]]

    def result(self) -> dict[str, Rows]:
        """Wait for the rows and return them by table."""
        rows: dict[str, Rows] = {}
        for ask in self.asks:
            if ask.wanted.keys() & self.places.keys():
                rows.update(ask.handle.result())
        return {name: _cut(rows[name], begin, end) for name, (begin, end) in self.places.items()}


def _cut(rows: Rows, begin: int, end: int) -> Rows:
    if end - begin == len(rows):
        return rows
    cut = aligned_rows(end - begin, rows.shape[1])  # R16: a view would start anywhere
    cut[:] = rows[begin:end]
    return cut


class Fetch:
    """The rows that a batch needs, asked for when this is made: for the step of `turn`, and again where `aim` finds that it is another.

    `with_dense`: not where a batch before this one, of the same step, brings the dense parameters.
    """

    def __init__(self, planned: Sequence[Planned], client: Client, turn: int, with_dense: bool = True) -> None:
        self.turn = turn
        self._client = client
        self._planned = planned
        self._places: list[dict[str, tuple[int, int]]] = []
        ids: dict[str, list[Ids]] = {}
        counts: dict[str, int] = {}
        for item in planned:
            places = {}
            for table, its_ids in item.plan.wanted().items():
                if its_ids.size:
                    begin = counts.get(table, 0)
                    places[table] = (begin, begin + its_ids.size)
                    counts[table] = begin + its_ids.size
                    ids.setdefault(table, []).append(its_ids)
            self._places.append(places)
        wanted = {table: parts[0] if len(parts) == 1 else np.concatenate(parts) for table, parts in ids.items()}
        known: dict[DenseBlocks, None] = dict.fromkeys([dense for item in planned for dense in item.module.optimizer_dense])
        self._dense = [dense for dense in known if with_dense and dense.turn != turn]
        wanted.update({dense.name: dense.ids for dense in self._dense})
        self._asks = self._ask(wanted, turn)

    def _ask(self, wanted: dict[str, Ids], turn: int) -> list[_Ask]:
        """Ask in one pull, or in two: where some tables may be read ahead and some may not, the former need not wait for the latter."""
        ahead = {table: ids for table, ids in wanted.items() if self._client.can_pull_ahead([table], turn)}
        rest = {table: ids for table, ids in wanted.items() if table not in ahead}
        return [_Ask(part, turn, self._client.pull_async(part, turn=turn)) for part in (ahead, rest) if part]

    def aim(self, turn: int) -> None:
        """Make sure that the rows are for the step of `turn`: ask again where they are for another.

        Rows for a later step that are on their way already may stay: they see all that this step must see, and more.
        """
        self.turn = turn
        there = {dense.name for dense in self._dense if dense.turn == turn}
        asks: list[_Ask] = []
        for ask in self._asks:
            if ask.turn == turn or (ask.turn > turn and self._client.can_pull_ahead([*ask.wanted], ask.turn)):
                asks.append(ask)
            else:
                ask.handle.cancel()
                asks += self._ask({table: ids for table, ids in ask.wanted.items() if table not in there}, turn)
        self._asks = asks

    def expect(self) -> None:
        """Let the modules and the dense parameters use the rows in the step at work."""
        for item, places in zip(self._planned, self._places, strict=True):
            item.module.expect(Ahead(item.inputs, item.plan, _Share(self._asks, places), item.versions))
        asked = {table for ask in self._asks for table in ask.wanted}
        for dense in self._dense:
            if dense.name in asked:
                dense.expect(self._client.turn, _Share(self._asks, {dense.name: (0, dense.ids.size)}))

    def forget(self) -> None:
        """Let go of the rows: what is not used yet will not be."""
        for item in self._planned:
            item.module.forget_ahead()
        for dense in self._dense:
            dense.forget_ahead()
        for ask in self._asks:
            ask.handle.cancel()

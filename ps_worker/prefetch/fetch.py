"""One batch's rows on their way: one pull for all the tables of its forwards and the dense blocks."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids, Rows
from ps_worker.client import Client
from ps_worker.driver import Handle
from ps_worker.nn.reading import Ahead, RowModule
from ps_worker.optim.dense import DenseBlocks
from ps_worker.prefetch.planning import Forward, Needs
from ps_worker.profiling.stopwatch import PLAN, span
from sharding.arrays import aligned_rows


def client_of(modules: Sequence[RowModule]) -> Client:
    """Return the client that all the modules read through."""
    clients = {table.client for module in modules for table in module.tables.values()}
    if len(clients) > 1:
        raise InvalidRequest("ids", f"for modules of {len(clients)} clients", "for modules of one: give each its own ps.prefetch")
    return clients.pop()


@dataclass(frozen=True)
class _Ask:
    """A pull of these tables for the step of `turn`."""

    tables: Sequence[str]
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
            if not self.places.keys().isdisjoint(ask.tables):
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

    `needs`: what its forwards need, perhaps still being planned: their pull begins once they are and the mode lets it.
    `with_dense`: not where a batch before this one, of the same step, brings the dense parameters.
    """

    def __init__(self, forwards: Sequence[Forward], needs: "Future[Needs]", client: Client, turn: int, with_dense: bool = True) -> None:
        self.turn = turn
        self._client = client
        self._forwards = forwards
        self._needs = needs
        known: dict[DenseBlocks, None] = dict.fromkeys([dense for item in forwards for dense in item.module.optimizer_dense])
        self._dense = [dense for dense in known if with_dense and dense.turn != turn]
        tables = dict.fromkeys([table for item in forwards for table in item.module.tables])
        self._asks = self._ask([*tables, *[dense.name for dense in self._dense]], turn)

    def _ask(self, tables: Sequence[str], turn: int) -> list[_Ask]:
        """Ask in one pull, or in two: where some tables may be read ahead and some may not, the former need not wait for the latter."""
        ahead = [table for table in tables if self._client.can_pull_ahead([table], turn)]
        rest = [table for table in tables if table not in ahead]
        return [_Ask(part, turn, self._client.pull_planned(part, self._ids_of(part), turn)) for part in (ahead, rest) if part]

    def _ids_of(self, tables: Sequence[str]) -> Callable[[], dict[str, Ids]]:
        """Return what waits for the plans and tells the ids of those of the tables that have any."""
        dense = {blocks.name: blocks.ids for blocks in self._dense}
        return partial(_wanted, self._needs, dense, tables)

    def aim(self, turn: int) -> None:
        """Make sure that the rows are for the step of `turn`: ask again where they are for another.

        Rows for a later step that are on their way already may stay: they see all that this step must see, and more.
        """
        self.turn = turn
        there = {dense.name for dense in self._dense if dense.turn == turn}
        asks: list[_Ask] = []
        for ask in self._asks:
            if ask.turn == turn or (ask.turn > turn and self._client.can_pull_ahead(ask.tables, ask.turn)):
                asks.append(ask)
            else:
                ask.handle.cancel()
                asks += self._ask([table for table in ask.tables if table not in there], turn)
        self._asks = asks

    def expect(self) -> None:
        """Let the modules and the dense parameters use the rows in the step at work; raises what planning the forwards ended in."""
        with span(PLAN):
            needs = self._needs.result()
        for item, plan, places in zip(self._forwards, needs.plans, needs.places, strict=True):
            item.module.expect(Ahead(item.inputs, plan, _Share(self._asks, places), item.versions))
        asked = {table for ask in self._asks for table in ask.tables}
        for dense in self._dense:
            if dense.name in asked:
                dense.expect(self._client.turn, _Share(self._asks, {dense.name: (0, dense.ids.size)}))

    def forget(self) -> None:
        """Let go of the rows, and of what is yet to be planned: what is not used yet will not be."""
        self._needs.cancel()
        for item in self._forwards:
            item.module.forget_ahead()
        for dense in self._dense:
            dense.forget_ahead()
        for ask in self._asks:
            ask.handle.cancel()


def _wanted(needs: "Future[Needs]", dense: Mapping[str, Ids], tables: Sequence[str]) -> dict[str, Ids]:
    """Wait for the plans; return the ids of those of the tables that have any.

    Of none where planning failed: nobody comes for the rows, and it is `expect` that raises what it ended in.
    """
    wait([needs])
    if needs.cancelled() or needs.exception() is not None:
        return {}
    wanted = {**needs.result().wanted, **dense}
    return {table: wanted[table] for table in tables if table in wanted}

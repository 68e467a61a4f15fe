"""One server's share of every table, as a state machine: `effects = shard.handle(event, now_s)`.

A request is checked whole, then takes effect whole, in one turn; nothing here waits. A pull that may not be answered yet is parked and
looked at again after every turn that changed what a pull may wait for. Time only decides when a parked request is refused, never what
a row is.

Read `handle` first, then reading.py, writing.py and steps.py. The rules named R1 to R19 are docs/protocol.md's.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_proto.errors import InvalidRequest, ParameterServerError
from ps_proto.orders import (
    AdmitRank,
    AskCheckpoint,
    AskRestore,
    BeginCheckpoint,
    CancelCheckpoint,
    FenceRank,
    InstallMap,
    InstallTable,
    ResolveRank,
    RollBack,
    StartJob,
)
from ps_proto.requests import (
    Assign,
    ClearTable,
    CloseExport,
    Finish,
    Finished,
    GetStats,
    OpenExport,
    Pull,
    Push,
    ReadExport,
    Stats,
    StepDecided,
)
from ps_proto.values import TableSpec
from ps_server.events import Answered, Asked, Body, Dropped, Effect, Event, Refuse, Reply, Ticked, Worked
from ps_server.shard.catalog import Catalog
from ps_server.shard.checkpointer import Checkpointer
from ps_server.shard.clocks import Clocks
from ps_server.shard.counters import Counters
from ps_server.shard.exports import Exports
from ps_server.shard.finishing import Finisher
from ps_server.shard.key_lists import KeyLists
from ps_server.shard.membership import Membership
from ps_server.shard.orders import ORDERS, Orders
from ps_server.shard.parking import Parking
from ps_server.shard.reading import Reader
from ps_server.shard.restorer import Restorer
from ps_server.shard.staging import Staging
from ps_server.shard.steps import Steps
from ps_server.shard.table import Table, TablePart
from ps_server.shard.telling import Teller
from ps_server.shard.window import Names, Window
from ps_server.shard.writing import Writer
from ps_server.tasks import LoadFacts, LoadNames, LoadRows, OpenPart, ReadPiece, ReadStall, Registered, Stall

REQUEST_BYTES_MAX = 8 << 30


@dataclass(slots=True)
class BucketState:
    """All that belongs to some buckets, on its way to another server."""

    tables: list[tuple[TableSpec, TablePart]]
    names: dict[int, Names]


class Shard:
    """The core of one server: the rooms that take the turns, and who wakes when."""

    def __init__(
        self, server: str, rows_max: int | None = None, bytes_max: int = REQUEST_BYTES_MAX, awaits_registration: bool = False
    ) -> None:
        """Start empty. `rows_max`: of each table; `bytes_max`: of the rows that one request reads.

        `awaits_registration`: it may have been started again, and follows no map until it hears Registered (R12).
        """
        self.server = server
        self.counters = Counters()
        self.membership = Membership(server, awaits_registration)
        self.catalog = Catalog(server, self.counters, rows_max)
        self.steps = Steps(self.membership, self.catalog, self.counters)
        self._exports = Exports(server)
        self._parking = Parking(server, self.counters, self.membership.check)
        self.key_lists = KeyLists(server, self.counters)
        self.reader = Reader(
            self.membership, self.catalog, self.steps, self._parking, self._exports, self.key_lists, self.counters, bytes_max
        )
        self.writer = Writer(self.membership, self.catalog, self.steps, self.key_lists, self.counters)
        self._teller = Teller(self.membership)
        numbers = itertools.count(1)
        window = self.writer.window
        self.checkpointer = Checkpointer(self.membership, self.catalog, self.steps, window, self.counters, numbers)
        self.restorer = Restorer(self.membership, self.catalog, self.steps, window, self.checkpointer, self._forget, numbers)
        self.steps.on_fold = self.checkpointer.look
        self._orders_taken = 0
        self._woken_at = self._progress()
        finisher = Finisher(self.membership, self.catalog, self.steps, self.key_lists, self._parking)
        orders = Orders(self.membership, self.catalog, self.steps, self.key_lists, self.writer, self._parking)
        self._turns: dict[type[Any], Callable[[int, Any, float], Body | None]] = {
            OpenExport: self.reader.open_export,
            ReadExport: self.reader.read_export,
            CloseExport: self.reader.close_export,
            Assign: self.writer.assign,
            ClearTable: self.writer.clear,
            Finish: finisher.finish,
            GetStats: self._get_stats,
            Registered: orders.register,
            InstallMap: orders.install_map,
            InstallTable: orders.install_table,
            StartJob: orders.start_job,
            FenceRank: orders.fence_rank,
            ResolveRank: orders.resolve_rank,
            AdmitRank: orders.admit_rank,
            StepDecided: orders.take_decision,
            BeginCheckpoint: self.checkpointer.begin,
            AskCheckpoint: self.checkpointer.ask,
            CancelCheckpoint: self.checkpointer.cancel,
            OpenPart: self.checkpointer.open_part,
            ReadPiece: self.checkpointer.read_piece,
            RollBack: self.restorer.roll_back,
            AskRestore: self.restorer.ask,
            LoadRows: self.restorer.load_rows,
            LoadNames: self.restorer.load_names,
            LoadFacts: self.restorer.load_facts,
            ReadStall: lambda request, asked, now_s: Stall(),
        }

    # --- turns -------------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one turn; return what to send. A request that is refused has changed nothing, unless it is with OptimizerFailed."""
        effects: list[Effect] = []
        match event:
            case Asked(request, body):
                self._orders_taken += isinstance(body, ORDERS)
                try:
                    reply = self._answer(event, now_s)
                except ParameterServerError as error:
                    self.counters.refused += 1
                    effects.append(Refuse(request, error))
                else:
                    if reply is not None:
                        effects.append(Reply(request, reply))
            case Dropped(request):
                self._parking.drop(request)
            case Ticked():
                self._exports.drop_idle(now_s)
            case Answered(order, outcome):
                self._teller.on_answer(order, outcome, now_s)
            case Worked(number, outcome):
                if not self.checkpointer.on_worked(number, outcome):
                    self.restorer.on_worked(number, outcome)
        self._teller.tell(self.steps.job, self.steps.decider.take_news(), now_s)
        effects += self._teller.due(now_s)
        self.checkpointer.look()
        effects += self.checkpointer.take_work() + self.restorer.take_work()
        progress = self._progress()
        if progress != self._woken_at:
            effects += self._parking.wake(now_s)
            self._woken_at = progress
        effects += self._parking.expire(now_s)
        return effects

    def _forget(self) -> None:
        """Drop what goes with no checkpoint; requests that wait are refused when they are looked at."""
        self._exports.clear()
        self.key_lists.clear()
        self._teller.clear()

    def _answer(self, asked: Asked, now_s: float) -> Body | None:
        match asked.body:
            case Pull() as pull:
                return self.reader.pull(asked.request, pull, now_s, asked.make_rows, asked.is_borrowed)
            case Push() as push:
                return self.writer.push(asked.request, push, now_s, asked.is_borrowed)
            case body if (turn := self._turns.get(type(body))) is not None:
                return turn(asked.request, body, now_s)
            case body:
                raise InvalidRequest("the request", f"{type(body).__name__}, which {self.server} does not serve", "one that it serves")

    def _progress(self) -> tuple[int, ...]:
        """Return numbers of which one differs whenever a parked request may go on, or must be refused before its time.

        A push that is applied changes none of them, so those who wait are not visited by everybody else's requests.
        """
        clocks = self.steps.clocks
        failures = len(self.catalog.failures)
        return self.steps.step, clocks.least, len(clocks.present), self._orders_taken, self.writer.values_set, failures

    def deadline_s(self) -> float | None:
        """Return when a Ticked is due at the latest: the next request to give up, export to fall idle, or server to be told again."""
        due = (self._parking.deadline_s(), self._exports.deadline_s(), self._teller.deadline_s())
        return min([due_s for due_s in due if due_s is not None], default=None)

    def _get_stats(self, request: int, stats: GetStats, now_s: float) -> Stats:
        self.membership.check_ready()  # whoever asks how it does must not take it for one that serves
        server = self.counters.values() | {
            "step": float(self.step),
            "min_clock": float(self.clocks.min_clock),
            "parked": float(len(self._parking)),
            "staged_rows": float(self.staging.rows_count),
            "staged_bytes": float(self.staging.nbytes),
            "key_lists": float(len(self.key_lists)),
            "key_lists_bytes": float(self.key_lists.nbytes),
            "exports_open": float(len(self._exports)),
        }
        tables = {
            name: self.counters.table(name).values() | {"rows": float(len(table)), "bytes": float(table.nbytes)}
            for name, table in self.tables.items()
        }
        return Stats(server, tables)

    # --- what it holds -------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by name."""
        return self.catalog.tables

    @property
    def step(self) -> int:
        """The synchronous step whose rows the tables hold."""
        return self.steps.step

    @property
    def job(self) -> int:
        """The number of the running job; 0 before the first."""
        return self.steps.job

    @property
    def clocks(self) -> Clocks:
        """Who has finished which step."""
        return self.steps.clocks

    @property
    def facts(self) -> dict[int, Finished]:
        """What each rank finished last in this job."""
        return self.steps.facts.newest

    @property
    def staging(self) -> Staging:
        """The pushes that wait for their fold."""
        return self.steps.staging

    @property
    def window(self) -> Window:
        """The names applied last."""
        return self.writer.window

    # --- buckets that move ---------------------------------------------------------------------------------------------------

    def release(self, leaving: NDArray[np.bool_]) -> BucketState:
        """Give up the buckets marked in bool[16384]: their rows, state columns and names. The caller installs the map that says so."""
        assert self.staging.rows_count == 0, "buckets move at a step boundary, when nothing is staged (R8)"
        return BucketState([(table.spec, table.extract(leaving)) for table in self.tables.values()], self.window.extract(leaving))

    def adopt(self, state: BucketState) -> None:
        """Take over what another server released."""
        for spec, part in state.tables:
            self.catalog.open(spec).adopt(part)
        self.window.adopt(state.names)

    def check_invariants(self) -> None:
        """Raise AssertionError where the state contradicts itself; the simulator asks after every run."""
        self.steps.check_invariants()
        for name, table in self.tables.items():
            ids, _ = table.snapshot().read(0, len(table))
            assert self.membership.owns(name, ids), f"rows of others in {name!r}"

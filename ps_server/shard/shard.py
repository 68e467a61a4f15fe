"""One server's share of every table, as a state machine: `effects = shard.handle(event, now_s)`.

A request is checked whole, then takes effect whole, in one turn; nothing here waits. A pull that may not be answered yet is parked and
looked at again after every turn that changed what a pull may wait for. Time only decides when a parked request is refused, never what
a row is.

Read `handle` first, then `_pull`, `_push` and `_fold`. The rules named R1 to R19 are docs/protocol.md's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_proto.errors import (
    InvalidRequest,
    ParameterServerError,
    Recovering,
    RequestTooLarge,
    RowsUnset,
    StalenessTimeout,
    StepPassed,
    UnknownTable,
)
from ps_proto.requests import (
    OBSERVER,
    Assign,
    ClearTable,
    CloseExport,
    ColumnLayout,
    Done,
    ExportOpened,
    ExportPart,
    Fence,
    FenceRank,
    Finish,
    Finished,
    GetStats,
    Hyperparameters,
    Ids,
    InstallMap,
    InstallTable,
    OpenExport,
    Pull,
    Pulled,
    Push,
    RankFenced,
    ReadExport,
    ResolveRank,
    StartJob,
    Stats,
    TableRows,
    push_name,
)
from ps_proto.values import Assigned, Async, BoundedStaleness, Mode, Sync, TableSpec
from ps_server.events import Answered, Asked, Body, Dropped, Effect, Event, Refuse, Reply, Ticked
from ps_server.shard.clocks import Clocks
from ps_server.shard.counters import Counters
from ps_server.shard.exports import Exports
from ps_server.shard.membership import CLOCK_MAX, Membership
from ps_server.shard.parking import Parking, Wait
from ps_server.shard.staging import Staging, fold
from ps_server.shard.table import Table, TablePart
from ps_server.shard.window import Names, Window
from sharding.finite import all_finite
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt

RESUME_BYTES_MAX = 64 * 1024
REQUEST_BYTES_MAX = 8 << 30
ORDERS = (InstallMap, InstallTable, StartJob, FenceRank, ResolveRank)


@dataclass(slots=True)
class BucketState:
    """All that belongs to some buckets, on its way to another server."""

    tables: list[tuple[TableSpec, TablePart]]
    names: dict[int, Names]


class Shard:
    """The core of one server.

    `step` is the synchronous step whose rows the tables hold: every roster member has finished all steps before it, and
    those are folded. In a job without synchronous tables it is the least clock.
    """

    def __init__(self, server: str, rows_max: int | None = None, bytes_max: int = REQUEST_BYTES_MAX) -> None:
        """Start empty. `rows_max`: of each table; `bytes_max`: of the rows that one request reads."""
        self.server = server
        self._bytes_max = bytes_max
        self.membership = Membership(server)
        self.tables: dict[str, Table] = {}
        self.counters = Counters()
        self.clocks = Clocks()
        self.staging = Staging()
        self.window = Window()
        self.step = 0
        self.job = 0
        self.job_mode: Mode = Async()
        self.facts: dict[int, Finished] = {}  # rank -> what it finished last in this job
        self._rows_max = rows_max
        self._hyperparameters: dict[int, dict[int, tuple[Hyperparameters, ...]]] = {}  # step -> rank -> what it asks for
        self._exports = Exports(server)
        self._parking = Parking(server, self.counters, self.membership.check)
        self._orders_taken = 0
        self._values_set = 0  # how often rows that a pull may wait for were assigned
        self._woken_at = self._progress()
        self._turns: dict[type[Any], Callable[[int, Any, float], Body | None]] = {
            Pull: self._pull,
            Push: self._push,
            Assign: self._assign,
            ClearTable: self._clear,
            Finish: self._finish,
            OpenExport: self._open_export,
            ReadExport: self._read_export,
            CloseExport: self._close_export,
            GetStats: self._get_stats,
            InstallMap: self._install_map,
            InstallTable: self._install_table,
            StartJob: self._start_job,
            FenceRank: self._fence_rank,
            ResolveRank: self._resolve_rank,
        }

    # --- turns -------------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one turn; return what to send. A request that is refused has changed nothing."""
        effects: list[Effect] = []
        match event:
            case Asked(request, body):
                self._orders_taken += isinstance(body, ORDERS)
                try:
                    reply = self._turns[type(body)](request, body, now_s)
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
            case Answered():
                raise AssertionError("a shard gives no orders, so nothing answers one")
        progress = self._progress()
        if progress != self._woken_at:
            effects += self._parking.wake(now_s)
            self._woken_at = progress
        effects += self._parking.expire(now_s)
        return effects

    def _progress(self) -> tuple[int, ...]:
        """Return numbers of which one differs whenever a parked request may go on, or must be refused before its time.

        A push changes none of them, so those who wait are not visited by everybody else's requests.
        """
        return self.step, self.clocks.least, len(self.clocks.present), self._orders_taken, self._values_set

    def deadline_s(self) -> float | None:
        """Return when a Ticked is due at the latest: the next parked request to give up, or the next export to fall idle."""
        due = (self._parking.deadline_s(), self._exports.deadline_s())
        return min([due_s for due_s in due if due_s is not None], default=None)

    # --- checks ------------------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise UnknownTable(name)
        return self.tables[name]

    def _mode(self, table: Table) -> Mode:
        return table.spec.mode or self.job_mode

    def _check_rows(self, request: Push | Assign) -> None:
        """Check all of a push before any of it takes effect."""
        self._check_writer(request)
        if len({part.table for part in request.tables}) < len(request.tables):
            raise InvalidRequest("tables", str([part.table for part in request.tables]), "each table once, with all of its rows")
        for part in request.tables:
            table = self._table(part.table)
            width = table.spec.dim + self._state_words(request, table)
            if part.rows.shape != (part.ids.size, width):
                want = f"float32[{part.ids.size}, {width}]"
                raise InvalidRequest(f"rows of table {part.table!r}", f"float32{list(part.rows.shape)}", want)
            if not all_finite(np.ascontiguousarray(part.rows[:, : table.spec.dim])):  # state may count, and be any bits
                raise InvalidRequest(f"rows of table {part.table!r}", "not finite (inf or nan)", "finite everywhere")
            self.membership.check_owned(part.table, part.ids)
        for part in request.tables:
            self._check_room(part)

    def _check_writer(self, request: Push | Assign | ClearTable) -> None:
        if request.fence.rank == OBSERVER:
            raise InvalidRequest("rank", "none", "a rank: an observer writes nothing")
        if not 1 <= request.seq <= CLOCK_MAX:
            raise InvalidRequest("seq", str(request.seq), f"from 1 to {CLOCK_MAX}")
        self._check_step("clock", request.fence.rank, request.fence.clock)

    @staticmethod
    def _state_words(request: Push | Assign, table: Table) -> int:
        """Return how many words of state the request brings behind each row; they must lie as this table's do."""
        columns = request.columns if isinstance(request, Assign) else ()
        if columns and columns != table.columns:
            raise InvalidRequest(f"state columns of table {table.spec.name!r}", _layout(columns), _layout(table.columns))
        return sum([column.words for column in columns])

    def _check_setter(self, fence: Fence, table: Table) -> None:
        if isinstance(table.spec.initializer, Assigned) and fence.rank != 0:
            raise InvalidRequest("rank", str(fence.rank), f"0: table {table.spec.name!r} takes its start values from rank 0 alone")

    def _check_step(self, field: str, rank: int, step: int) -> None:
        """Raise unless `rank` may write to `step` or finish it: in its roster, and no further than one beyond what it finished.

        Every server hears each `finished` before the rank's next push (R4), so a gap is an error, and no clock makes a server
        fold a million empty steps.
        """
        last = self.clocks.finished[rank]
        if step > last + 1:
            raise InvalidRequest(field, str(step), f"at most {last + 1}: the last step that rank {rank} finished here is {last}")
        if not self.clocks.takes_part(rank, step):
            raise InvalidRequest(field, str(step), f"at most {self.clocks.left_after[rank]}, after which rank {rank} left the job")

    def _check_room(self, part: TableRows) -> None:
        """Raise TableFull where the rows would not fit beside those that staged pushes will make: a fold must not fail."""
        table, staged = self.tables[part.table], self.staging.ids_of(part.table)
        if len(table) + part.ids.size + sum([ids.size for ids in staged]) > table.rows_max:
            table.make_room(np.concatenate([part.ids, *staged]))

    def _check_size(self, nbytes: int) -> None:
        """Raise RequestTooLarge for an answer of more rows than one may have."""
        if nbytes > self._bytes_max:
            raise RequestTooLarge(self.server, nbytes, self._bytes_max)

    def _parameters(self, hyperparameters: tuple[Hyperparameters, ...]) -> dict[str, dict[str, float]]:
        """Return the checked numbers by table, of each all that its optimizer reads."""
        for item in hyperparameters:
            optimizer = self._table(item.table).spec.optimizer
            wanted = type(optimizer).from_parameters(item.parameters).parameters().keys()
            if item.parameters.keys() != wanted:
                field = f"parameters of {optimizer.kind} for table {item.table!r}"
                raise InvalidRequest(field, str(sorted(item.parameters)), str(sorted(wanted)))
        return {item.table: item.parameters for item in hyperparameters}

    # --- pulls -------------------------------------------------------------------------------------------------------------

    def _pull(self, request: int, pull: Pull, now_s: float) -> Body | None:
        self.membership.check(pull.fence)
        self._check_size(sum([4 * part.ids.size * self._table(part.table).spec.dim for part in pull.tables]))
        for part in pull.tables:
            self.membership.check_owned(part.table, part.ids)
        if pull.finished is not None:
            self._learn(pull.fence.rank, pull.finished)
        wait = Wait(pull.fence, pull.wait_s, lambda: self._try_pull(pull), lambda after_s: self._pull_timeout(pull, after_s))
        return self._parking.answer_or_park(request, wait, now_s)

    def _try_pull(self, pull: Pull) -> Pulled | None:
        tables = [self.tables[part.table] for part in pull.tables]
        if not all([self._may_read(self._mode(table), pull.fence, pull.at_step) for table in tables]) or self._unset(pull):
            return None
        rows = tuple([table.pull(part.ids) for table, part in zip(tables, pull.tables, strict=True)])
        self.counters.pulls += 1
        if pull.fence.rank != OBSERVER and tables:
            self.counters.saw_staleness(pull.fence.clock - self.clocks.min_clock)
        for part, read in zip(pull.tables, rows, strict=True):
            counters = self.counters.table(part.table)
            counters.rows_pulled += part.ids.size
            counters.bytes_in += part.ids.nbytes
            counters.bytes_out += read.nbytes
        return Pulled(rows, self.step)

    def _may_read(self, mode: Mode, fence: Fence, at_step: int) -> bool:
        """Return whether a table of this mode can be read now; a synchronous step that is over raises StepPassed."""
        if isinstance(mode, Sync):
            want = fence.clock if fence.rank != OBSERVER else at_step
            if want == -1:
                return True
            if want < self.step:
                raise StepPassed(self.server, want, self.step)
            if want > self.step and self.job == 0:
                raise InvalidRequest("at_step", str(want), f"at most {self.step}: no job has begun, so nobody finishes a step")
            return want == self.step
        if fence.rank != OBSERVER and isinstance(mode, BoundedStaleness):
            return self.clocks.within_bound(fence.clock, mode.bound)
        return True

    def _unset(self, pull: Pull) -> tuple[str, int] | None:
        """Return the first table, and how many of the rows asked for, that rank 0 has yet to assign (R18)."""
        for part in pull.tables:
            table = self.tables[part.table]
            if isinstance(table.spec.initializer, Assigned):
                absent = table.count_absent(part.ids)
                if absent:
                    return part.table, absent
        return None

    def _pull_timeout(self, pull: Pull, after_s: float) -> ParameterServerError:
        for part in pull.tables:
            mode = self._mode(self.tables[part.table])
            if not self._may_read(mode, pull.fence, pull.at_step):
                clock = pull.fence.clock if pull.fence.rank != OBSERVER else pull.at_step
                return self._staleness_timeout(clock, mode.bound if isinstance(mode, BoundedStaleness) else 0, after_s)
        unset = self._unset(pull)
        assert unset is not None
        return RowsUnset(unset[0], unset[1], after_s)

    def _staleness_timeout(self, clock: int, bound: int, after_s: float) -> StalenessTimeout:
        return StalenessTimeout(clock, self.clocks.min_clock, bound, self.clocks.slowest(), after_s)

    # --- pushes ------------------------------------------------------------------------------------------------------------

    def _push(self, request: int, push: Push, now_s: float) -> Body:
        """Stage what is synchronous and apply the rest; a name that is known changes nothing (R2, R3)."""
        self.membership.check(push.fence)
        self._check_rows(push)
        parameters = self._parameters(push.hyperparameters)
        for part in push.tables:
            table = self.tables[part.table]
            if isinstance(table.spec.initializer, Assigned) and table.count_absent(part.ids):
                raise InvalidRequest(f"ids of table {part.table!r}", "without a value", "assigned by rank 0 before they are pushed to")
        staged: list[TableRows] = []
        arriving: list[TableRows] = []
        for part in push.tables:
            (staged if isinstance(self._mode(self.tables[part.table]), Sync) else arriving).append(part)
        if staged and push.fence.clock < self.step:
            raise StepPassed(self.server, push.fence.clock, self.step)
        self.counters.pushes += 1
        if staged and not self.staging.add(push.fence.rank, push.fence.clock, push.seq, tuple(staged)):
            self.counters.pushes_repeated += 1
        for part, ids, rows in self._fresh(push, arriving):
            self._update(part.table, ids, rows, parameters.get(part.table))
        for part in push.tables:
            counters = self.counters.table(part.table)
            counters.rows_pushed += part.ids.size
            counters.bytes_in += part.ids.nbytes + part.rows.nbytes
        return Done(self.step)

    def _fresh(self, request: Push | Assign, parts: Sequence[TableRows]) -> list[tuple[TableRows, Ids, NDArray[np.float32]]]:
        """Return what of the parts has not been applied yet, and record it as applied; the caller applies it in this turn."""
        rank, name = request.fence.rank, push_name(request.fence.clock, request.seq)
        found, touched = [], []
        for part in parts:
            buckets = buckets_of(table_salt(part.table), part.ids)
            fresh = self.window.fresh(rank, buckets, name)
            if fresh is None:
                found.append((part, part.ids, part.rows))
            else:
                found.append((part, part.ids[fresh], part.rows[fresh]))
                self.counters.table(part.table).rows_repeated += int(part.ids.size - fresh.sum())
            touched.append(buckets if fresh is None else buckets[fresh])
        for buckets in touched:
            self.window.record(rank, buckets, name)
        return found

    def _update(self, table: str, ids: Ids, gradients: NDArray[np.float32], parameters: dict[str, float] | None) -> None:
        target = self.tables[table]
        target.update(ids, gradients, parameters or target.spec.optimizer.parameters())
        self.counters.table(table).rows_updated += ids.size

    def _assign(self, request: int, assign: Assign, now_s: float) -> Body:
        self.membership.check(assign.fence)
        self._check_rows(assign)
        for part in assign.tables:
            self._check_setter(assign.fence, self.tables[part.table])
        for part, ids, rows in self._fresh(assign, assign.tables):
            table = self.tables[part.table]
            self._values_set += isinstance(table.spec.initializer, Assigned)
            (table.restore if assign.columns else table.assign)(ids, rows, assign.only_absent)
        return Done(self.step)

    def _clear(self, request: int, clear: ClearTable, now_s: float) -> Body:
        self.membership.check(clear.fence)
        self._check_writer(clear)
        table = self._table(clear.table)
        self._check_setter(clear.fence, table)
        rank, name = clear.fence.rank, push_name(clear.fence.clock, clear.seq)
        owned = self.membership.owned_buckets()
        fresh = self.window.fresh(rank, owned, name)
        buckets = owned if fresh is None else owned[fresh]
        is_cleared = np.zeros(NUM_BUCKETS, np.bool_)
        is_cleared[buckets] = True
        table.clear(is_cleared)
        self.window.record(rank, buckets, name)
        return Done(self.step)

    # --- finished steps and folds --------------------------------------------------------------------------------------------

    def _finish(self, request: int, finish: Finish, now_s: float) -> Body | None:
        self.membership.check(finish.fence)
        if finish.fence.rank == OBSERVER:
            raise InvalidRequest("rank", "none", "a rank: an observer finishes nothing")
        if finish.finished is not None:
            self._learn(finish.fence.rank, finish.finished)
        if finish.leave:
            self.clocks.leave(finish.fence.rank)
            self._fold_what_is_ready()
        if finish.wait_s <= 0:
            return Done(self.step)
        last = self.clocks.finished[finish.fence.rank]

        def attempt() -> Done | None:
            return Done(self.step) if self.step > last or not self._has_synchronous_tables() else None

        wait = Wait(finish.fence, finish.wait_s, attempt, lambda after_s: self._staleness_timeout(last + 1, 0, after_s))
        return self._parking.answer_or_park(request, wait, now_s)

    def _has_synchronous_tables(self) -> bool:
        return any([isinstance(self._mode(table), Sync) for table in self.tables.values()])

    def _learn(self, rank: int, finished: Finished) -> None:
        """Merge a fact (R4). One that asks for other hyperparameters than a rank before it is refused."""
        if rank == OBSERVER:
            raise InvalidRequest("rank", "none", "a rank: an observer finishes nothing")
        if not 0 <= finished.clock <= CLOCK_MAX:
            raise InvalidRequest("finished clock", str(finished.clock), f"from 0 to {CLOCK_MAX}")
        if len(finished.resume) > RESUME_BYTES_MAX:
            raise InvalidRequest("resume state", f"{len(finished.resume)} bytes", f"at most {RESUME_BYTES_MAX} bytes")
        if finished.clock <= self.clocks.finished[rank]:
            known = self.facts.get(rank)
            if finished.resume and known is not None and known.clock == finished.clock:
                self.facts[rank] = replace(known, resume=finished.resume)  # it may follow the bare fact, on the next pull (R4)
            return
        self._check_step("finished clock", rank, finished.clock)
        wanted = self._hyperparameters.get(finished.clock, {})
        if finished.hyperparameters and not any(finished.hyperparameters == known for known in wanted.values()):
            mine = self._parameters(finished.hyperparameters)
            for other, theirs in wanted.items():
                self._check_agreement(finished.clock, rank, mine, other, theirs)
        self._take(rank, finished)
        self._fold_what_is_ready()

    def _take(self, rank: int, fact: Finished) -> None:
        """Keep what a rank finished; it is news."""
        if fact.clock >= self.step:
            self._hyperparameters.setdefault(fact.clock, {})[rank] = fact.hyperparameters
        self.facts[rank] = fact
        self.clocks.finish(rank, fact.clock)

    @staticmethod
    def _check_agreement(clock: int, rank: int, mine: dict[str, dict[str, float]], other: int, known: tuple[Hyperparameters, ...]) -> None:
        for item in known:
            if item.table in mine and mine[item.table] != item.parameters:
                field = f"hyperparameters of table {item.table!r} for step {clock} from rank {rank}"
                raise InvalidRequest(field, str(mine[item.table]), f"those of rank {other}, {item.parameters}")

    def _fold_what_is_ready(self) -> None:
        while self.clocks.can_fold(self.step):
            self._fold()

    def _fold(self) -> None:
        """Apply the step that the whole roster has finished: each table's staged gradients, once, in rank order (R5)."""
        roster = self.clocks.roster(self.step)
        wanted = self._hyperparameters.pop(self.step, {})
        parameters: dict[str, dict[str, float]] = {}
        for rank in sorted(wanted, reverse=True):  # the lowest rank's count
            parameters.update({item.table: item.parameters for item in wanted[rank]})
        for table, contributions in self.staging.take(self.step, roster).items():
            ids, gradients = fold(contributions, len(roster))
            self._update(table, ids, gradients, parameters.get(table))
        self.step += 1
        self.counters.folds += 1

    # --- exports and numbers ---------------------------------------------------------------------------------------------------

    def _open_export(self, request: int, export: OpenExport, now_s: float) -> Body | None:
        self.membership.check(export.fence)
        table = self._table(export.table)
        mode = self._mode(table)
        columns = table.columns if export.with_state else ()

        def attempt() -> ExportOpened | None:
            if not self._may_read(mode, export.fence, export.at_step):
                return None
            return ExportOpened(*self._exports.open(table, now_s, export.with_state), self.step, columns)

        clock = export.fence.clock if export.fence.rank != OBSERVER else export.at_step
        bound = mode.bound if isinstance(mode, BoundedStaleness) else 0
        wait = Wait(export.fence, export.wait_s, attempt, lambda after_s: self._staleness_timeout(clock, bound, after_s))
        return self._parking.answer_or_park(request, wait, now_s)

    def _read_export(self, request: int, read: ReadExport, now_s: float) -> ExportPart:
        self.membership.check(read.fence)
        return self._exports.read(read.export, read.rows_begin, read.rows_max, now_s)

    def _close_export(self, request: int, close: CloseExport, now_s: float) -> Done:
        self._exports.close(close.export)
        return Done(self.step)

    def _get_stats(self, request: int, stats: GetStats, now_s: float) -> Stats:
        if self.membership.shard_map is None:
            raise Recovering(self.server, "it has no shard map yet")  # whoever asks how it does must not take it for one that serves
        server = self.counters.values() | {
            "step": float(self.step),
            "min_clock": float(self.clocks.min_clock),
            "parked": float(len(self._parking)),
            "staged_rows": float(self.staging.rows_count),
            "staged_bytes": float(self.staging.nbytes),
            "exports_open": float(len(self._exports)),
        }
        tables = {
            name: self.counters.table(name).values() | {"rows": float(len(table)), "bytes": float(table.nbytes)}
            for name, table in self.tables.items()
        }
        return Stats(server, tables)

    # --- orders ----------------------------------------------------------------------------------------------------------------

    def _install_map(self, request: int, order: InstallMap, now_s: float) -> Done:
        self.membership.take_map(order.shard_map)
        return Done(self.step)

    def _install_table(self, request: int, order: InstallTable, now_s: float) -> Done:
        self.membership.check_term(order.term)
        self._open(order.spec)
        return Done(self.step)

    def _open(self, spec: TableSpec) -> Table:
        """Return the table, opened where it is not yet."""
        if spec.name not in self.tables:
            self.tables[spec.name] = Table(spec, self._rows_max)
        return self.tables[spec.name]

    def _start_job(self, request: int, order: StartJob, now_s: float) -> Done:
        self.membership.check_term(order.term)
        if order.world_size < 1:
            raise InvalidRequest("world_size", str(order.world_size), "at least 1")
        if order.job > self.job:
            self.membership.retire()
            self.job, self.job_mode = order.job, order.mode
            self.membership.world_size = order.world_size
            self.clocks = Clocks(order.world_size, order.first_clock)
            self.staging, self._hyperparameters, self.facts = Staging(), {}, {}
            self.step = order.first_clock
        return Done(self.step)

    def _fence_rank(self, request: int, order: FenceRank, now_s: float) -> RankFenced:
        self.membership.check_term(order.term)
        self.membership.fence_rank(order.rank, order.incarnation)
        applied = self.window.last_clock(order.rank)
        highest = max([self.clocks.clock_max, *(self.window.last_clock(rank) for rank in self.window.ranks)])
        return RankFenced(self.facts.get(order.rank), applied, highest, order.rank in self.clocks.left_after)

    def _resolve_rank(self, request: int, order: ResolveRank, now_s: float) -> Done:
        self.membership.check_term(order.term)
        if order.rank not in self.clocks.finished:
            raise InvalidRequest("rank", str(order.rank), f"from 0 to {self.clocks.world_size - 1}, as the job's world_size says")
        if self.membership.settle(order.rank, order.incarnation):  # said again, late: what was staged since must stay
            self.staging.drop(order.rank, self.clocks.first_clock - 1 if order.fact is None else order.fact.clock)
            if order.fact is not None and order.fact.clock > self.clocks.finished[order.rank]:
                self._take(order.rank, order.fact)
            if order.has_left:
                self.clocks.leave(order.rank)
            else:
                self.clocks.finish(order.rank, order.start - 1)
            self._fold_what_is_ready()
        return Done(self.step)

    # --- buckets that move -------------------------------------------------------------------------------------------------------

    def release(self, leaving: NDArray[np.bool_]) -> BucketState:
        """Give up the buckets marked in bool[16384]: their rows, state columns and names. The caller installs the map that says so."""
        assert self.staging.rows_count == 0, "buckets move at a step boundary, when nothing is staged (R8)"
        return BucketState([(table.spec, table.extract(leaving)) for table in self.tables.values()], self.window.extract(leaving))

    def adopt(self, state: BucketState) -> None:
        """Take over what another server released."""
        for spec, part in state.tables:
            self._open(spec).adopt(part)
        self.window.adopt(state.names)

    def check_invariants(self) -> None:
        """Raise AssertionError where the state contradicts itself; the simulator asks after every run."""
        assert self.clocks == Clocks(self.clocks.world_size, self.clocks.first_clock, self.clocks.finished, self.clocks.left_after), (
            "what the clocks keep is what a look at every rank gives"
        )
        assert not self.clocks.can_fold(self.step), "a step that can be folded is folded in the same turn"
        assert all(step >= self.step for step in self._hyperparameters), "hyperparameters of a folded step are dropped"
        assert all(step >= self.step for step in self.staging.steps), "a step that is over holds no pushes"
        for name, table in self.tables.items():
            ids, _ = table.snapshot().read(0, len(table))
            assert self.membership.owns(name, ids), f"rows of others in {name!r}"


def _layout(columns: tuple[ColumnLayout, ...]) -> str:
    return ", ".join([f"{column.name} {column.dtype}[{column.words}]" for column in columns]) or "none"

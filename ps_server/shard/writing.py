"""What writes rows: pushes, assignments and clearings, each under its name (R2, R3).

A request is checked whole, then takes effect whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ps_proto.errors import InvalidRequest, OptimizerFailed, StepPassed
from ps_proto.requests import OBSERVER, UNNAMED, Assign, ClearTable, ColumnLayout, Done, Fence, Ids, Push, Rows, TableRows, push_name
from ps_proto.values import Assigned
from ps_server.shard.catalog import Catalog
from ps_server.shard.counters import Counters
from ps_server.shard.key_lists import KeyLists
from ps_server.shard.membership import CLOCK_MAX, Membership
from ps_server.shard.staging import PlacedRows
from ps_server.shard.steps import Steps
from ps_server.shard.table import Places, Table
from ps_server.shard.window import Buckets, Window
from sharding.finite import all_finite
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sharding.wire_format import FLOAT32, FORMATS, WireFormat
from sharding.wire_rows import decode_rows


@dataclass(frozen=True, slots=True)
class _Fresh:
    """Rows of a request that have not been applied: ids uint64[n], rows float32[n, width], buckets int32[n].

    `places`: where a pull has found the rows of these ids, if it is known.
    """

    table: str
    ids: Ids
    rows: Rows
    buckets: Buckets
    places: Places | None


class Writer:
    """Turns of the requests that write."""

    def __init__(self, membership: Membership, catalog: Catalog, steps: Steps, key_lists: KeyLists, counters: Counters) -> None:
        self.window = Window()
        self.values_set = 0  # how often rows that a pull may wait for were assigned
        self._membership = membership
        self._catalog = catalog
        self._steps = steps
        self._key_lists = key_lists
        self._counters = counters

    def push(self, request: int, push: Push, now_s: float, is_borrowed: bool = False) -> Done:
        """Stage what is synchronous, copied where it `is_borrowed`, and apply the rest; a name that is known changes nothing (R2, R3).

        With backup workers a rank may be late: what it would stage is not taken, and the answer's step tells it so (R9). Where a table's
        optimizer raises, the others have their gradients all the same, and the push is refused with OptimizerFailed.
        """
        self._membership.check(push.fence)
        self._check_writer(push)
        given, (push, places) = push, self._with_ids(push)
        push = replace(push, tables=tuple([self._opened(part) for part in push.tables]))
        self._check_rows(push)
        parameters = self._catalog.parameters(push.hyperparameters)
        for part in push.tables:
            table = self._catalog.tables[part.table]
            if isinstance(table.spec.initializer, Assigned) and table.count_absent(part.ids, places.get(part.table)):
                raise InvalidRequest(f"ids of table {part.table!r}", "without a value", "assigned by rank 0 before they are pushed to")
        staged: list[TableRows] = []
        arriving: list[TableRows] = []
        for part in push.tables:
            (staged if self._catalog.is_synchronous(part.table) else arriving).append(part)
        is_late = bool(staged) and push.fence.clock < self._steps.step
        if is_late and not self._steps.decider.backup_workers:
            raise StepPassed(self._membership.server, push.fence.clock, self._steps.step)
        self._counters.pushes += 1
        if is_late:
            self._counters.pushes_late += 1
        elif staged:
            own = [self._owned(part) for part in staged] if is_borrowed else staged
            own = [_placed(part, places.get(part.table)) for part in own]
            if not self._steps.staging.add(push.fence.rank, push.fence.clock, push.seq, tuple(own)):
                self._counters.pushes_repeated += 1
        failure: OptimizerFailed | None = None
        for fresh in self._fresh(push, arriving, places):
            origin = self._steps.reads.origin(self._catalog.tables[fresh.table], push.fence, push.seq, fresh.ids)
            try:
                self._catalog.update(fresh.table, fresh.ids, fresh.rows, parameters.get(fresh.table), origin, fresh.places)
            except OptimizerFailed as error:
                failure = failure or error
            else:
                self._record(push, fresh)
        for part in given.tables:
            counters = self._counters.table(part.table)
            counters.rows_pushed += len(part.rows)
            if part.pull:
                counters.rows_listed += len(part.rows)
                self._key_lists.forget_before(push.fence, part.table, part.pull)
            counters.bytes_in += part.ids.nbytes + part.rows.nbytes
        if failure is not None:
            raise failure
        return Done(self._steps.step)

    def assign(self, request: int, assign: Assign, now_s: float) -> Done:
        """Set rows, with their state where it comes along.

        One without a name, which leaves rows as they are, is not asked of the window and not told to it: a worker that starts again puts
        its start values first, and must not take by that the name of a push that it redoes (R7).
        """
        self._membership.check(assign.fence)
        self._check_writer(assign)
        self._check_rows(assign)
        for part in assign.tables:
            _check_setter(assign.fence, self._catalog.tables[part.table])
        for fresh in self._fresh(assign, assign.tables, {}):
            table = self._catalog.tables[fresh.table]
            self.values_set += isinstance(table.spec.initializer, Assigned)
            (table.restore if assign.columns else table.assign)(fresh.ids, fresh.rows, assign.only_absent)
            self._record(assign, fresh)
        return Done(self._steps.step)

    def clear(self, request: int, clear: ClearTable, now_s: float) -> Done:
        """Drop the table's rows of every bucket that this name has not cleared yet."""
        self._membership.check(clear.fence)
        self._check_writer(clear)
        table = self._catalog.get(clear.table)
        _check_setter(clear.fence, table)
        rank, name = clear.fence.rank, push_name(clear.fence.clock, clear.seq)
        owned = self._membership.owned_buckets()
        fresh = self.window.fresh(rank, owned, name)
        buckets = owned if fresh is None else owned[fresh]
        if fresh is None:
            table.clear_all()
        else:
            is_cleared = np.zeros(NUM_BUCKETS, np.bool_)
            is_cleared[buckets] = True
            table.clear(is_cleared)
        self.window.record(rank, buckets, name)
        return Done(self._steps.step)

    def _fresh(self, request: Push | Assign, parts: Sequence[TableRows], places: Mapping[str, Places]) -> list[_Fresh]:
        """Return what of the parts has not been applied yet; the caller applies it in this turn, and records what it has applied.

        `places`: by table, where it is known.
        Asked for all of them before any is recorded: tables share buckets.
        """
        rank, name = request.fence.rank, push_name(request.fence.clock, request.seq)
        found = []
        for part in parts:
            buckets = buckets_of(table_salt(part.table), part.ids)
            fresh = None if request.seq == UNNAMED else self.window.fresh(rank, buckets, name)
            known = places.get(part.table)
            if fresh is None:
                found.append(_Fresh(part.table, part.ids, part.rows, buckets, known))
            else:
                known = None if known is None else known.of(fresh)
                found.append(_Fresh(part.table, part.ids[fresh], part.rows[fresh], buckets[fresh], known))
                self._counters.table(part.table).rows_repeated += int(part.ids.size - fresh.sum())
        return found

    def _record(self, request: Push | Assign, applied: _Fresh) -> None:
        if request.seq != UNNAMED:
            self.window.record(request.fence.rank, applied.buckets, push_name(request.fence.clock, request.seq))

    def _owned(self, part: TableRows) -> TableRows:
        """Return a borrowed part with rows of our own; what came compressed has been opened into such."""
        return replace(part, rows=part.rows.copy()) if self._wire(part) is FLOAT32 else part

    def _wire(self, part: TableRows) -> WireFormat:
        return FORMATS[self._catalog.tables[part.table].spec.wire]

    # --- checks --------------------------------------------------------------------------------------------------------------

    def _with_ids(self, push: Push) -> tuple[Push, dict[str, Places]]:
        """Return a push with the ids of the pulls that it names, and by table where that pull found their rows; UnknownKeyList (R19)."""
        tables, places = list(push.tables), {}
        for position, part in enumerate(tables):
            if part.pull:
                known = self._key_lists.get(push.fence, part.table, part.pull, len(part.rows))
                tables[position], places[part.table] = replace(part, ids=known.ids), known.places
        return replace(push, tables=tuple(tables)), places

    def _opened(self, part: TableRows) -> TableRows:
        """Return a part of a push with gradients float32[n, dim]; InvalidRequest where they do not come as the table's `wire` says."""
        dim, wire = self._catalog.get(part.table).spec.dim, self._wire(part)
        shape = wire.shape(part.ids.size, dim)
        if part.rows.dtype != wire.dtype or part.rows.shape != shape:
            got, want = f"{part.rows.dtype}{list(part.rows.shape)}", f"{wire.dtype}{list(shape)}, since the table's wire is {wire.name!r}"
            raise InvalidRequest(f"rows of table {part.table!r}", got, want)
        return part if wire is FLOAT32 else replace(part, rows=decode_rows(part.rows))

    def _check_rows(self, request: Push | Assign) -> None:
        """Check all of a push before any of it takes effect."""
        if len({part.table for part in request.tables}) < len(request.tables):
            raise InvalidRequest("tables", str([part.table for part in request.tables]), "each table once, with all of its rows")
        for part in request.tables:
            table = self._catalog.get(part.table)
            width = table.spec.dim + _state_words(request, table)
            if part.rows.shape != (part.ids.size, width) or part.rows.dtype != FLOAT32.dtype:
                want = f"float32[{part.ids.size}, {width}]"
                raise InvalidRequest(f"rows of table {part.table!r}", f"{part.rows.dtype}{list(part.rows.shape)}", want)
            if not all_finite(np.ascontiguousarray(part.rows[:, : table.spec.dim])):  # state may count, and be any bits
                raise InvalidRequest(f"rows of table {part.table!r}", "not finite (inf or nan)", "finite everywhere")
            if not part.pull:  # the ids of a pull were looked at then, under the same map
                self._membership.check_owned(part.table, part.ids)
        for part in request.tables:
            self._check_room(part)

    def _check_writer(self, request: Push | Assign | ClearTable) -> None:
        if request.fence.rank == OBSERVER:
            raise InvalidRequest("rank", "none", "a rank: an observer writes nothing")
        seq_min = UNNAMED if isinstance(request, Assign) and request.only_absent else 1
        if not seq_min <= request.seq <= CLOCK_MAX:
            raise InvalidRequest("seq", str(request.seq), f"from {seq_min} to {CLOCK_MAX}")
        self._steps.check_step("clock", request.fence.rank, request.fence.clock)

    def _check_room(self, part: TableRows) -> None:
        """Raise TableFull where the rows would not fit beside those that staged pushes will make: a fold must not fail."""
        table, staged = self._catalog.tables[part.table], self._steps.staging.ids_of(part.table)
        if len(table) + part.ids.size + sum([ids.size for ids in staged]) > table.rows_max:
            table.make_room(np.concatenate([part.ids, *staged]))


def _placed(part: TableRows, places: Places | None) -> TableRows:
    """Return gradients with the places of their rows, where those are known."""
    return part if places is None else PlacedRows(part.table, part.ids, part.rows, places=places)


def _state_words(request: Push | Assign, table: Table) -> int:
    """Return how many words of state the request brings behind each row; they must lie as this table's do."""
    columns = request.columns if isinstance(request, Assign) else ()
    if columns and columns != table.columns:
        raise InvalidRequest(f"state columns of table {table.spec.name!r}", _layout(columns), _layout(table.columns))
    return sum([column.words for column in columns])


def _check_setter(fence: Fence, table: Table) -> None:
    if isinstance(table.spec.initializer, Assigned) and fence.rank != 0:
        raise InvalidRequest("rank", str(fence.rank), f"0: table {table.spec.name!r} takes its start values from rank 0 alone")


def _layout(columns: tuple[ColumnLayout, ...]) -> str:
    return ", ".join([f"{column.name} {column.dtype}[{column.words}]" for column in columns]) or "none"

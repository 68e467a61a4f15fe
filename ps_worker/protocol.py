"""What a worker says to the cluster and when, without a world: the rules R1 to R5, R10, R14 and R15 from the worker's side.

Each operation is a generator of effects (`asking.py`). `client.py` drives them over a transport, the simulator in one thread.
A name is given when an operation is created, so that operations may wait in a queue.

    clock t:   pull(t) ... push(t, seq 1) ... push(t, seq 2) ... end_step()      the step is finished once all of it is acknowledged
    clock t+1: pull(t+1) tells every server `finished t` and waits until it may read
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ps_proto.errors import (
    InvalidRequest,
    NotOwner,
    ObserverCannot,
    ParameterServerError,
    PushPartlyTaken,
    StaleIncarnation,
    StepPassed,
    TableMismatch,
    UnfinishedPush,
    UnknownTable,
)
from ps_proto.requests import (
    OBSERVER,
    Assign,
    Barrier,
    ClearTable,
    ColumnLayout,
    CreateTable,
    Fence,
    Finish,
    Finished,
    GetCluster,
    GetStats,
    Hyperparameters,
    Ids,
    InstallMap,
    JoinJob,
    LeaveJob,
    OpenExport,
    Pull,
    Push,
    Rows,
    TableIds,
    TableRows,
)
from ps_proto.values import Async, BoundedStaleness, Mode, Optimizer, Sync, TableSpec
from ps_worker.asking import Asker, Operation, Patience, Pause, Question, World
from ps_worker.retry import is_refusal
from ps_worker.router import Part, Wanted, join, route
from sharding.finite import all_finite
from sharding.partition import gather_rows, sum_repeats
from sharding.shard_map import ShardMap

COORDINATOR = "the coordinator"
WAIT_SLICE_S = 10.0  # a server parks a pull this long; then the worker says whom it waits for, and asks again

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Named:
    """A push, an assignment or a clearing under its name, checked and merged: the same on every attempt."""

    clock: int
    seq: int
    tables: tuple[Wanted, ...]
    rows: tuple[Rows, ...]
    assign: bool
    only_absent: bool = False
    columns: tuple[ColumnLayout, ...] = ()
    clears: str | None = None  # the table that loses its rows; then there are no tables and rows

    def copied(self) -> "_Named":
        """Return it with arrays of its own: the caller may change theirs once the call has ended."""
        tables = tuple([replace(item, ids=item.ids.copy()) for item in self.tables])
        return replace(self, tables=tables, rows=tuple([rows.copy() for rows in self.rows]))


class Worker:
    """One client's view: its rank and clock, the newest map, the tables it knows."""

    def __init__(self, coordinator: str, world: World, patience: Patience | None = None) -> None:
        self.coordinator = coordinator
        self.rank = OBSERVER
        self.incarnation = 0
        self.clock = 0
        self.timeline = 0
        self.world_size = 0
        self.mode: Mode | None = None
        self.shard_map: ShardMap | None = None
        self.tables: dict[str, TableSpec] = {}
        self._asker = Asker(world, patience or Patience())
        self._seq = 0
        self._has_pushed = False  # in the step of `clock`
        self._finished: Finished | None = None  # of clock - 1, until every server has acknowledged it
        self._unacknowledged: _Named | None = None
        self._parameters: dict[str, dict[str, float]] = {}  # what this worker wants of the tables it created
        self._barrier = 0

    # --- asking --------------------------------------------------------------------------------------------------------------

    def _ask(self, bodies: Mapping[str, Any], on_refused: Callable[[], None] | None = None) -> Operation[dict[str, Any]]:
        hand_on = InstallMap(self._map)
        questions = {peer: Question(self._address(peer), body, self._nbytes(body), hand_on) for peer, body in bodies.items()}
        return self._asker.ask(questions, on_refused)

    def _nbytes(self, body: Any) -> int:
        if isinstance(body, Push | Assign):
            return sum([part.ids.nbytes + part.rows.nbytes for part in body.tables])
        if isinstance(body, Pull):
            return sum([part.ids.size * (8 + 4 * self.tables[part.table].dim) for part in body.tables])
        return 0

    def _address(self, server: str) -> str:
        return self._map.servers[self._map.index_of(server)].address

    def _ask_coordinator(self, body: Any) -> Operation[Any]:
        return (yield from self._asker.ask({COORDINATOR: Question(self.coordinator, body)}))[COORDINATOR]

    def _ask_all_servers(self, body: Any) -> Operation[dict[str, Any]]:
        return self._ask({server.name: body for server in self._map.servers})

    @property
    def _map(self) -> ShardMap:
        assert self.shard_map is not None, "connect waits for the map"
        return self.shard_map

    @property
    def _wait_s(self) -> float:
        return min(WAIT_SLICE_S, self._asker.patience.wait_timeout_s)

    def fence(self, clock: int | None = None) -> Fence:
        return Fence(self._map.version, self.rank, self.incarnation, self.clock if clock is None else clock, self.timeline)

    # --- connecting ------------------------------------------------------------------------------------------------------------

    def observe(self) -> Operation[None]:
        """Learn the cluster, once its servers are there."""
        cluster = yield from self._ask_coordinator(GetCluster(wait_s=self._wait_s))
        self._take_map(cluster.shard_map)
        self.tables, self.mode = _by_name(cluster.tables), cluster.mode
        self.world_size, self.timeline = cluster.world_size, cluster.timeline

    def join(self, rank: int, world_size: int, mode: Mode | None, nonce: int) -> Operation[None]:
        """Take a rank in the job. `nonce`: a random uint64, so that a repeated message does not fence the worker that it made."""
        yield from self.observe()
        joined = yield from self._ask_coordinator(JoinJob(rank, world_size, mode, nonce, self._wait_s))
        self.rank, self.incarnation, self.clock = rank, joined.incarnation, joined.clock
        self.mode, self.world_size, self.timeline, self._barrier = joined.mode, joined.world_size, joined.timeline, joined.barrier
        self._take_map(joined.shard_map)
        self.tables = _by_name(joined.tables)

    def _take_map(self, shard_map: ShardMap | None) -> None:
        if shard_map is not None and (self.shard_map is None or shard_map.version > self.shard_map.version):
            self.shard_map = shard_map

    def _under_newest_map(self, ask: Callable[[], Operation[T]]) -> Operation[T]:
        """Run `ask()`, and run it again under a newer map for as long as a server says NotOwner."""
        while True:
            shard_map = self._map
            try:
                return (yield from ask())
            except NotOwner:
                yield from self._refresh_map(shard_map)

    def _refresh_map(self, after: ShardMap) -> Operation[None]:
        """Fetch a map newer than `after`, of which some server knows."""
        started_s, attempt = self._asker.world.now_s(), 0
        while self._map.version <= after.version:
            cluster = yield from self._ask_coordinator(GetCluster())
            self._take_map(cluster.shard_map)
            if self._map.version <= after.version:
                if self._asker.world.now_s() - started_s >= self._asker.patience.retry_timeout_s:
                    raise NotOwner(COORDINATOR, self._map.version)
                yield Pause(self._asker.patience.backoff.pause_s(attempt, self._asker.world.uniform))
                attempt += 1

    # --- tables ------------------------------------------------------------------------------------------------------------------

    def create_table(self, spec: TableSpec) -> Operation[TableSpec]:
        """Create the table, or check that the one that exists is the same; return it as it stands."""
        self._check_ranked("create a table")
        created = yield from self._ask_coordinator(CreateTable(spec, self._wait_s))
        self.tables[spec.name] = created.spec
        self._parameters[spec.name] = spec.optimizer.parameters()
        return TableSpec(**{**_fields(created.spec), "optimizer": spec.optimizer})

    def set_optimizer(self, table: str, optimizer: Optimizer) -> None:
        """Use these hyperparameters from this step on; the table must be known and the kind its own."""
        self._check_ranked("set an optimizer")
        have = self.tables[table].optimizer.kind
        if optimizer.kind != have:
            raise TableMismatch(table, "optimizer", have, optimizer.kind)
        self._parameters[table] = optimizer.parameters()

    def know(self, tables: Sequence[str]) -> Operation[None]:
        """Make sure that the specs of these tables are known; UnknownTable where one does not exist.

        An observer asks each time: jobs come and go under it, and with them the mode, by which it tells what is synchronous.
        """
        if self.rank != OBSERVER and all([table in self.tables for table in tables]):
            return
        cluster = yield from self._ask_coordinator(GetCluster())
        if self.rank == OBSERVER:
            self.mode, self.world_size = cluster.mode, cluster.world_size
        self.tables.update({spec.name: spec for spec in cluster.tables if spec.name not in self.tables})
        for table in tables:
            if table not in self.tables:
                raise UnknownTable(table)

    def _is_synchronous(self, table: str) -> bool:
        return isinstance(self.tables[table].mode or self.mode, Sync)

    def _check_ranked(self, action: str) -> None:
        if self.rank == OBSERVER:
            raise ObserverCannot(action)

    # --- pulls -----------------------------------------------------------------------------------------------------------------

    def pull(self, tables: Sequence[tuple[str, Ids]], clock: int | None = None) -> Operation[list[Rows]]:
        """Read rows as step `clock`, by default the one at work, may see them: float32[n, dim] for each (table, ids[n]), repeats included.

        The first one of a step also tells every server that the step before it is finished, and goes on when all have answered (R4, R5).
        """
        return self._pull([Wanted.of(table, ids) for table, ids in tables], self.clock if clock is None else clock)

    def may_ask_ahead(self, tables: Sequence[str], clock: int) -> bool:
        """Return whether a pull for step `clock` could be answered before this worker has finished the steps up to it."""
        modes = [self.tables[table].mode or self.mode for table in tables]
        steps = clock - self.clock
        return steps <= 0 or all(
            [isinstance(mode, Async) or (isinstance(mode, BoundedStaleness) and mode.bound >= steps) for mode in modes]
        )

    def _pull(self, wanted: list[Wanted], clock: int) -> Operation[list[Rows]]:
        yield from self.know([item.table for item in wanted])
        answers = yield from self._under_newest_map(lambda: self._read(wanted, clock))
        dims = [self.tables[item.table].dim for item in wanted]
        joined = join(dims, [item.ids.size for item in wanted], answers)
        return [item.expand(rows) for item, rows in zip(wanted, joined, strict=True)]

    def _read(self, wanted: list[Wanted], clock: int) -> Operation[list[tuple[Part, Rows]]]:
        routed = route(wanted, self._map)
        if self.rank == OBSERVER:
            replies = yield from self._read_one_step(wanted, routed)
        else:
            replies = yield from self._ask_to_read(wanted, routed, clock)
        return [(part, rows) for server, parts in routed.items() for part, rows in zip(parts, replies[server].rows, strict=True)]

    def _ask_to_read(self, wanted: list[Wanted], routed: dict[str, list[Part]], clock: int) -> Operation[dict[str, Any]]:
        finished = self._finished
        fence = self.fence(clock)
        bodies = {server: Pull(fence, _ids(wanted, parts), finished, self._wait_s) for server, parts in routed.items()}
        if finished is not None:
            for server in self._map.servers:
                bodies.setdefault(server.name, Pull(fence, (), finished, self._wait_s))
        replies = yield from self._ask(bodies)
        self._announced(finished)
        return replies

    def _read_one_step(self, wanted: list[Wanted], routed: dict[str, list[Part]]) -> Operation[dict[str, Any]]:
        """Read for an observer: synchronous tables of several servers as of one and the same step (R19)."""
        replies: dict[str, Any] = {}
        at_step, started_s = -1, self._asker.world.now_s()
        synchronous = any([self._is_synchronous(item.table) for item in wanted])
        while True:
            late = [server for server in routed if server not in replies or (synchronous and replies[server].step < at_step)]
            try:
                replies |= yield from self._ask(
                    {server: Pull(self.fence(), _ids(wanted, routed[server]), None, self._wait_s, at_step) for server in late}
                )
            except StepPassed:
                if self._has_waited_enough(started_s):
                    raise
                replies, at_step = {}, -1
                continue
            at_step = max([reply.step for reply in replies.values()], default=-1)
            if not synchronous or all([reply.step == at_step for reply in replies.values()]):
                return replies

    def _has_waited_enough(self, started_s: float) -> bool:
        """Return whether an observer has run after the steps, which went on each time, for as long as it would wait for one."""
        return self._asker.world.now_s() - started_s >= self._asker.patience.wait_timeout_s

    # --- pushes ------------------------------------------------------------------------------------------------------------------

    def push(self, tables: Sequence[tuple[str, Ids, Rows]]) -> Operation[None]:
        """Push gradients, float32[n, dim] for ids uint64[n], repeats summed in the caller's order; done when every server acknowledged."""
        self._check_ranked("push")
        return self._send(self._name(tables, assign=False))

    def assign(self, tables: Sequence[tuple[str, Ids, Rows]], only_absent: bool) -> Operation[None]:
        """Set rows, at once and in every mode; ids must not repeat. `only_absent`: rows that exist stay."""
        self._check_ranked("assign rows")
        return self._send(self._name(tables, assign=True, only_absent=only_absent))

    def restore(self, table: str, ids: Ids, records: Rows, columns: tuple[ColumnLayout, ...]) -> Operation[None]:
        """Set whole records float32[n, width], row and state columns, at once and in every mode; ids must not repeat."""
        self._check_ranked("restore rows")
        return self._send(self._name([(table, ids, records)], assign=True, columns=columns))

    def clear(self, table: str) -> Operation[None]:
        """Drop all rows of a table on every server, at once and in every mode."""
        self._check_ranked("clear a table")
        self._seq += 1
        return self._send(_Named(self.clock, self._seq, (), (), assign=True, clears=table))

    def retry_push(self) -> Operation[None]:
        """Send the push that was not acknowledged everywhere again, under its name; nothing to do where there is none."""
        return self._send(self._unacknowledged)

    def _name(
        self,
        tables: Sequence[tuple[str, Ids, Rows]],
        assign: bool,
        only_absent: bool = False,
        columns: tuple[ColumnLayout, ...] = (),
    ) -> _Named:
        state_words = sum([column.words for column in columns])
        wanted, rows = [], []
        for table, ids, given in tables:
            item = Wanted.of(table, ids)
            if assign and item.inverse is not None:
                raise InvalidRequest(
                    f"ids of table {table!r}", f"{ids.size} with {ids.size - item.ids.size} repeats", "each given once to assign"
                )
            merged = given if item.inverse is None else sum_repeats(given, item.inverse, item.ids.size)
            if not all_finite(np.ascontiguousarray(merged[:, : merged.shape[1] - state_words])):  # state may count, and be any bits
                got = "not finite (inf or nan)" if item.inverse is None else "not finite (inf or nan) once repeats are summed"
                raise InvalidRequest(f"rows of table {table!r}", got, "finite everywhere")
            wanted.append(item)
            rows.append(merged)
        self._seq += 1
        self._has_pushed = self._has_pushed or not assign
        return _Named(self.clock, self._seq, tuple(wanted), tuple(rows), assign, only_absent, columns)

    def _send(self, named: _Named | None) -> Operation[None]:
        """Send each owner its part until all have acknowledged. One unacknowledged push per rank; it keeps its name (R2, R14)."""
        if named is None:
            return
        if self._unacknowledged is not named:
            self.check_all_acknowledged()
        yield from self.know([item.table for item in named.tables] if named.clears is None else [named.clears])
        self._unacknowledged = named
        try:
            yield from self._announce()
            shard_map = self._map
            yield from self._under_newest_map(lambda: self._write(named, may_forget=self._map is shard_map))
            self._unacknowledged = None
        except StaleIncarnation:
            self._unacknowledged = None  # whatever became of it, this worker is not the one to go on
            raise
        except ParameterServerError as error:
            if self._unacknowledged is not None and is_refusal(error):
                raise PushPartlyTaken(named.clock, named.seq, str(error)) from error
            raise
        finally:
            if self._unacknowledged is not None:
                self._unacknowledged = named.copied()

    def _write(self, named: _Named, may_forget: bool) -> Operation[dict[str, Any]]:
        """Send each owner its part. `may_forget`: not after NotOwner, when some may have taken a part under the map before."""
        if named.clears is not None:
            clear = ClearTable(self.fence(named.clock), named.seq, named.clears)
            bodies: dict[str, Any] = {server.name: clear for server in self._map.servers}
        else:
            bodies = {server: self._body(named, parts) for server, parts in route(named.tables, self._map).items()}
        return self._ask(bodies, self._forget_push if may_forget else None)

    def _forget_push(self) -> None:
        """Let go of a push that nobody took: its name stays unused, and others may follow."""
        self._unacknowledged = None

    def _body(self, named: _Named, parts: list[Part]) -> Push | Assign:
        tables = tuple([TableRows(named.tables[part.position].table, part.ids, _rows(named.rows[part.position], part)) for part in parts])
        fence = self.fence(named.clock)
        if named.assign:
            return Assign(fence, named.seq, tables, named.only_absent, named.columns)
        changed = [
            Hyperparameters(part.table, self._parameters[part.table])
            for part in tables
            if self._parameters.get(part.table, self._registered(part.table)) != self._registered(part.table)
        ]
        return Push(fence, named.seq, tables, tuple(changed))

    def _registered(self, table: str) -> dict[str, float]:
        return self.tables[table].optimizer.parameters()

    def check_all_acknowledged(self) -> None:
        """Raise UnfinishedPush where a push was not acknowledged everywhere."""
        if self._unacknowledged is not None:
            raise UnfinishedPush(self._unacknowledged.clock, self._unacknowledged.seq)

    # --- finished steps ------------------------------------------------------------------------------------------------------------

    def end_step(self) -> Operation[None]:
        """Finish the step: the clock goes up by one.

        With synchronous tables the servers hear it with the next step's first request; otherwise at once (R4).
        """
        self._check_ranked("end a step")
        self.check_all_acknowledged()
        yield from self._announce()
        wanted = [Hyperparameters(table, numbers) for table, numbers in sorted(self._parameters.items()) if self._is_synchronous(table)]
        self._finished = Finished(self.clock, tuple(wanted))
        self.clock += 1
        self._seq, self._has_pushed = 0, False
        if not self.has_synchronous_tables:
            yield from self._announce()

    @property
    def has_synchronous_tables(self) -> bool:
        """Whether any table that this worker knows is synchronous."""
        return any([self._is_synchronous(table) for table in self.tables])

    def announce(self) -> Operation[None]:
        """Tell every server what it has yet to hear about the step before; wait for nobody."""
        return self._announce(waits=False)

    def _announce(self, waits: bool = True) -> Operation[None]:
        """Tell every server what it has yet to hear about the step before.

        With synchronous tables it waits for the fold, so that a worker that never pulls stages no more than a step ahead of the others.
        """
        finished = self._finished
        if finished is not None:
            waits = waits and self.has_synchronous_tables
            yield from self._tell_all(Finish(self.fence(), finished, wait_s=self._wait_s if waits else 0.0))
            self._announced(finished)

    def _announced(self, finished: Finished | None) -> None:
        if self._finished is finished:
            self._finished = None

    def _tell_all(self, finish: Finish) -> Operation[None]:
        yield from self._under_newest_map(lambda: self._ask_all_servers(replace(finish, fence=self.fence(finish.fence.clock))))

    def flush(self) -> Operation[None]:
        """Wait until every finished step of this worker is folded on every server."""
        self._check_ranked("flush")
        self.check_all_acknowledged()
        finished = self._finished
        yield from self._tell_all(Finish(self.fence(), finished, wait_s=self._wait_s))
        self._announced(finished)

    def leave(self) -> Operation[None]:
        """Finish a step that has pushes, leave the roster after it, and wait for its fold (R6, R14)."""
        self.check_all_acknowledged()
        if self._has_pushed:
            yield from self.end_step()
        finished = self._finished
        yield from self._tell_all(Finish(self.fence(), finished, leave=True, wait_s=self._wait_s))
        self._announced(finished)
        yield from self._ask_coordinator(LeaveJob(self.rank, self.incarnation))

    def barrier(self, value: int = 0) -> Operation[int]:
        """Wait until every rank that has not left is at its barrier; return the least value that one of them brought."""
        self._check_ranked("wait at a barrier")
        passed = yield from self._ask_coordinator(Barrier(self.rank, self.incarnation, self._barrier, self._wait_s, value))
        self._barrier += 1
        minimum: int = passed.minimum
        return minimum

    # --- looking -----------------------------------------------------------------------------------------------------------------

    def open_exports(self, table: str, with_state: bool = False) -> Operation[dict[str, Any]]:
        """Open a snapshot of the table on every server, synchronous tables at one and the same step (R19); `with_state`: of records."""
        yield from self.know([table])
        if self.rank != OBSERVER:
            yield from self._announce()
        return (yield from self._under_newest_map(lambda: self._open_at_one_step(table, with_state)))

    def _open_at_one_step(self, table: str, with_state: bool) -> Operation[dict[str, Any]]:
        opened: dict[str, Any] = {}
        at_step, started_s = -1, self._asker.world.now_s()
        while True:
            late = [server.name for server in self._map.servers if server.name not in opened or opened[server.name].step < at_step]
            try:
                asked = OpenExport(self.fence(), table, self._wait_s, at_step, with_state)
                opened |= yield from self._ask({server: asked for server in late})
            except StepPassed:
                if self.rank != OBSERVER or self._has_waited_enough(started_s):
                    raise
                opened, at_step = {}, -1
                continue
            at_step = max(answer.step for answer in opened.values())
            if not self._is_synchronous(table) or all([answer.step == at_step for answer in opened.values()]):
                return opened

    def ask_servers(self, bodies: Mapping[str, Any]) -> Operation[dict[str, Any]]:
        """Ask some servers one request each."""
        return self._ask(bodies)

    def stats(self) -> Operation[dict[str, Any]]:
        """Ask every server for its numbers."""
        return (yield from self._under_newest_map(lambda: self._ask_all_servers(GetStats(self.fence()))))


def _by_name(specs: Sequence[TableSpec]) -> dict[str, TableSpec]:
    return {spec.name: spec for spec in specs}


def _fields(spec: TableSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in TableSpec.__dataclass_fields__}


def _ids(wanted: Sequence[Wanted], parts: Sequence[Part]) -> tuple[TableIds, ...]:
    return tuple([TableIds(wanted[part.position].table, part.ids) for part in parts])


def _rows(rows: Rows, part: Part) -> Rows:
    return rows if part.order is None else gather_rows(rows, part.order)

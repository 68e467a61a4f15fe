"""The client that a training loop holds: from numpy arrays to operations and back.

A client is used by one thread at a time; what `pull_async` and `push_async` queue runs beside it.
"""

import logging
import math
import operator
import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, overload

import numpy as np

from ps_proto.address import check_address
from ps_proto.errors import ClientClosed, InvalidRequest, ParameterServerError, StalenessTimeout
from ps_proto.parts import PART_SIZE_BYTES
from ps_proto.requests import OBSERVER, Ids, Rows, Stats
from ps_proto.values import Mode, Optimizer, TableSpec
from ps_worker.asking import Patience, World
from ps_worker.driver import Driver, Handle, Lane, Transport
from ps_worker.exporting import TableExport, open_export
from ps_worker.inputs import as_ids, as_rows
from ps_worker.protocol import Worker
from ps_worker.records import Records, pack, unpack
from ps_worker.transport.grpc import GrpcTransport

log = logging.getLogger("rowstead")

Gradients = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class _Later:
    """A pull for step `step` that the modes of its tables do not let begin yet."""

    tables: list[str]
    step: int
    handle: Handle[Any]
    start: Callable[[], None]


def connect(
    address: str,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    mode: Mode | None = None,
    rpc_timeout_s: float = 10.0,
    retry_timeout_s: float = 60.0,
    wait_timeout_s: float = 600.0,
    part_size_bytes: int = PART_SIZE_BYTES,
) -> "Client":
    """Connect to the cluster whose coordinator listens at `address`, "host:port".

    With a rank (0 to world_size - 1), this is a worker of the job: the first to connect fixes world_size and mode, a later one that differs
    gets JobMismatch; connecting again with a rank replaces the worker that had it. Without a rank it is an observer: it reads, exports
    and watches, and takes no part in clocks.

    rpc_timeout_s for one call's answer, retry_timeout_s for a peer that does not answer at all, wait_timeout_s for other ranks;
    part_size_bytes is the most array bytes in one message. Raises Unreachable, Recovering (servers are missing), JobMismatch,
    InvalidRequest.
    """
    for name, value in (("rpc_timeout_s", rpc_timeout_s), ("retry_timeout_s", retry_timeout_s), ("wait_timeout_s", wait_timeout_s)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InvalidRequest(name, repr(value), "a finite number of seconds above 0")
    check_address("address", address)
    rank, world_size = _whole("rank", rank), _whole("world_size", world_size)
    if mode is not None and not isinstance(mode, Mode):
        raise InvalidRequest("mode", repr(mode), "a mode such as ps.Sync()")
    if (rank is None) != (world_size is None):
        missing = "world_size" if world_size is None else "rank"
        raise InvalidRequest(missing, "missing", "given together: rank and world_size for a worker, neither for an observer")
    patience = Patience(rpc_timeout_s, retry_timeout_s, wait_timeout_s)
    return Client(address, GrpcTransport(part_size_bytes), patience, rank, world_size, mode)


class Client:
    """See `connect`. `with` closes it: normally by finishing the step and leaving the roster, after an exception by doing neither (R14)."""

    def __init__(
        self, address: str, transport: Transport, patience: Patience, rank: int | None, world_size: int | None, mode: Mode | None
    ) -> None:
        world = World(time.monotonic, random.Random(secrets.randbits(64)).random, _log_wait)
        self._worker = Worker(address, world, patience)
        self._driver = Driver(transport)
        self._pulls, self._pushes, self._barriers = [Lane(self._driver, name) for name in ("pull", "push", "barrier")]
        self._later: list[_Later] = []
        self._owner = os.getpid()
        self._is_closed = False
        _clients.add(self)
        try:
            if rank is None or world_size is None:
                self._driver.run(self._worker.observe())
            else:
                self._driver.run(self._worker.join(rank, world_size, mode, secrets.randbits(63)))
        except BaseException:
            self._disconnect()
            raise

    # --- who this is -----------------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int | None:
        """The rank, or None for an observer."""
        return None if self._worker.rank == OBSERVER else self._worker.rank

    @property
    def world_size(self) -> int:
        """The job's number of ranks; 0 where an observer found no job."""
        return self._worker.world_size

    @property
    def mode(self) -> Mode | None:
        """The job's mode; None where an observer found no job."""
        return self._worker.mode

    @property
    def clock(self) -> int:
        """The number of the step at work, which is how many are finished before it."""
        return self._worker.clock

    @property
    def incarnation(self) -> int:
        """How often this rank has been taken, this client included; 0 for an observer."""
        return self._worker.incarnation

    # --- tables ------------------------------------------------------------------------------------------------------------------

    def create_table(self, spec: TableSpec) -> TableSpec:
        """Create the table, or check that it is the one that exists; TableMismatch names the field that differs.

        Hyperparameters may differ: this worker's are used for its pushes; of synchronous tables all ranks must ask for the same.
        """
        self._check_open("create a table")
        if not isinstance(spec, TableSpec):
            raise InvalidRequest("spec", repr(spec), "a TableSpec such as ps.TableSpec('user', dim=64)")
        return self._pushes.run(self._worker.create_table(spec))

    def spec(self, table: str) -> TableSpec:
        """Return a table as it stands, with the hyperparameters of its first creator; UnknownTable where nobody created it."""
        self._check_open("ask for a table")
        self._know(table)
        return self._worker.tables[table]

    def set_optimizer(self, table: str, optimizer: Optimizer) -> None:
        """Use other hyperparameters from this step on, such as ps.Adagrad(lr=0.01); the kind must stay."""
        self._check_open("set an optimizer")
        self._know(table)
        if not isinstance(optimizer, Optimizer):
            raise InvalidRequest("optimizer", repr(optimizer), "an optimizer such as ps.Adagrad(lr=0.05)")
        self._worker.set_optimizer(table, optimizer)

    # --- pull, push, assign -----------------------------------------------------------------------------------------------------

    @overload
    def pull(self, table: str, ids: Any) -> Rows: ...
    @overload
    def pull(self, table: Mapping[str, Any]) -> dict[str, Rows]: ...

    def pull(self, table: str | Mapping[str, Any], ids: Any = None) -> Rows | dict[str, Rows]:
        """Return float32[n, dim] for ids uint64[n] or int64[n], in any order, repeats allowed; or a dict of them for {table: ids}.

        An id without a row reads as its initial value; nothing is created. Waits as the mode says, at most wait_timeout_s.
        """
        wanted = self._wanted(table, ids)
        rows: Rows | dict[str, Rows] = _shaped(table, self._driver.run(self._worker.pull(wanted)))
        return rows

    def pull_async(self, table: str | Mapping[str, Any], ids: Any = None, *, clock: int | None = None) -> Handle[Any]:
        """Queue a pull; the handle's result is what `pull` returns.

        `clock`: the step that the rows are for, by default the one at work. For a later step it is sent at once where the mode lets that
        step read already, and then does not see this worker's pushes in between; otherwise when `end_step` has brought the client there.
        """
        wanted = self._wanted(table, ids)
        asked = _whole("clock", clock)
        step = self.clock if asked is None else asked
        if step < self.clock:
            raise InvalidRequest("clock", str(step), f"at least {self.clock}, the step at work")
        handle: Handle[Any] = Handle(Future())
        later = _Later([name for name, _ in wanted], step, handle, partial(self._start_pull, handle, table, wanted, step))
        if self.can_pull_ahead(later.tables, step):
            later.start()
        else:
            self._later.append(later)
        return handle

    def can_pull_ahead(self, tables: Sequence[str], clock: int) -> bool:
        """Return whether the mode lets step `clock` read these tables before this worker has reached it."""
        self._know(*tables)
        return self._worker.may_ask_ahead(tables, clock)

    def _start_pull(self, handle: Handle[Any], table: str | Mapping[str, Any], wanted: list[tuple[str, Ids]], step: int) -> None:
        self._pulls.submit(self._worker.pull(wanted, step), lambda rows: _shaped(table, rows), handle)

    def _start_pulls_that_may(self) -> None:
        pulls, self._later = self._later, []
        for later in pulls:
            if later.handle.is_cancelled:
                continue
            if self.can_pull_ahead(later.tables, later.step):
                later.start()
            else:
                self._later.append(later)

    @overload
    def push(self, table: str, ids: Any, gradients: Any) -> None: ...
    @overload
    def push(self, table: Gradients) -> None: ...

    def push(self, table: str | Gradients, ids: Any = None, gradients: Any = None) -> None:
        """Push float32[n, dim] for ids[n], or {table: (ids, gradients)}; repeats are summed; returns when every server acknowledged.

        In synchronous mode it takes effect at the end of the step. Non-finite gradients are refused, and nothing of the push is applied.
        One that is not acknowledged everywhere in time raises Unreachable and keeps its name: see `retry_push`.
        """
        self._pushes.wait()
        self._pushes.run(self._worker.push(self._given("push", table, ids, gradients)))

    def push_async(self, table: str | Gradients, ids: Any = None, gradients: Any = None) -> Handle[None]:
        """Queue a push of the step at work now; do not change the arrays before its handle is done. `end_step` waits for it."""
        return self._pushes.submit(self._worker.push(self._given("push", table, ids, gradients)))

    def retry_push(self) -> None:
        """Send a push that was not acknowledged everywhere again, under its name, so that it counts once."""
        self._check_open("push")
        self._pushes.run(self._worker.retry_push())

    def assign(self, table: str | Gradients, ids: Any = None, rows: Any = None, *, only_absent: bool = False) -> None:
        """Set rows float32[n, dim], at once and in every mode: pretrained rows, dense start values. `only_absent`: rows that exist stay.

        It is outside the steps: in synchronous mode assign before the others read, with a barrier between.
        """
        self._pushes.wait()
        self._pushes.run(self._worker.assign(self._given("assign rows", table, ids, rows), only_absent))

    def restore(self, table: str, records: Records) -> None:
        """Set rows with their state columns, at once and in every mode, as `export_records` gave them; the ids must not repeat.

        The table must have an optimizer of the same kind: InvalidRequest says how its state columns lie where they differ.
        """
        self._check_open("restore rows")
        self._know(table)
        ids = as_ids(f"ids of table {table!r}", records.ids)
        rows = as_rows(f"rows of table {table!r}", records.rows, ids.size, self._worker.tables[table].dim)
        packed, columns = pack(rows, records.state)
        self._pushes.wait()
        self._pushes.run(self._worker.restore(table, ids, packed, columns))

    def clear(self, table: str) -> None:
        """Drop all rows of a table, with their state, at once and in every mode; afterwards its ids read as their initial values."""
        self._check_open("clear a table")
        self._know(table)
        self._pushes.wait()
        self._pushes.run(self._worker.clear(table))

    # --- steps -----------------------------------------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Finish the step: `clock` goes up by one.

        Waits for the pulls and pushes that are queued; a push that was not acknowledged everywhere raises UnfinishedPush.
        """
        self._check_open("end a step")
        if self._worker.has_synchronous_tables:
            self._pulls.wait()  # a pull reads this step: once it is over, the servers may go on to the next one
        self._pushes.raise_unheard()
        self._pushes.run(self._worker.end_step())
        self._start_pulls_that_may()

    def flush(self) -> None:
        """Wait until every finished step of this worker is in the rows (of synchronous tables: until the other ranks finished it too)."""
        self._check_open("flush")
        self._pushes.raise_unheard()
        self._pushes.run(self._worker.flush())

    def barrier(self) -> None:
        """Wait until every rank that has not left is at its barrier; BarrierTimeout names those that are not."""
        self._check_open("wait at a barrier")
        self._pushes.run(self._worker.announce())  # who is yet to come may read the next step first, such as to evaluate
        self._barriers.run(self._worker.barrier())

    def agree_async(self, value: int) -> Handle[int]:
        """Queue a barrier to which this rank brings `value`; the handle's result is the least that a rank which has not left brought.

        Barriers meet in the order in which each rank asks for them: all ranks must ask for the same ones.
        """
        self._check_open("agree")
        return self._barriers.submit(self._worker.barrier(value))

    # --- looking -----------------------------------------------------------------------------------------------------------------

    def export(self, table: str) -> tuple[Ids, Rows]:
        """Return every row held: ids uint64[n], ascending, and rows float32[n, dim], as of one instant of each server."""
        parts = list(self.export_iter(table))
        dim = self._worker.tables[table].dim
        ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _ in parts)])
        rows = np.concatenate([np.empty((0, dim), np.float32), *(rows for _, rows in parts)])
        return ids, rows

    def export_iter(self, table: str) -> Iterator[tuple[Ids, Rows]]:
        """Yield every row held in parts of some MiB, ids ascending over all parts, as of the instant of the first."""
        self._check_open("export")
        yield from self._parts(self._open_export(table))

    def export_records(self, table: str) -> Iterator[Records]:
        """Yield every row held with its state columns, otherwise as `export_iter`."""
        self._check_open("export")
        export = self._open_export(table, with_state=True)
        with closing(self._parts(export)) as parts:
            for ids, records in parts:
                yield unpack(ids, records, export.columns)

    def _open_export(self, table: str, with_state: bool = False) -> TableExport:
        self._know(table)
        return self._driver.run(open_export(self._worker, table, with_state))

    def _parts(self, export: TableExport) -> Generator[tuple[Ids, Rows], None, None]:
        while (part := self._driver.run(export.next_part())) is not None:
            try:
                yield part
            except GeneratorExit:  # the reader wants no more
                if not self._is_closed:
                    self._driver.run(export.close())
                raise
            self._check_open("export")
        self._driver.run(export.close())

    def stats(self) -> dict[str, Stats]:
        """Return each server's numbers, and its tables'."""
        self._check_open("ask for stats")
        return self._driver.run(self._worker.stats())

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish a step that has pushes, leave the job and wait for the last fold; a second time does nothing."""
        if self._is_closed:
            return
        try:
            self._pulls.wait()
            self._pushes.raise_unheard()
            if self.rank is not None:
                self._driver.run(self._worker.leave())
        finally:
            self._disconnect()

    def disconnect(self) -> None:
        """Close the connections at once, neither finishing the step nor leaving; after close(), or a second time, does nothing."""
        if not self._is_closed:
            self._disconnect()

    def _disconnect(self) -> None:
        self._is_closed = True
        for later in self._later:
            if not later.handle.is_cancelled:
                later.handle.fail(ClientClosed("pull for a step that it does not reach"))
        self._later.clear()
        self._driver.transport.close()  # first: what is still under way, after an exception, ends at once and not after its retries
        self._pulls.close()
        self._pushes.close()
        self._barriers.close()
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.disconnect()

    # --- from the user's arrays ------------------------------------------------------------------------------------------------

    def _check_open(self, action: str) -> None:
        if self._is_closed:
            raise ClientClosed(action)

    def _know(self, *tables: str) -> None:
        for table in tables:
            _check_name(table)
        self._driver.run(self._worker.know(tables))

    def _wanted(self, table: str | Mapping[str, Any], ids: Any) -> list[tuple[str, Ids]]:
        self._check_open("pull")
        asked = _by_table(table, ids)
        self._know(*asked)
        return [(name, as_ids(f"ids of table {name!r}", given)) for name, given in asked.items()]

    def _given(self, action: str, table: str | Gradients, ids: Any, rows: Any) -> list[tuple[str, Ids, Rows]]:
        self._check_open(action)
        pairs = _by_table(table, (ids, rows))
        self._know(*pairs)
        given = []
        for name, pair in pairs.items():
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise InvalidRequest(f"what is pushed to table {name!r}", type(pair).__name__, "a pair (ids, rows)")
            checked = as_ids(f"ids of table {name!r}", pair[0])
            given.append((name, checked, as_rows(f"rows of table {name!r}", pair[1], checked.size, self._worker.tables[name].dim)))
        return given


def _check_name(table: object) -> None:
    if not isinstance(table, str):
        raise InvalidRequest("table", repr(table), "a table's name, or a dict by name")


def _by_table(table: str | Mapping[str, Any], given: Any) -> Mapping[str, Any]:
    if isinstance(table, Mapping):
        return table
    _check_name(table)
    return {table: given}


def _whole(name: str, given: Any) -> int | None:
    """Return a whole number from 0 to 2**31 - 1, numpy's too; None stays None."""
    if given is None:
        return None
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if isinstance(given, bool) or not 0 <= number < 2**31:
        raise InvalidRequest(name, repr(given), f"a whole number from 0 to {2**31 - 1}")
    return number


def _shaped(table: str | Mapping[str, Any], rows: list[Rows]) -> Any:
    return dict(zip(table, rows, strict=True)) if isinstance(table, Mapping) else rows[0]


def _log_wait(error: ParameterServerError) -> None:
    """Say whom we wait for; called from the tenth second on, every ten seconds."""
    if isinstance(error, StalenessTimeout):
        log.warning("Step %d waits for rank %d, for %.0f s so far.", error.clock, error.rank, error.after_s)
    else:
        log.warning("Still waiting: %s", error)


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _disconnect_all() -> None:
    """End what is under way of clients that nobody closed, so that the interpreter can end; none leaves its job."""
    for client in list(_clients):
        if client._owner == os.getpid():  # in a fork, a DataLoader's child say, neither its threads nor its connections are there
            client._disconnect()


# Not atexit: by then the interpreter has waited for the threads of every executor, and one of ours may be in a wait of minutes.
threading._register_atexit(_disconnect_all)  # type: ignore[attr-defined]  # private, but Python's own executors end in the same way

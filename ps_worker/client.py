"""The client that a training loop holds: from numpy arrays to operations and back.

A client is used by one thread at a time; what `pull_async` and `push_async` queue runs beside it.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from ps_proto.errors import InvalidRequest, ObserverCannot
from ps_proto.requests import OBSERVER, CheckpointTaken, Ids, Rows, Stats
from ps_proto.values import Mode, Optimizer, TableSpec
from ps_worker.asking import Operation, Patience
from ps_worker.capturing import Provider, check_resume
from ps_worker.connection import Connection
from ps_worker.driver import Handle, Transport
from ps_worker.inputs import as_pair, as_whole, by_table, ids_by_table, rows_by_table
from ps_worker.late_log import LateLog
from ps_worker.later_pulls import LaterPull
from ps_worker.meeting import Meeting
from ps_worker.protocol import BarriersAsked, Worker
from ps_worker.records import Records, pack
from ps_worker.resume.replay import Replay
from ps_worker.roots import absolute_root
from ps_worker.table_parts import join_parts, records_in_parts, rows_in_parts

T = TypeVar("T")
Gradients = Mapping[str, tuple[Any, Any]]


class Client:
    """See `connecting.connect`. `with` closes it: normally by finishing the step and leaving, after an exception by doing neither (R14)."""

    def __init__(
        self,
        address: str,
        transport: Transport,
        patience: Patience,
        rank: int | None,
        world_size: int | None,
        mode: Mode | None,
        *,
        resume: bool = False,
        on_lost_worker: str = "",
        join: str = "",
        job: int = 0,
    ) -> None:
        """`resume`, `on_lost_worker` and `job` as in JoinJob; `join`: under which name to join the running job, as a rank chosen there."""
        self._connection = Connection(address, transport, patience)
        self._worker = self._connection.worker
        self._late_log = LateLog(self._worker)
        self._capture = self._connection.capture
        self._meeting = Meeting(self._connection)
        self._pulls, self._pushes = self._connection.pulls, self._connection.pushes
        try:
            if join:
                rank, world_size = OBSERVER, 0  # in the question: the answer has both
            if rank is None or world_size is None:
                self._connection.run(self._worker.observe())
            else:
                self._connection.run(self._worker.join(rank, world_size, mode, secrets.randbits(63), resume, on_lost_worker, join, job))
                self._late_log.joined()
                self._connection.keep_lease()
        except BaseException:
            self._connection.disconnect()
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
    def turn(self) -> int:
        """The clock less the steps that this worker left out because it was late: each `end_step` adds one."""
        return self._worker.turn

    @property
    def late_steps(self) -> int:
        """How many steps of this client ended late, in a job with backup workers: nothing pushed in them to synchronous tables counts."""
        return self._worker.late_steps

    @property
    def incarnation(self) -> int:
        """How often this rank has been taken, this client included; 0 for an observer."""
        return self._worker.incarnation

    @property
    def is_resumed(self) -> bool:
        """Whether this client goes on behind a step that its rank finished before: with `resume`, after a restart."""
        return self._worker.is_resumed

    @property
    def resume(self) -> bytes:
        """What the rank's last client gave `end_step`, or its provider, with the last step that counts; empty where it gave nothing."""
        return self._worker.resume

    @property
    def has_synchronous_tables(self) -> bool:
        """Whether any table that this client has used or created is synchronous."""
        return self._worker.has_synchronous_tables

    @property
    def transport(self) -> Transport:
        """What carries its calls. That of `connect` says in `kinds` how each server is reached, and in `times_arena_full` how often not."""
        return self._connection.transport

    @property
    def connection(self) -> Connection:
        """Its threads and its transport, for those who look at how they do."""
        return self._connection

    # --- tables ------------------------------------------------------------------------------------------------------------------

    def create_table(self, spec: TableSpec) -> TableSpec:
        """Create the table, or check that it is the one that exists; TableMismatch names the field that differs.

        Hyperparameters may differ: this worker's are used for its pushes; of synchronous tables all ranks must ask for the same.
        """
        self._connection.check_open("create a table")
        if not isinstance(spec, TableSpec):
            raise InvalidRequest("spec", repr(spec), "a TableSpec such as ps.TableSpec('user', dim=64)")
        return self._pushes.run(self._worker.create_table(spec))

    def spec(self, table: str) -> TableSpec:
        """Return a table as it stands, with the hyperparameters of its first creator; UnknownTable where nobody created it."""
        self._connection.check_open("ask for a table")
        return self._connection.spec(table)

    def set_optimizer(self, table: str, optimizer: Optimizer) -> None:
        """Use other hyperparameters from this step on, such as ps.Adagrad(lr=0.01); the kind must stay."""
        self._connection.check_open("set an optimizer")
        self._connection.know(table)
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
        self._capture.mark()
        rows: Rows | dict[str, Rows] = _shaped(table, self._connection.run(self._worker.pull(wanted)))
        return rows

    def pull_async(
        self, table: str | Mapping[str, Any], ids: Any = None, *, clock: int | None = None, turn: int | None = None
    ) -> Handle[Any]:
        """Queue a pull; the handle's result is what `pull` returns.

        `clock`: the step that the rows are for, by default the one at work. For a later step it is sent at once where the mode lets that
        step read already, and then does not see this worker's pushes in between; otherwise when `end_step` has brought the client there.
        `turn`: the same as this client counts them, so that a step left out because it was late is not waited for; give one of the two.
        """
        wanted = [(name, its.copy()) for name, its in self._wanted(table, ids)]  # the caller may change theirs meanwhile
        asked, own = as_whole("clock", clock), as_whole("turn", turn)
        at_work = self.turn
        if own is None:
            own = at_work if asked is None else asked - (self.clock - at_work)
        if own < at_work:
            name, given = ("clock", asked) if turn is None else ("turn", own)
            raise InvalidRequest(name, str(given), f"at least {self.clock if turn is None else at_work}, the step at work")
        self._capture.mark()
        handle: Handle[Any] = Handle(Future(), self._capture.mark_here)
        start = partial(self._start_pull, handle, table, wanted, own)
        self._connection.later_pulls.add(LaterPull([name for name, _ in wanted], own, handle, start))
        return handle

    def plan_async(self, plan: Callable[[], T]) -> "Future[T]":
        """Let a thread of this client call `plan`, one after another; closing the client waits for those that were handed in."""
        self._connection.check_open("plan a pull")
        return self._connection.planning.submit(plan)

    def pull_planned(self, tables: Sequence[str], ids: Callable[[], Mapping[str, Ids]], turn: int) -> Handle[dict[str, Rows]]:
        """Queue a pull as `pull_async` does, for the step of `turn`, which is not gone by, of ids that are still being worked out.

        `ids` is called in another thread when the pull begins, may wait there, and returns uint64[n] for each of the tables that it is to
        read, perhaps for none. The handle's result has their rows, or the error of `ids`.
        """
        self._connection.check_open("pull")
        self._connection.know(*tables)
        self._capture.mark()
        handle: Handle[dict[str, Rows]] = Handle(Future(), self._capture.mark_here)
        start = partial(self._start_planned, handle, ids, turn)
        self._connection.later_pulls.add(LaterPull(tables, turn, handle, start))
        return handle

    def can_pull_ahead(self, tables: Sequence[str], turn: int) -> bool:
        """Return whether the mode lets the step of `turn` read these tables before this worker has reached it."""
        self._connection.know(*tables)
        return self._worker.may_ask_ahead(tables, turn)

    def _start_pull(self, handle: Handle[Any], table: str | Mapping[str, Any], wanted: list[tuple[str, Ids]], turn: int) -> None:
        self._pulls.submit(self._worker.pull(wanted, turn), lambda rows: _shaped(table, rows), handle)

    def _start_planned(self, handle: Handle[dict[str, Rows]], ids: Callable[[], Mapping[str, Ids]], turn: int) -> None:
        self._pulls.submit(_pull_planned(self._worker, ids, turn), handle=handle)

    @overload
    def push(self, table: str, ids: Any, gradients: Any) -> None: ...
    @overload
    def push(self, table: Gradients) -> None: ...

    def push(self, table: str | Gradients, ids: Any = None, gradients: Any = None) -> None:
        """Push float32[n, dim] for ids[n], or {table: (ids, gradients)}; repeats are summed; returns when every server acknowledged.

        In synchronous mode it takes effect at the end of the step; with backup workers, a push to a step that is over does not count, and
        `late_steps` says so. Non-finite gradients are refused, and nothing of the push is applied.
        One that is not acknowledged everywhere in time raises Unreachable and keeps its name: see `retry_push`.
        """
        given = self._given("push", table, ids, gradients)
        self._write(lambda: self._worker.push(given))

    def push_async(self, table: str | Gradients, ids: Any = None, gradients: Any = None) -> Handle[None]:
        """Queue a push of the step at work now; do not change the arrays before its handle is done. `end_step` waits for it."""
        given = self._given("push", table, ids, gradients)
        self._capture.mark()
        return self._pushes.submit(self._worker.push(given))

    def retry_push(self) -> None:
        """Send a push that was not acknowledged everywhere again, under its name, so that it counts once."""
        self._connection.check_open("push")
        self._capture.mark()
        self._pushes.run(self._worker.retry_push())

    def assign(self, table: str | Gradients, ids: Any = None, rows: Any = None, *, only_absent: bool = False) -> None:
        """Set rows float32[n, dim], at once and in every mode: pretrained rows, dense start values. `only_absent`: rows that exist stay.

        It is outside the steps: in synchronous mode assign before the others read, with a barrier between.
        """
        given = self._given("assign rows", table, ids, rows)
        if not only_absent and self.replay.leaves_out("client.assign"):
            return
        self._write(lambda: self._worker.assign(given, only_absent))

    def restore(self, table: str, records: Records) -> None:
        """Set rows with their state columns, at once and in every mode, as `export_records` gave them; the ids must not repeat.

        The table must have an optimizer of the same kind: InvalidRequest says how its state columns lie where they differ.
        """
        self._connection.check_open("restore rows")
        ids, rows = as_pair(self._connection.spec(table), records.ids, records.rows)
        packed, columns = pack(rows, records.state)
        if self.replay.leaves_out("client.restore"):
            return
        self._write(lambda: self._worker.restore(table, ids, packed, columns))

    def clear(self, table: str) -> None:
        """Drop all rows of a table, with their state, at once and in every mode; afterwards its ids read as their initial values."""
        self._connection.check_open("clear a table")
        self._connection.know(table)
        if not self.replay.leaves_out("client.clear"):
            self._write(lambda: self._worker.clear(table))

    def _write(self, operation: Callable[[], Operation[None]]) -> None:
        """Write something once what is queued has been written, and what ended before it is known."""
        self._capture.mark()
        self._pushes.wait()
        self._pushes.run(operation())

    # --- steps -----------------------------------------------------------------------------------------------------------------

    def end_step(self, resume: bytes = b"") -> None:
        """Finish the step: `clock` goes up by one, or, after a late one in a job with backup workers, to the newest step.

        Waits for the pulls and pushes that are queued; a push that was not acknowledged everywhere raises UnfinishedPush.
        `resume`: what this worker needs to go on after this step, at most 64 KiB; `connect(resume=True)` gives it back after a restart.
        """
        self._connection.check_open("end a step")
        check_resume(resume)
        self._capture.mark()
        self.replay.end_step()
        self._end_step(resume, is_held=self._capture.is_on and not resume)

    def _end_step(self, resume: bytes, is_held: bool) -> None:
        if self._worker.has_synchronous_tables:
            self._pulls.wait()  # a pull reads this step: once it is over, the servers may go on to the next one
        self._pushes.raise_unheard()
        self._pushes.run(self._worker.end_step(resume, is_held))
        self._late_log.ended()
        if is_held:
            self._capture.hold(self._announce_end)
        else:
            self._connection.later_pulls.start_those_that_may()

    def _announce_end(self) -> None:
        try:
            self._pushes.run(self._worker.announce_end())
        finally:  # where some server could not be told, the pulls tell it
            self._connection.later_pulls.start_those_that_may()

    def end_step_async(self) -> Handle[None]:
        """Finish the step though its pushes are still queued: `clock` goes up at once, servers hear of it once all are acknowledged.

        For jobs without synchronous tables; InvalidRequest elsewhere. Steps may end so one behind the other: the servers hear of each by
        itself, in their order. The handle's result raises UnfinishedPush where a queued push is not acknowledged everywhere; `retry_push`
        then sends it again, and tells the servers of all steps that have ended. Until the handle is done, what this worker reads may lack
        what it has pushed.
        """
        self._connection.check_open("end a step")
        if self._worker.has_synchronous_tables:
            want = "end_step(): the next step of a synchronous table waits for this one's pushes"
            raise InvalidRequest("end_step_async", "called in a job with synchronous tables", want)
        self._capture.mark()
        self.replay.end_step()
        ended = self._worker.end_step_now()
        if self._capture.is_on:
            handle: Handle[None] = Handle(Future(), self._capture.mark_here)
            self._capture.hold(lambda: self._announce_end_async(handle))
        else:
            handle = self._pushes.submit(ended)
            self._connection.later_pulls.start_those_that_may()
        return handle

    def _announce_end_async(self, handle: Handle[None]) -> None:
        self._pushes.submit(self._worker.announce_end(), handle=handle)
        self._connection.later_pulls.start_those_that_may()

    def provide_resume(self, provider: Provider) -> None:
        """Let `provider` say after each step what this worker needs to go on there, at most 64 KiB (R15).

        It is called in the thread that trains, when the loop asks for its next batch: by `mark`, which ps.prefetch and session.steps()
        call, else by the next call that talks to the servers. Until then they do not hear that the step is over. What it raises, that call
        raises; it must not read from the servers.
        """
        self._connection.check_open("capture what it resumes from")
        if self.rank is None:
            raise ObserverCannot("resume")
        self._capture.provide(provider)

    def mark(self) -> None:
        """Say that all is done that belongs to the step which ended last: what this worker resumes from is captured now.

        Does nothing where that was done, or where nobody provides it.
        """
        self._capture.mark()

    def mark_again(self) -> None:
        """Say once more what this worker resumes from after the step that ended last, where that has changed since `mark`."""
        self._capture.mark_again()

    def mark_later(self) -> None:
        """Do so with the next call that talks to the servers."""
        self._capture.mark_later()

    def flush(self) -> None:
        """Wait until every finished step of this worker is in the rows (of synchronous tables: until the other ranks finished it too)."""
        self._connection.check_open("flush")
        self._capture.mark()
        self._pushes.raise_unheard()
        self._pushes.run(self._worker.flush())

    def barrier(self) -> None:
        """Wait until every rank that has not left is at its barrier; BarrierTimeout names those that are not."""
        self._connection.check_open("wait at a barrier")
        self._meeting.wait()

    def agree_async(self, value: int, number: int | None = None) -> Handle[int]:
        """Queue a barrier to which this rank brings `value`; the handle's result is the least that a rank which has not left brought.

        Barriers meet in the order in which each rank asks for them: all ranks must ask for the same ones. `number`: that of one which the
        worker before this one asked for, and which is asked for again.
        """
        self._connection.check_open("agree")
        return self._meeting.agree_async(value, number)

    @property
    def barriers(self) -> BarriersAsked:
        """Which barriers this rank has asked for, those included that ps.save and ps.prefetch agree at, as its resume state has it."""
        return self._meeting.asked

    @property
    def replay(self) -> Replay:
        """What of the script's calls is done already."""
        return self._meeting.replay

    def follow(self, replay: Replay, asked: BarriersAsked | None = None) -> None:
        """Leave out what `replay` says that the worker before this one did, and go on with the barriers that it asked for."""
        self._meeting.follow(replay, asked)

    def checkpoint(self, path: str | PathLike[str] | None = None, *, full: bool = False) -> CheckpointTaken:
        """Have a checkpoint written that has every step which this client has finished; return where it lies, once it is complete.

        It is of all tables and all ranks. Training goes on meanwhile; with synchronous tables it waits for the other ranks to finish the
        same steps, and StalenessTimeout names the slowest after wait_timeout_s, in which it must be written too.

        path   a folder, or a URL such as s3://bucket/prefix, that every server and the coordinator reach; by default the one at which the
               cluster was told to keep checkpoints.
        full   write every row. By default only those that changed since the last one at the cluster's own root, elsewhere all.

        Raises CheckpointFailed, which names who failed and why: the checkpoint before it stands.
        """
        self._connection.check_open("take a checkpoint")
        root = absolute_root(path)
        self._capture.mark()
        self._pushes.raise_unheard()
        return self._pushes.run(self._worker.checkpoint(root, full))

    # --- looking -----------------------------------------------------------------------------------------------------------------

    def export(self, table: str) -> tuple[Ids, Rows]:
        """Return every row held: ids uint64[n], ascending, and rows float32[n, dim], as of one instant of each server."""
        parts = list(self.export_iter(table))
        return join_parts(parts, self._worker.tables[table].dim)

    def export_iter(self, table: str) -> Iterator[tuple[Ids, Rows]]:
        """Yield every row held in parts of some MiB, ids ascending over all parts, as of the instant of the first."""
        return rows_in_parts(self._connection, table)

    def export_records(self, table: str) -> Iterator[Records]:
        """Yield every row held with its state columns, otherwise as `export_iter`."""
        return records_in_parts(self._connection, table)

    def stats(self) -> dict[str, Stats]:
        """Return each server's numbers, and its tables'."""
        self._connection.check_open("ask for stats")
        return self._connection.run(self._worker.stats())

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish a step that has pushes, leave the job and wait for the last fold; a second time does nothing."""
        if self._connection.is_closed:
            return
        try:
            self._capture.mark()
            self._pulls.wait()
            self._pushes.raise_unheard()
            if self._capture.is_on and self._worker.has_pushed:
                self._end_step(b"", is_held=True)
                self._capture.mark()
            if self.rank is not None:
                self._connection.run(self._worker.leave())
        finally:
            self._connection.disconnect()

    def disconnect(self) -> None:
        """Close the connections at once, neither finishing the step nor leaving; after close(), or a second time, does nothing."""
        if not self._connection.is_closed:
            self._connection.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.disconnect()

    # --- from the user's arrays ------------------------------------------------------------------------------------------------

    def _wanted(self, table: str | Mapping[str, Any], ids: Any) -> list[tuple[str, Ids]]:
        self._connection.check_open("pull")
        asked = by_table(table, ids)
        self._connection.know(*asked)
        return ids_by_table(asked)

    def _given(self, action: str, table: str | Gradients, ids: Any, rows: Any) -> list[tuple[str, Ids, Rows]]:
        self._connection.check_open(action)
        pairs = by_table(table, (ids, rows))
        self._connection.know(*pairs)
        return rows_by_table(pairs, self._worker.tables)


def _pull_planned(worker: Worker, ids: Callable[[], Mapping[str, Ids]], turn: int) -> Operation[dict[str, Rows]]:
    """Read the ids' rows, by table; nothing is asked where there are none."""
    wanted = ids()
    rows = (yield from worker.pull([*wanted.items()], turn)) if wanted else []
    return dict(zip(wanted, rows, strict=True))


def _shaped(table: str | Mapping[str, Any], rows: list[Rows]) -> Any:
    return dict(zip(table, rows, strict=True)) if isinstance(table, Mapping) else rows[0]

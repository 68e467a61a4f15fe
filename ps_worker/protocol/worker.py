"""The operations of one worker, each a generator of effects: what `client.py`, exports and the simulator run."""

from collections.abc import Mapping, Sequence
from typing import Any

from ps_proto.requests import CheckpointTaken, ColumnLayout, Fence, GetStats, Ids, Rows
from ps_proto.values import Mode, Optimizer, TableSpec
from ps_worker.asking import Operation, Patience, World
from ps_worker.protocol.barrier_count import BarriersAsked
from ps_worker.protocol.key_lists import IDS_MIN, KeyLists
from ps_worker.protocol.membership import Membership
from ps_worker.protocol.peers import Peers
from ps_worker.protocol.reading import Reader
from ps_worker.protocol.steps import Steps
from ps_worker.protocol.tables import Tables
from ps_worker.protocol.view import View
from ps_worker.protocol.writing import Writer
from ps_worker.router import Wanted
from sharding.shard_map import ShardMap


class Worker:
    """One client's part in the cluster. Arguments are taken when an operation is created, so that it may wait in a queue.

    `coordinator`: its address. `list_ids_min`: `KeyLists`' ids_min. Operations that need a rank raise ObserverCannot before there is one.
    """

    def __init__(self, coordinator: str, world: World, patience: Patience | None = None, list_ids_min: int = IDS_MIN) -> None:
        self._view = View()
        self._peers = Peers(coordinator, self._view, world, patience or Patience())
        self._membership = Membership(self._view, self._peers, world.exclusive)
        self._tables = Tables(self._view, self._peers)
        self._steps = Steps(self._view, self._peers, self._tables, world.exclusive)
        self._key_lists = KeyLists(world.exclusive, list_ids_min)
        self._reader = Reader(self._view, self._peers, self._tables, self._steps, self._key_lists)
        self._writer = Writer(self._view, self._peers, self._tables, self._steps, self._key_lists, world.lend)

    # --- what it knows -----------------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The rank, or OBSERVER."""
        return self._view.rank

    @property
    def incarnation(self) -> int:
        """How often the rank has been taken, this worker included; 0 for an observer."""
        return self._view.incarnation

    @property
    def clock(self) -> int:
        """The number of the step at work."""
        return self._view.clock

    @property
    def turn(self) -> int:
        """The clock less the steps that this worker left out because it was late (R9): each `end_step` adds one."""
        return self._view.turn

    @property
    def backup_workers(self) -> int:
        """How many ranks a synchronous step of the job does without."""
        return self._view.backup_workers

    @property
    def late_steps(self) -> int:
        """How many steps of this worker ended late: nothing that it pushed in them to synchronous tables counts (R9)."""
        return self._steps.late_steps

    @property
    def world_size(self) -> int:
        """The job's number of ranks; 0 where there is no job."""
        return self._view.world_size

    @property
    def mode(self) -> Mode | None:
        """The job's mode; None where there is no job."""
        return self._view.mode

    @property
    def resume(self) -> bytes:
        """What this worker's predecessor left with the last step that it finished; empty where it left nothing."""
        return self._view.resume

    @property
    def is_resumed(self) -> bool:
        """Whether this worker goes on behind a step that its predecessor finished."""
        return self._view.is_resumed

    @property
    def lease_s(self) -> float:
        """Within how many seconds the coordinator wants to hear from this worker, each time; 0: never."""
        return self._view.lease_s

    @property
    def shard_map(self) -> ShardMap | None:
        """The newest map that it has seen; None before it has connected."""
        return self._view.shard_map

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        """The tables that it knows, as they were created."""
        return self._view.tables

    @property
    def has_synchronous_tables(self) -> bool:
        """Whether any table that this worker knows is synchronous."""
        return self._view.has_synchronous_tables

    def fence(self) -> Fence:
        """Return what a request of the step at work carries."""
        return self._view.fence()

    # --- connecting, tables ------------------------------------------------------------------------------------------------------

    def observe(self) -> Operation[None]:
        """Learn the cluster, once its servers are there."""
        return self._membership.observe()

    def join(
        self,
        rank: int,
        world_size: int,
        mode: Mode | None,
        nonce: int,
        resume: bool = False,
        on_lost_worker: str = "",
        name: str = "",
        job: int = 0,
    ) -> Operation[None]:
        """Take a rank in the job; OBSERVER: the one that `name` holds, or one that the coordinator chooses.

        nonce   a random uint64, so that a repeated message does not fence the worker that it made.
        resume  go on where the rank was, and not above every step that is known of it (R15).     on_lost_worker, job  as in JoinJob.
        """
        return self._membership.join(rank, world_size, mode, nonce, resume, on_lost_worker, name, job)

    def create_table(self, spec: TableSpec) -> Operation[TableSpec]:
        """Create the table, or check that the one that exists is the same; return it as it stands, with the optimizer asked for."""
        return self._tables.create(spec)

    def set_optimizer(self, table: str, optimizer: Optimizer) -> None:
        """Use these hyperparameters from this step on; the table must be known and the kind its own."""
        self._tables.set_optimizer(table, optimizer)

    def knows(self, tables: Sequence[str]) -> bool:
        """Return whether there is nothing to ask to know the specs of these tables."""
        return self._tables.knows(tables)

    def know(self, tables: Sequence[str]) -> Operation[None]:
        """Make sure that the specs of these tables are known; UnknownTable where one does not exist."""
        return self._tables.know(tables)

    # --- reading -----------------------------------------------------------------------------------------------------------------

    def pull(self, tables: Sequence[tuple[str, Ids]], turn: int | None = None) -> Operation[list[Rows]]:
        """Read rows as the step of `turn`, by default the one at work, may see them: float32[n, dim] for each (table, ids[n]), repeats too.

        The first one of a step also tells every server that the step before it is finished, and goes on when all have answered (R4, R5).
        """
        return self._reader.pull([Wanted.to_read(table, ids) for table, ids in tables], self.turn if turn is None else turn)

    def may_ask_ahead(self, tables: Sequence[str], turn: int) -> bool:
        """Return whether a pull for `turn` could be answered before this worker has finished the steps up to it."""
        return self._reader.may_ask_ahead(tables, turn)

    def open_exports(self, table: str, with_state: bool = False) -> Operation[dict[str, Any]]:
        """Open a snapshot of the table on every server, synchronous tables at one and the same step (R19); `with_state`: of records."""
        return self._reader.open_exports(table, with_state)

    def ask_servers(self, bodies: Mapping[str, Any]) -> Operation[dict[str, Any]]:
        """Ask some servers one request each."""
        return self._peers.ask(bodies)

    def stats(self) -> Operation[dict[str, Any]]:
        """Ask every server for its numbers."""
        return self._peers.under_newest_map(lambda: self._peers.ask_all(GetStats(self.fence())))

    # --- writing -----------------------------------------------------------------------------------------------------------------

    def push(self, tables: Sequence[tuple[str, Ids, Rows]]) -> Operation[None]:
        """Push gradients, float32[n, dim] for ids uint64[n], repeats summed in the caller's order; done when every server acknowledged."""
        return self._writer.push(tables)

    def assign(self, tables: Sequence[tuple[str, Ids, Rows]], only_absent: bool) -> Operation[None]:
        """Set rows, at once and in every mode; ids must not repeat. `only_absent`: rows that exist stay."""
        return self._writer.assign(tables, only_absent)

    def restore(self, table: str, ids: Ids, records: Rows, columns: tuple[ColumnLayout, ...]) -> Operation[None]:
        """Set whole records float32[n, width], row and state columns, at once and in every mode; ids must not repeat."""
        return self._writer.restore(table, ids, records, columns)

    def clear(self, table: str) -> Operation[None]:
        """Drop all rows of a table on every server, at once and in every mode."""
        return self._writer.clear(table)

    def retry_push(self) -> Operation[None]:
        """Send the push that was not acknowledged everywhere again, under its name, and tell the servers of a step that it held up."""
        self._view.check_not_over()
        yield from self._writer.retry()
        yield from self._announce_end(self._view.clock - 1)

    # --- steps -------------------------------------------------------------------------------------------------------------------

    @property
    def has_pushed(self) -> bool:
        """Whether anything was pushed in the step at work: then leaving finishes it."""
        return self._steps.has_pushed

    def end_step(self, resume: bytes = b"", is_held: bool = False) -> Operation[None]:
        """Finish the step: the clock goes up by one, or to the newest step where this one is late (R9).

        With synchronous tables the servers hear it with the next step's first request; otherwise at once (R4).
        `resume`: what the worker needs to go on after it. `is_held`: nobody hears of it before `attach_resume` and `announce_end`.
        """
        self._view.check_ranked("end a step")
        self._writer.check_all_acknowledged()
        yield from self._steps.end(resume, is_held)

    def end_step_now(self) -> Operation[None]:
        """Finish the step, whose clock goes up when this is called; run, it tells the servers, or raises UnfinishedPush.

        Several may be under way, and are run in their order. Not in a job with synchronous tables. `attach_resume` may come before it is
        run, and `announce_end` then takes its place.
        """
        self._view.check_ranked("end a step")
        self._steps.end_now()
        return self.announce_end()

    def say_again(self, resume: bytes) -> Operation[None]:
        """Tell every server what the worker needs to go on after the step before, once more: it knows better now."""
        self._writer.check_all_acknowledged()
        yield from self._steps.say_again(resume)

    def attach_resume(self, state: bytes) -> None:
        """Let the end of the step before, of which nobody has heard, carry what this worker needs to go on after it (R15)."""
        self._steps.attach(state)

    def announce_end(self) -> Operation[None]:
        """Tell every server of the steps up to the one before, of which nobody might hear until now; or raise UnfinishedPush.

        Up to which step is settled when this is called. With synchronous tables the next step's first request tells of the last.
        """
        return self._announce_end(self._view.clock - 1)

    def _announce_end(self, through: int) -> Operation[None]:
        self._writer.check_all_acknowledged()
        yield from self._steps.announce_end(through)

    def announce(self) -> Operation[None]:
        """Tell every server what it has yet to hear about the step before; wait for nobody."""
        return self._steps.announce(waits=False)

    def flush(self) -> Operation[None]:
        """Wait until every finished step of this worker is folded on every server."""
        self._view.check_ranked("flush")
        self._writer.check_all_acknowledged()
        yield from self._steps.flush()

    def renew(self) -> Operation[None]:
        """Renew the lease, in one attempt, and take what the coordinator orders along with the next step that ends (R8).

        RolledBack or StaleIncarnation, which every later operation raises too, where this worker's part is over.
        """
        renewed = yield from self._membership.renew()
        self._steps.take_orders(renewed.orders)

    def leave(self) -> Operation[None]:
        """Finish a step that has pushes, leave the roster after it, and wait for its fold (R6, R14)."""
        self._writer.check_all_acknowledged()
        yield from self._steps.leave()
        yield from self._membership.leave()

    def checkpoint(self, path: str, full: bool) -> Operation[CheckpointTaken]:
        """Have a checkpoint written, under the root `path`, "": the cluster's own, that has every step which this worker has finished."""
        if not self._view.is_observer:
            self._writer.check_all_acknowledged()
            yield from self._steps.announce(waits=False)
        return (yield from self._membership.checkpoint(path, full))

    def barrier(self, value: int = 0, number: int | None = None, turn: int = 0) -> Operation[int]:
        """Wait until every rank that has not left is at its barrier; return the least value that one of them brought.

        Barriers are numbered in the order in which each rank asks for them. `number`: one that was asked for before is asked for again.
        `turn`: the clock, in the turn of a loop whose step is made: who is started again behind it does not come there. Else 0.
        """
        return self._membership.barrier(value, number, turn)

    def barriers_behind(self, turn: int) -> BarriersAsked:
        """Return which barriers this rank has asked for, for a worker that goes on behind this turn of its loop; 0: not behind any."""
        return self._membership.barriers_behind(turn)

    def resume_barriers(self, asked: BarriersAsked) -> Operation[None]:
        """Go on as the worker before this one would have, which had asked for these barriers."""
        return self._membership.resume_barriers(asked)

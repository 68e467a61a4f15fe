"""The server's part of checkpoints: when it is taken, how far it is written, and on what an increment may stand (R8, R19).

    none ──begin──> armed ──its step──> taken ──the task──> written
                      │                   └───────────────> failed
                      └──a later step──> passed

A server agrees with no other beforehand. It takes its part in the turn in which its step becomes the boundary; whether all parts are of one
step is looked at afterwards, by whoever makes them a checkpoint. One part at a time: the next order, a cancellation or a rollback ends
the one before it.

Increments: a part that `tracks` may be the base of the next one. Whether its checkpoint became complete is told by that next order, whose
`base` names it or does not. So a lost answer, a part that failed and a coordinator that was started again need no word of their own.
"""

from collections.abc import Iterator

from ps_proto.errors import InvalidRequest, ParameterServerError
from ps_proto.orders import AskCheckpoint, BeginCheckpoint, CancelCheckpoint, CheckpointState, PartWritten, Source
from ps_proto.requests import OBSERVER, Done
from ps_server.events import Work
from ps_server.shard.catalog import Catalog
from ps_server.shard.counters import Counters
from ps_server.shard.membership import Membership
from ps_server.shard.steps import Steps
from ps_server.shard.taken_part import TakenPart
from ps_server.shard.window import Window
from ps_server.tasks import OpenPart, PartHead, Piece, ReadPiece, SavePart


class Checkpointer:
    """Turns of the orders about checkpoints, and of what the task asks that writes a part."""

    def __init__(
        self, membership: Membership, catalog: Catalog, steps: Steps, window: Window, counters: Counters, numbers: Iterator[int]
    ) -> None:
        """`numbers`: of this server's tasks."""
        self._membership = membership
        self._catalog = catalog
        self._steps = steps
        self._window = window
        self._counters = counters
        self._numbers = numbers
        self._order: BeginCheckpoint | None = None  # the one at work, or the last one
        self._phase = "none"
        self._part: PartWritten | None = None
        self._why = ""
        self._taken: TakenPart | None = None  # from its instant until it is written, or is over
        self._task: int | None = None  # the number of the task that writes it
        self._tasks: dict[int, int] = {}  # those that have not ended, also of parts that are over -> the number of their checkpoint
        self._work: list[Work] = []
        self._over = -1  # the greatest number of which no part is taken any more: a cluster's numbers grow, whatever the root
        self._committed: Source | None = None  # the checkpoint that the next increment stands on
        self._pending: Source | None = None  # the last tracked one, of which nobody has said whether it is complete

    # --- orders --------------------------------------------------------------------------------------------------------------

    def begin(self, request: int, order: BeginCheckpoint, now_s: float) -> CheckpointState:
        """Take the part at the order's boundary; an order that is given again changes nothing."""
        self._membership.check_order(order.term, order.cluster)
        self._membership.check_ready()
        if self._is_known(order):
            return self._state(order.number)
        if order.number <= self._over:
            why = f"Checkpoint {order.number} of {order.root} is over on {self._membership.server}: a later one was begun there."
            return CheckpointState(order.number, "failed", self._steps.step, OBSERVER, why=why)
        self._end()
        self._over = order.number - 1
        if order.tracks:
            self._settle(is_complete=self._pending is not None and self._pending == _base(order))
        self._order, self._phase = order, "armed"
        self.look()
        return self._state(order.number)

    def _is_known(self, order: BeginCheckpoint) -> bool:
        """Return whether this order is at work; one that names another boundary counts as long as nothing was taken."""
        mine = self._order
        if mine is None or (mine.root, mine.number) != (order.root, order.number):
            return False
        return self._phase not in ("armed", "passed") or mine.boundary == order.boundary

    def ask(self, request: int, order: AskCheckpoint, now_s: float) -> CheckpointState:
        """Say how far the part is."""
        self._membership.check_order(order.term, order.cluster)
        return self._state(order.number)

    def _state(self, number: int) -> CheckpointState:
        if self._order is None or self._order.number != number:
            return CheckpointState(number, "none", self._steps.step, OBSERVER)
        clocks = self._steps.clocks
        slowest = clocks.slowest() if self._phase == "armed" and clocks.present else OBSERVER
        return CheckpointState(number, self._phase, self._steps.step, slowest, self._part, self._why)

    def cancel(self, request: int, order: CancelCheckpoint, now_s: float) -> Done:
        """Forget the part; its checkpoint will not be complete."""
        self._membership.check_order(order.term, order.cluster)
        if self._order is not None and self._order.number == order.number:
            self._end()
        return Done(self._steps.step)

    def clear(self) -> None:
        """Forget everything: the rows are gone. A part that is being written ends with its task's next question."""
        if self._order is not None:
            self._over = self._order.number
        self._end()
        self._committed = self._pending = None

    def stand_on(self, source: Source) -> None:
        """Take this checkpoint, of which all tables were loaded, for the base of the next increment."""
        self._committed = source
        self._over = max(self._over, source.number)

    # --- the instant ---------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take the part if its step has come. Called after every fold, of which a turn may have several, and after every turn."""
        if self._phase != "armed":
            return
        assert self._order is not None
        boundary, step = self._order.boundary, self._steps.step
        if boundary < 0 or boundary == step:
            self._take(self._order)
        elif boundary < step:
            self._phase = "passed"

    def _take(self, order: BeginCheckpoint) -> None:
        for failure in self._catalog.failures.values():
            self._fail(str(failure))
            return
        incremental = not order.full and self._committed is not None and self._committed == _base(order)
        try:
            self._taken = TakenPart(
                self._membership, self._catalog, self._steps, self._window, self._counters, incremental and order.tracks, order.tracks
            )
        except MemoryError as error:  # whose turn it is, is not to fail for it: it may be a worker's
            self._fail(str(error))
            return
        self._phase = "taken"
        if order.tracks:
            self._pending = Source(order.root, order.number)
        self._write(order)

    def _write(self, order: BeginCheckpoint) -> None:
        """Let a task write what was taken; not beside another one of the same number, whose files have the same names."""
        if order.number not in self._tasks.values():
            self._task = next(self._numbers)
            self._tasks[self._task] = order.number
            self._work.append(Work(self._task, SavePart(order.root, order.number, order.shard, self._membership.server)))

    def _end(self) -> None:
        """Leave the order at work. A part that is written stays pending; of one that is not, the next increment has to have all."""
        if self._taken is not None:
            self._close()
            if self._order is not None and self._order.tracks:
                self._settle(is_complete=False)
        self._order, self._phase, self._part, self._why = None, "none", None, ""

    def _fail(self, why: str) -> None:
        order = self._order
        self._end()
        self._order, self._phase, self._why = order, "failed", why

    def _close(self) -> None:
        if self._taken is not None:
            self._taken.close()
        self._taken, self._task = None, None

    def _settle(self, is_complete: bool) -> None:
        """Take what is known of the last tracked checkpoint."""
        if self._pending is None:
            return
        for table in self._catalog.tables.values():
            table.settle_save(is_complete)
        self._committed, self._pending = self._pending if is_complete else self._committed, None

    # --- the task ------------------------------------------------------------------------------------------------------------

    def take_work(self) -> list[Work]:
        """Return the tasks to be done, each once."""
        work, self._work = self._work, []
        return work

    def on_worked(self, number: int, outcome: object | ParameterServerError) -> bool:
        """Take the end of a task; return False where it is none of these. That of a part that is over changes nothing."""
        if number not in self._tasks:
            return False
        del self._tasks[number]
        if number == self._task:
            if isinstance(outcome, PartWritten):
                self._close()
                self._phase, self._part = "written", outcome
            else:
                self._fail(str(outcome))
        elif self._taken is not None and self._task is None:
            assert self._order is not None
            self._write(self._order)
        return True

    def open_part(self, request: int, asked: OpenPart, now_s: float) -> PartHead:
        """Return what was taken, but its rows."""
        return self._opened(asked.number).head

    def read_piece(self, request: int, asked: ReadPiece, now_s: float) -> Piece | Done:
        """Return the next rows of a table."""
        return self._opened(asked.number).read(asked.table, asked.bytes_max) or Done(self._steps.step)

    def _opened(self, number: int) -> TakenPart:
        """Return the part that is being written, if it is of this checkpoint; else whoever asks writes one that is over."""
        if self._taken is None or self._task is None or self._tasks[self._task] != number:
            raise InvalidRequest("checkpoint", f"{number}, whose part is over", "one whose part is being written")
        return self._taken


def _base(order: BeginCheckpoint) -> Source:
    return Source(order.root, order.base)

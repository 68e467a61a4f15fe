"""A worker's steps: the names of what it writes in one, and who has yet to hear that the last one is finished (R2, R4, R6)."""

from contextlib import AbstractContextManager
from dataclasses import replace

from ps_proto.requests import Finish, Finished, Hyperparameters, StepOrder
from ps_worker.asking import Operation
from ps_worker.protocol.lateness import Lateness
from ps_worker.protocol.peers import Peers
from ps_worker.protocol.tables import Tables
from ps_worker.protocol.view import View


class Steps:
    """Counts the clock up. Whoever ends a step, flushes or leaves has checked that all of the step is acknowledged."""

    def __init__(self, view: View, peers: Peers, tables: Tables, exclusive: AbstractContextManager[object]) -> None:
        self._view = view
        self._peers = peers
        self._tables = tables
        self._seq = 0
        self._lateness = Lateness(view)
        # A pull may run beside a push or another pull: each look at the step at work, with what follows from it, is one.
        self._exclusive = exclusive
        self._finished: Finished | None = None  # of clock - 1, until every server has acknowledged it
        # Of clock - 1, while nobody may hear of it: its pushes are under way, or its resume state is to come.
        self._ended: Finished | None = None
        self._resume = b""  # of the last step that has one
        self._orders: tuple[StepOrder, ...] = ()  # for the next step that ends
        self._last_order = -1  # the highest number of those that a step's end has taken along

    def take_name(self, is_push: bool) -> tuple[int, int]:
        """Return the next unused name of the step, (clock, seq). `is_push`: it makes the step one that leaving has to finish."""
        with self._exclusive:
            self._seq += 1
            self._lateness.has_pushed |= is_push
            return self._view.clock, self._seq

    @property
    def has_pushed(self) -> bool:
        """Whether anything was pushed in the step at work."""
        return self._lateness.has_pushed

    @property
    def late_steps(self) -> int:
        """How many steps ended late."""
        return self._lateness.late_steps

    def take_rows(self, turn: int, clock: int, step: int) -> bool:
        """Return whether the rows of step `step` that a pull for `clock` got may be used in `turn`; else it is to be asked again.

        Without backup workers the two steps are one. With them the worker may be late: see lateness.py (R9).
        """
        with self._exclusive:
            if turn != self._view.turn:
                return True  # read ahead, which synchronous tables are not
            if clock < self._view.clock:
                return False  # another pull has found meanwhile that the step is over
            if step > clock and self._lateness.may_skip():
                self._lateness.skip_to(step)
                # Whoever left steps out counts as having finished them, and would go on from where it is.
                self._seq, self._finished = 0, Finished(step - 1, resume=self._resume)
                return False
            self._lateness.has_read = True
            self._lateness.saw_late(clock, step)
            return True

    def note_pushed(self, clock: int, step: int) -> None:
        """Note the newest step that a server was at when it acknowledged a push for `clock` to synchronous tables."""
        with self._exclusive:
            self._lateness.saw_late(clock, step)

    def end(self, resume: bytes = b"", is_held: bool = False) -> Operation[None]:
        """Finish the step: the clock goes up by one, or to the newest step where this one is late (R9).

        With synchronous tables the servers hear it with the next step's first request; otherwise at once (R4). `is_held`: nobody hears of
        it before `attach` and `announce_end`.
        """
        self._take_ended()
        yield from self.announce()
        wanted = self._tables.of_synchronous()
        with self._exclusive:
            was_late = self._lateness.end_step()
            finished = self._end(() if was_late else wanted, resume)
            if is_held:
                self._ended = finished
            else:
                self._finished = finished
        if not is_held and not self._view.has_synchronous_tables:
            yield from self.announce()

    def end_now(self) -> Finished:
        """Count the clock up though some of the step may be unacknowledged; `announce_end` is left to do. Not with synchronous tables."""
        with self._exclusive:
            self._lateness.end_step()
            self._ended = self._end()
            return self._ended

    def _end(self, hyperparameters: tuple[Hyperparameters, ...] = (), resume: bytes = b"") -> Finished:
        """Return the fact of the step that has just ended, with the orders that wait for one (R8); called with the lock."""
        self._seq = 0
        orders, self._orders = self._orders, ()
        self._last_order = max([self._last_order, *[order.number for order in orders]])
        self._resume = resume
        return Finished(self._view.clock - 1, hyperparameters, resume, orders)

    def take_orders(self, orders: tuple[StepOrder, ...]) -> None:
        """Let the next step that ends take these along, unless one before has: until they are followed they come again and again (R8)."""
        with self._exclusive:
            self._orders = tuple([order for order in orders if order.number > self._last_order])

    def attach(self, resume: bytes) -> None:
        """Take what the worker needs to go on after the step that ended last, and of which nobody has heard."""
        with self._exclusive:
            self._resume = resume
            if self._ended is not None:
                self._ended = replace(self._ended, resume=resume)

    def say_again(self, resume: bytes) -> Operation[None]:
        """Let all servers know what the worker needs to go on after the step before, of which they may have heard (R4)."""
        with self._exclusive:
            self._resume = resume
            known = self._finished or Finished(self._view.clock - 1)
            self._finished = replace(known, resume=resume)
        yield from self.announce(waits=False)

    @property
    def ended(self) -> Finished | None:
        """The step before, where nobody may hear of it yet."""
        return self._ended

    def announce_end(self, ended: Finished | None = None) -> Operation[None]:
        """Tell every server that the step of which nobody might hear yet is finished: the newest or, if it is that still, `ended`.

        With synchronous tables the next step's first request does.
        """
        if self._take_ended(ended) and not self._view.has_synchronous_tables:
            yield from self.announce()

    def _take_ended(self, ended: Finished | None = None) -> bool:
        """Let the servers hear of the step before, if it is `ended` where that is given; return whether they might not until now.

        At once: the next step may end meanwhile, whose pushes are under way.
        """
        with self._exclusive:
            if self._ended is None or ended not in (None, self._ended):
                return False
            self._finished, self._ended = self._ended, None
            return True

    @property
    def unheard(self) -> Finished | None:
        """The step before, where some server has yet to hear of it: whoever tells all of them says so by `announced`."""
        return self._finished

    def announced(self, finished: Finished | None) -> None:
        """Note that every server has acknowledged it."""
        if self._finished is finished:
            self._finished = None

    def announce(self, waits: bool = True) -> Operation[None]:
        """Tell every server what it has yet to hear about the step before.

        With synchronous tables it waits for the fold, so that a worker that never pulls stages no more than a step ahead of the others;
        `waits` False: for nobody.
        """
        if self._finished is not None:
            waits = waits and self._view.has_synchronous_tables
            yield from self._finish(wait_s=self._peers.wait_s if waits else 0.0)

    def flush(self) -> Operation[None]:
        """Wait until every finished step is folded on every server."""
        self._take_ended()
        yield from self._finish(wait_s=self._peers.wait_s)

    def leave(self) -> Operation[None]:
        """Finish a step that has pushes, leave the roster after it, and wait for its fold (R6, R14)."""
        self._take_ended()
        if self._lateness.has_pushed:
            yield from self.end()
        yield from self._finish(wait_s=self._peers.wait_s, leave=True)

    def _finish(self, wait_s: float, leave: bool = False) -> Operation[None]:
        finished, clock = self._finished, self._view.clock
        yield from self._peers.under_newest_map(lambda: self._peers.ask_all(Finish(self._view.fence(clock), finished, leave, wait_s)))
        self.announced(finished)

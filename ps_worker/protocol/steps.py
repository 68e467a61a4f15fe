"""A worker's steps: the names of what it writes in one, and who has yet to hear that the last one is finished (R2, R4, R6)."""

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import replace

from ps_proto.requests import NEVER, Finish, Finished, Hyperparameters, StepOrder
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
        self._finished: Finished | None = None  # the earliest step of which servers may hear and some has not
        # Those behind it, up to clock - 1. Of the ones after `_may_tell` nobody may hear: their pushes are under way, or their resume state
        # is to come. Each is told by itself, once every server knows of the one before: a gap is an error there.
        self._ended: deque[Finished] = deque()
        self._may_tell = NEVER
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
        self._let_go()
        yield from self.announce()
        wanted = self._tables.of_synchronous()
        with self._exclusive:
            was_late = self._lateness.end_step()
            finished = self._end(() if was_late else wanted, resume)
            if is_held:
                self._ended.append(finished)
            else:
                self._finished = finished
        if not is_held and not self._view.has_synchronous_tables:
            yield from self.announce()

    def end_now(self) -> None:
        """Count the clock up though some of the step may be unacknowledged; `announce_end` is left to do. Not with synchronous tables."""
        with self._exclusive:
            self._lateness.end_step()
            self._ended.append(self._end())

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
            if self._ended:
                self._ended[-1] = replace(self._ended[-1], resume=resume)

    def say_again(self, resume: bytes) -> Operation[None]:
        """Let all servers know what the worker needs to go on after the step before, of which they may have heard (R4)."""
        self._let_go()
        yield from self.announce_earlier()
        with self._exclusive:
            self._resume = resume
            known = self._finished or Finished(self._view.clock - 1)
            self._finished = replace(known, resume=resume)
        yield from self.announce(waits=False)

    def announce_end(self, through: int) -> Operation[None]:
        """Tell every server that the steps up to `through` are finished, of which nobody might hear yet.

        With synchronous tables the next step's first request does.
        """
        self._let_go(through)
        if not self._view.has_synchronous_tables:
            yield from self.announce()

    def _let_go(self, through: int | None = None) -> None:
        """Let the servers hear of the steps up to `through`, by default of all that have ended; further ones may end meanwhile."""
        with self._exclusive:
            self._may_tell = max(self._may_tell, self._view.clock - 1 if through is None else through)

    def next_unheard(self) -> Finished | None:
        """Return the earliest step of which servers may hear and some has not: whoever tells all of them says so by `announced`."""
        with self._exclusive:
            if self._finished is None and self._may_tell_next:
                self._finished = self._ended.popleft()
            return self._finished

    @property
    def _may_tell_next(self) -> bool:
        return bool(self._ended) and self._ended[0].clock <= self._may_tell

    def announced(self, finished: Finished | None) -> None:
        """Note that every server has acknowledged it."""
        if self._finished is finished:
            self._finished = None

    def announce(self, waits: bool = True) -> Operation[None]:
        """Tell every server what it has yet to hear about steps that have ended, and of which it may.

        With synchronous tables it waits for the fold, so that a worker that never pulls stages no more than a step ahead of the others;
        `waits` False: for nobody.
        """
        while self.next_unheard() is not None:
            waits = waits and self._view.has_synchronous_tables
            yield from self._finish(wait_s=self._peers.wait_s if waits else 0.0)

    def announce_before(self, clock: int) -> Operation[None]:
        """Do so for a request of the step `clock`, before which all is acknowledged."""
        self._let_go(clock - 1)
        yield from self.announce()

    def announce_earlier(self) -> Operation[None]:
        """Do so, but for the last of those steps."""
        while self.next_unheard() is not None and self._may_tell_next:
            yield from self._finish(wait_s=0.0)

    def flush(self) -> Operation[None]:
        """Wait until every finished step is folded on every server."""
        self._let_go()
        yield from self.announce_earlier()
        yield from self._finish(wait_s=self._peers.wait_s)

    def leave(self) -> Operation[None]:
        """Finish a step that has pushes, leave the roster after it, and wait for its fold (R6, R14)."""
        self._let_go()
        if self._lateness.has_pushed:
            yield from self.end()
        yield from self.announce_earlier()
        yield from self._finish(wait_s=self._peers.wait_s, leave=True)

    def _finish(self, wait_s: float, leave: bool = False) -> Operation[None]:
        finished, clock = self.next_unheard(), self._view.clock
        yield from self._peers.under_newest_map(lambda: self._peers.ask_all(Finish(self._view.fence(clock), finished, leave, wait_s)))
        self.announced(finished)

"""One pass over a loader, read ahead of the training."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from ps_proto.errors import InvalidRequest
from ps_worker.nn.reading import RowModule
from ps_worker.prefetch.device import moved
from ps_worker.prefetch.ending import Ending, OwnEnd, end_with_shortest, ending_of
from ps_worker.prefetch.fetch import Fetch, client_of
from ps_worker.prefetch.planning import Forward, planned
from ps_worker.prefetch.source import Source, State
from ps_worker.profiling.stopwatch import LOAD, span
from ps_worker.resume.position import OVER, Position
from ps_worker.resume.rngs import rng_states
from ps_worker.session import captured_client, current_session

if TYPE_CHECKING:
    from ps_worker.prefetch.loop import Prefetch

B = TypeVar("B")


@dataclass(frozen=True)
class _Read(Generic[B]):
    """A batch, and its rows on their way; or the error that reading it ended in. `before`: the source's state before it was read."""

    batch: B
    rows: Fetch | None
    before: State | None


@dataclass(frozen=True)
class _Failed:
    error: Exception
    before: State | None


class OnePass(Generic[B]):
    """One pass over the loader. `_queue`: the batch at work, then those read ahead.

    Where its client captures what the script resumes from, a pass with gradients is part of that: see resume/position.py.
    """

    def __init__(self, settings: "Prefetch[B]") -> None:
        self._settings = settings
        self._client = settings.client
        self._source = Source(settings.loader)
        self._queue: deque[_Read[B] | _Failed] = deque()
        self._is_read_out = False
        self._taken = 0
        self._ending: Ending = OwnEnd()
        self._script = captured_client(settings.client) if torch.is_grad_enabled() else None
        self._handed_at: int | None = None  # the clock when the batch at work was handed out, while it is

    def batches(self) -> Iterator[B]:
        """Yield the batches; none of a pass that was over before this script was started again."""
        if not self._begin():
            return
        while self._ending.goes_on(self._taken, bool(self._queue)):
            head = self._queue[0]
            self._ending.look_ahead(len(self._queue) > 1)
            if isinstance(head, _Failed):
                raise head.error
            if head.rows is not None:
                head.rows.expect()
            self._handed_at = None if self._script is None else self._script.clock
            yield head.batch
            if self._script is not None:
                self._script.replay.end_turn(self)
            self._handed_at = None
            self._taken += 1
            if head.rows is not None:
                head.rows.forget()
            self._queue.popleft()
            self._mark()
            self._aim()
            self._read_ahead()

    def end(self) -> None:
        """Let go of all that was read."""
        self.forget()
        if self._script is not None:
            self._script.replay.end_pass(self)

    def _begin(self) -> bool:
        """Read the first batches, or come to where the pass was; return whether there is anything to do."""
        position = None if self._script is None else self._script.replay.begin_pass(self)
        if position == OVER:
            return False
        if position is not None and "begun" in position:
            self._go_on(position)
            return True
        if position is not None:
            self._source.set_now(position["now"])
            self._arrive()
        self._mark()
        self._source.begin(keeps=self._script is not None)
        self._read_ahead()
        self._ending = self._ending_begun()
        return True

    def _go_on(self, position: Position) -> None:
        """Come to where the pass was: the batches that were used are behind, those that were read ahead are again."""
        rngs, now, reads = rng_states(), position["now"], position["reads"]
        self._taken, self._source.begun = position["taken"], position["begun"]
        if reads or not position["is_read_out"]:
            self._source.go_on(self._taken, (reads or [now])[0])
            for state in reads:
                self._source.set_around(state)
                self._read_one()
        if position["is_read_out"]:  # to find it again would draw from the generators again
            self._is_read_out = True
            self._source.set_now(now)
        self._source.set_around({**now, "rngs": rngs})  # unless this is the resume point, these go on as the script has them
        self._arrive()
        self._ending = self._ending_before(position)
        self._read_ahead()

    def _arrive(self) -> None:
        assert self._script is not None, "only such a pass has a position"
        self._script.replay.arrive_now()

    def position(self) -> Position:
        """Return, as plain data, where the pass is: behind the batch at work, where a step was made with it."""
        position: dict[str, Any] = {"now": self._source.state()}
        if self._source.begun is not None:
            reads = [item.before for item in self._unused]
            position |= {"begun": self._source.begun, "taken": self._taken + self.is_used, "reads": reads}
            position |= {"is_read_out": self._is_read_out, "ending": self._ending.state()}
        return position

    @property
    def is_at_end(self) -> bool:
        """Whether it has no batch left, and need not ask other ranks for that."""
        return self._is_read_out and not self._unused and not self._ending.state()

    @property
    def is_used(self) -> bool:
        """Whether a step was made with the batch at work."""
        return self._script is not None and self._handed_at not in (None, self._script.clock)

    @property
    def _unused(self) -> list[_Read[B] | _Failed]:
        """The batches that were read and are yet to be used."""
        return [*self._queue][self.is_used :]

    def _mark(self) -> None:
        """Say that the step before is over, unless this is an evaluation beside it."""
        client = self._script or self._client
        if client is not None and torch.is_grad_enabled():
            client.mark()

    def forget(self) -> None:
        """Let go of all that was read."""
        for item in self._queue:
            if isinstance(item, _Read) and item.rows is not None:
                item.rows.forget()
        self._queue.clear()

    def _ending_begun(self) -> Ending:
        if not self._settings.stops_with_shortest:
            return OwnEnd()
        client = self._client or current_session().client
        if not client.replay.is_over:
            return OwnEnd()  # an evaluation that is made again, alone: what the ranks agreed on in it is long past
        return end_with_shortest(client, self._settings.loader, bool(self._queue))

    def _ending_before(self, position: Position) -> Ending:
        """Return the ending as it was, with its question in flight."""
        client = self._client or current_session().client
        return ending_of(client, position["ending"], has_next=bool(position["reads"]))

    def _aim(self) -> None:
        """Make sure that each batch's rows are for the step that will use them."""
        for position, item in enumerate(self._queue):
            if isinstance(item, _Read) and item.rows is not None:
                item.rows.aim(self._turn(position))

    def _turn(self, position: int) -> int:
        """Return the client's turn in which the batch at this position of the queue is used."""
        assert self._client is not None
        if not torch.is_grad_enabled() or self._client.rank is None:  # no step comes
            return self._client.turn
        each = self._settings.batches_per_step
        return self._client.turn + (self._taken + position) // each - self._taken // each

    def _read_ahead(self) -> None:
        limit = self._ending.limit
        while not self._is_read_out and len(self._queue) <= self._settings.depth:
            if limit is not None and self._taken + len(self._queue) >= limit:
                return
            self._read_one()

    def _read_one(self) -> None:
        """Read a batch and ask for its rows; an error is kept for the batch that it is about."""
        before = None if self._script is None else self._source.state()
        try:
            with span(LOAD):
                batch = self._source.read()
        except StopIteration:
            self._is_read_out = True
            return
        except Exception as error:
            self._fail(error, before)
            return
        try:
            self._queue.append(self._ask_for(batch, before))
        except Exception as error:
            self._fail(error, before)

    def _fail(self, error: Exception, before: State | None) -> None:
        self._queue.append(_Failed(error, before))
        self._is_read_out = True

    def _ask_for(self, batch: B, before: State | None) -> _Read[B]:
        settings = self._settings
        there = batch if settings.device is None else moved(batch, settings.device)
        if settings.ids is None:
            return _Read(there, None, before)
        given = _checked(settings.ids(batch))
        inputs = given if there is batch else settings.ids(there)
        forwards = [Forward.of(module, value, inputs[module]) for module, value in given.items()]
        if not forwards:
            return _Read(there, None, before)
        if self._client is None:
            self._client = client_of([item.module for item in forwards])
        turn = self._turn(len(self._queue))
        is_first = not any([isinstance(item, _Read) and item.rows is not None and item.rows.turn == turn for item in self._queue])
        rows = Fetch(forwards, planned(forwards, self._client), self._client, turn, with_dense=is_first)
        return _Read(there, rows, before)


def _checked(given: Mapping[RowModule, Any]) -> Mapping[RowModule, Any]:
    if not isinstance(given, Mapping) or not all([isinstance(module, RowModule) for module in given]):
        got = type(given).__name__ if not isinstance(given, Mapping) else f"of {', '.join(type(module).__name__ for module in given)}"
        raise InvalidRequest(
            "what `ids` returns", got, "a dict from modules of ps.nn to what their forwards get: {model.bags: batch.sparse}"
        )
    return given

"""The loop over a loader that reads ahead of the training: `ps.prefetch`.

    for batch in ps.prefetch(loader, ids=...):     # here: read batch t + depth; have it planned, and its rows asked for, beside
        ... model(batch) ... optimizer.step()      # its rows were asked for `depth` batches ago

A pull carries the clock of the step that will use its rows. Each batch is taken to be one step, or the `batches_per_step`th part of one, so
the batch after this one is for the next clock; at every batch that is checked against the client's clock, and what was asked for another
step is asked for again:

    a batch without step()              the rows that wait for a clock that did not come are asked for the one at work
    several steps in a batch            the rows of a step gone by are asked for anew
    without gradients (evaluation)      no step comes: all is asked for the step at work
    late, with backup workers           nothing is asked again: a step is known by the client's `turn`, which leaves none out

So such loops get the right rows too, but may wait for them as if nothing had been asked ahead. The loader is read in the user's thread, and
`ids` is called there, so that they may do what any may, and Ctrl-C ends them as ever; a DataLoader with workers reads in its own processes
beside that. What the batch reads is worked out in a thread of the client (planning.py), and its pull begins once it is, and once its
mode lets it; a batch is handed out when it is planned. docs/prefetch.md says what each depth overlaps, and how stale it makes the rows.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch

from ps_proto.errors import InvalidRequest
from ps_worker.client import Client
from ps_worker.nn.reading import RowModule
from ps_worker.prefetch.device import moved
from ps_worker.prefetch.ending import Ending, OwnEnd, end_with_shortest
from ps_worker.prefetch.fetch import Fetch, client_of
from ps_worker.prefetch.planning import Forward, planned
from ps_worker.profiling.stopwatch import LOAD, span
from ps_worker.session import current_session

B = TypeVar("B")
IdsOf = Callable[[B], Mapping[RowModule, Any]]


def prefetch(
    loader: Iterable[B],
    ids: IdsOf[B] | None = None,
    *,
    device: torch.device | str | int | None = None,
    depth: int = 1,
    batches_per_step: int = 1,
    uneven: Literal["leave", "stop"] = "leave",
    client: Client | None = None,
) -> "Prefetch[B]":
    """Iterate over the loader's batches, on `device`, while the rows of the next `depth` of them travel.

        for batch in ps.prefetch(loader, ids=lambda batch: {model.bags: batch.sparse}, device="cuda"):
            loss = criterion(model(batch), batch.label); loss.backward(); optimizer.step(); optimizer.zero_grad()

    ids      batch -> {module of ps.nn: what its forward will get}: a tensor, a dict, or a tuple of arguments. All tables of the modules and
             the dense parameters of their optimizer travel in one pull. It is called again on the moved batch, where there is a `device`.
    batches_per_step   after how many batches the loop calls step(), where it accumulates gradients over several.
    uneven   what happens where ranks have unequally many batches. "leave": a rank's loop ends with its data; once it closes, the others go
             on without it. "stop": all ranks end after as many batches as the shortest has; every rank must then run the loop, and
             end it early, if at all, at the same batch.
    depth    how many batches are read ahead. In asynchronous mode rows lack at most this worker's last `depth` pushes, in the others no
             more than the bound, or none (docs/prefetch.md). More than 1 pays only where a pull takes longer than a step.
    client   by default that of the modules, else the session's.

    It can be iterated again, for another pass. The loader must give each batch arrays of its own. An exception of the loader, of `ids` or
    of a module that plans its forward arrives at the batch that it is about. Raises InvalidRequest; in the loop also what pulls raise, and
    BarrierTimeout with "stop".
    """
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise InvalidRequest("depth", repr(depth), "a whole number from 1: how many batches to read ahead")
    if isinstance(batches_per_step, bool) or not isinstance(batches_per_step, int) or batches_per_step < 1:
        raise InvalidRequest("batches_per_step", repr(batches_per_step), "a whole number from 1: how many batches make a step")
    if uneven not in ("leave", "stop"):
        raise InvalidRequest("uneven", repr(uneven), "'leave' or 'stop'")
    return Prefetch(loader, ids, None if device is None else torch.device(device), depth, batches_per_step, uneven == "stop", client)


@dataclass(frozen=True)
class Prefetch(Generic[B]):
    """See `prefetch`."""

    loader: Iterable[B]
    ids: IdsOf[B] | None
    device: torch.device | None
    depth: int
    batches_per_step: int
    stops_with_shortest: bool
    client: Client | None

    def __len__(self) -> int:
        """Return the loader's own length; with uneven="stop" the pass may be shorter."""
        return len(self.loader)  # type: ignore[arg-type]  # the TypeError of a loader without one says what there is to say

    def __iter__(self) -> Iterator[B]:
        reading = _Pass(self)
        try:
            yield from reading.batches()
        finally:
            reading.forget()


@dataclass(frozen=True)
class _Read(Generic[B]):
    """A batch, and its rows on their way; or the error that reading it ended in."""

    batch: B
    rows: Fetch | None = None


@dataclass(frozen=True)
class _Failed:
    error: Exception


class _Pass(Generic[B]):
    """One pass over the loader. `_queue`: the batch at work, then those read ahead."""

    def __init__(self, settings: Prefetch[B]) -> None:
        self._settings = settings
        self._client = settings.client
        self._source = iter(settings.loader)
        self._queue: deque[_Read[B] | _Failed] = deque()
        self._is_read_out = False
        self._taken = 0

    def batches(self) -> Iterator[B]:
        """Yield the batches."""
        self._read_ahead(None)
        ending = self._ending()
        while ending.goes_on(self._taken, bool(self._queue)):
            head = self._queue[0]
            ending.look_ahead(len(self._queue) > 1)
            if isinstance(head, _Failed):
                raise head.error
            if head.rows is not None:
                head.rows.expect()
            yield head.batch
            self._taken += 1
            if head.rows is not None:
                head.rows.forget()
            self._queue.popleft()
            self._aim()
            self._read_ahead(ending.limit)

    def forget(self) -> None:
        """Let go of all that was read."""
        for item in self._queue:
            if isinstance(item, _Read) and item.rows is not None:
                item.rows.forget()
        self._queue.clear()

    def _ending(self) -> Ending:
        if not self._settings.stops_with_shortest:
            return OwnEnd()
        return end_with_shortest(self._client or current_session().client, self._settings.loader, bool(self._queue))

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

    def _read_ahead(self, limit: int | None) -> None:
        while not self._is_read_out and len(self._queue) <= self._settings.depth:
            if limit is not None and self._taken + len(self._queue) >= limit:
                return
            try:
                with span(LOAD):
                    batch = next(self._source)
            except StopIteration:
                self._is_read_out = True
                return
            except Exception as error:
                self._fail(error)
                return
            try:
                self._queue.append(self._ask_for(batch))
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Keep an error for the batch that it is about."""
        self._queue.append(_Failed(error))
        self._is_read_out = True

    def _ask_for(self, batch: B) -> _Read[B]:
        settings = self._settings
        there = batch if settings.device is None else moved(batch, settings.device)
        if settings.ids is None:
            return _Read(there)
        given = _checked(settings.ids(batch))
        inputs = given if there is batch else settings.ids(there)
        forwards = [Forward.of(module, value, inputs[module]) for module, value in given.items()]
        if not forwards:
            return _Read(there)
        if self._client is None:
            self._client = client_of([item.module for item in forwards])
        turn = self._turn(len(self._queue))
        is_first = not any([isinstance(item, _Read) and item.rows is not None and item.rows.turn == turn for item in self._queue])
        return _Read(there, Fetch(forwards, planned(forwards, self._client), self._client, turn, with_dense=is_first))


def _checked(given: Mapping[RowModule, Any]) -> Mapping[RowModule, Any]:
    if not isinstance(given, Mapping) or not all([isinstance(module, RowModule) for module in given]):
        got = type(given).__name__ if not isinstance(given, Mapping) else f"of {', '.join(type(module).__name__ for module in given)}"
        raise InvalidRequest(
            "what `ids` returns", got, "a dict from modules of ps.nn to what their forwards get: {model.bags: batch.sparse}"
        )
    return given

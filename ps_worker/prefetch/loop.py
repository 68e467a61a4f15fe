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

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch

from ps_proto.errors import InvalidRequest
from ps_worker.client import Client
from ps_worker.nn.reading import RowModule
from ps_worker.prefetch.one_pass import OnePass

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
        reading = OnePass(self)
        try:
            yield from reading.batches()
        finally:
            reading.end()

"""Where a pass over the data ends when ranks have unequally many batches.

OwnEnd      each rank where its own data ends
CountedEnd  all ranks after as many batches as the shortest has, which they told each other before the first one
AgreedEnd   the same where some rank cannot count its batches: before each batch all say whether they have it. The question for the next
            one travels while this one computes, so that it costs a small message to the coordinator, and keeps ranks within one batch.

A rank that closes its client is asked no more; one that dies is named by BarrierTimeout.
"""

from collections.abc import Sized
from typing import Any, Protocol

from ps_proto.errors import InvalidRequest
from ps_worker.client import Client

State = dict[str, Any]

UNKNOWN = -1  # how many batches a loader without len() has


class Ending(Protocol):
    """Asked before each batch. `limit`: how many batches there are at most, None where nobody knows."""

    limit: int | None

    def goes_on(self, position: int, has_batch: bool) -> bool:
        """Return whether batch `position`, counted from 0, is taken. `has_batch`: whether this rank has it."""
        ...

    def look_ahead(self, has_next: bool) -> None:
        """Hear, before a batch is taken, whether this rank has the one after it."""
        ...

    def state(self) -> State:
        """Return what `ending_of` makes the same ending from in another process."""
        ...


class OwnEnd:
    limit: int | None = None

    def state(self) -> State:
        return {}

    def goes_on(self, position: int, has_batch: bool) -> bool:
        return has_batch

    def look_ahead(self, has_next: bool) -> None:
        pass


class CountedEnd:
    limit: int | None

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def state(self) -> State:
        return {"limit": self.limit}

    def goes_on(self, position: int, has_batch: bool) -> bool:
        if position == self.limit:
            return False
        if not has_batch:
            raise InvalidRequest(
                "len(loader)", "more than the batches it gave", f"at most {position}: the other ranks count on its batches"
            )
        return True

    def look_ahead(self, has_next: bool) -> None:
        pass


class AgreedEnd:
    limit: int | None = None

    def __init__(self, client: Client, has_first: bool, number: int | None = None) -> None:
        """`number`: of the barrier at which the question for the first batch was asked before."""
        self._client = client
        self._number = client.barriers.next_one if number is None else number
        self._agreed = client.agree_async(int(has_first), number)

    def state(self) -> State:
        return {"number": self._number}

    def goes_on(self, position: int, has_batch: bool) -> bool:
        return self._agreed.result() > 0

    def look_ahead(self, has_next: bool) -> None:
        self._number = self._client.barriers.next_one
        self._agreed = self._client.agree_async(int(has_next))


def end_with_shortest(client: Client, loader: Any, has_first: bool) -> Ending:
    """Return the ending that all ranks share; waits until all have begun their pass. Raises BarrierTimeout."""
    if client.world_size == 1:
        return OwnEnd()
    shortest = client.agree_async(_count(loader)).result()
    return AgreedEnd(client, has_first) if shortest == UNKNOWN else CountedEnd(shortest)


def ending_of(client: Client, state: State, has_next: bool) -> Ending:
    """Return the ending that `state` was of, before the batch that this rank has if `has_next`."""
    if "number" in state:
        return AgreedEnd(client, has_next, state["number"])
    return CountedEnd(state["limit"]) if "limit" in state else OwnEnd()


def _count(loader: Any) -> int:
    try:
        return len(loader) if isinstance(loader, Sized) else UNKNOWN
    except TypeError:  # a DataLoader has len() only where its dataset has
        return UNKNOWN

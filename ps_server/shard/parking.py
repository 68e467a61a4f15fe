"""Requests that may not be answered yet. Time only decides when one is refused, never what it reads."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from ps_proto.errors import Overloaded, ParameterServerError
from ps_proto.requests import Fence
from ps_server.events import Body, Effect, Refuse, Reply
from ps_server.shard.counters import Counters

PARKED_MAX = 10_000
DUE_GONE_MAX = 1_000  # deadlines of requests that were answered, kept until their time comes or there are too many


@dataclass(frozen=True, slots=True)
class Wait:
    """How to go on with a request: `attempt` answers it or returns None to wait on; `give_up(after_s)` is the error at its deadline.

    `fence`: that of the request; None for an order, which has none.
    """

    fence: Fence | None
    wait_s: float
    attempt: Callable[[], Body | None]
    give_up: Callable[[float], ParameterServerError]


@dataclass(frozen=True, slots=True)
class _Parked:
    wait: Wait
    since_s: float

    @property
    def until_s(self) -> float:
        return self.since_s + self.wait.wait_s


class Parking:
    """The requests that wait, in the order in which they came. `check` refuses one whose fence has fallen behind meanwhile."""

    def __init__(self, server: str, counters: Counters, check: Callable[[Fence], None]) -> None:
        self._server = server
        self._counters = counters
        self._check = check
        self._parked: dict[int, _Parked] = {}
        self._due: list[tuple[float, int, int]] = []  # heap of (deadline, order of coming, request), also of some that have gone
        self._coming = itertools.count()

    def __len__(self) -> int:
        return len(self._parked)

    def answer_or_park(self, request: int, wait: Wait, now_s: float) -> Body | None:
        """Return the answer where it may be given now; otherwise keep the request and return None."""
        reply = wait.attempt()
        if reply is None:
            if len(self._parked) >= PARKED_MAX:
                raise Overloaded(self._server, len(self._parked), PARKED_MAX)
            self._counters.waits += 1
            self._parked[request] = parked = _Parked(wait, now_s)
            heappush(self._due, (parked.until_s, next(self._coming), request))
        return reply

    def wake(self, now_s: float) -> list[Effect]:
        """Look at every request again: answer it, refuse it, or let it wait on. For a turn that changed what they wait for."""
        return self._look_at(list(self._parked), now_s)

    def expire(self, now_s: float) -> list[Effect]:
        """Look again at the requests whose time is up, and at no other."""
        due: list[int] = []
        while self._due and self._due[0][0] <= now_s:
            until_s, _, request = heappop(self._due)
            if self._is_waiting(request, until_s):
                due.append(request)
        return self._look_at(due, now_s)

    def _look_at(self, requests: list[int], now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for request in requests:
            parked = self._parked.pop(request)  # before it is tried: one that meets a bug must not meet it again in every later turn
            wait = parked.wait
            try:
                if wait.fence is not None:
                    self._check(wait.fence)
                reply = wait.attempt()
                if reply is None and now_s >= parked.until_s:
                    self._counters.waits_timed_out += 1
                    raise wait.give_up(now_s - parked.since_s)
            except ParameterServerError as error:
                self._counters.refused += 1
                effects.append(Refuse(request, error))
            else:
                if reply is None:
                    self._parked[request] = parked
                    continue
                effects.append(Reply(request, reply))
            self._counters.wait_s += now_s - parked.since_s
        return effects

    def drop(self, request: int) -> None:
        """Forget a request that nobody waits for any more."""
        self._parked.pop(request, None)

    def deadline_s(self) -> float | None:
        """Return when the next one gives up."""
        if len(self._due) > 2 * len(self._parked) + DUE_GONE_MAX:
            self._due = [entry for entry in self._due if self._is_waiting(entry[2], entry[0])]
            heapify(self._due)
        while self._due and not self._is_waiting(self._due[0][2], self._due[0][0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def _is_waiting(self, request: int, until_s: float) -> bool:
        parked = self._parked.get(request)
        return parked is not None and parked.until_s == until_s

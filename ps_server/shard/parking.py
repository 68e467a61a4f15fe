"""Requests that may not be answered yet. Time only decides when one is refused, never what it reads."""

from collections.abc import Callable
from dataclasses import dataclass

from ps_proto.errors import Overloaded, ParameterServerError
from ps_proto.requests import Fence
from ps_server.events import Body, Effect, Refuse, Reply
from ps_server.shard.counters import Counters

PARKED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Wait:
    """How to go on with a request: `attempt` answers it or returns None to wait on; `give_up(after_s)` is the error at its deadline."""

    fence: Fence
    wait_s: float
    attempt: Callable[[], Body | None]
    give_up: Callable[[float], ParameterServerError]


@dataclass(frozen=True, slots=True)
class _Parked:
    wait: Wait
    since_s: float


class Parking:
    """The requests that wait, in the order in which they came. `check` refuses one whose fence has fallen behind meanwhile."""

    def __init__(self, server: str, counters: Counters, check: Callable[[Fence], None]) -> None:
        self._server = server
        self._counters = counters
        self._check = check
        self._parked: dict[int, _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def answer_or_park(self, request: int, wait: Wait, now_s: float) -> Body | None:
        """Return the answer where it may be given now; otherwise keep the request and return None."""
        reply = wait.attempt()
        if reply is None:
            if len(self._parked) >= PARKED_MAX:
                raise Overloaded(self._server, len(self._parked), PARKED_MAX)
            self._counters.waits += 1
            self._parked[request] = _Parked(wait, now_s)
        return reply

    def wake(self, now_s: float) -> list[Effect]:
        """Look at every request again: answer it, refuse it, or let it wait on."""
        effects: list[Effect] = []
        for request in list(self._parked):
            parked = self._parked.pop(request)  # before it is tried: one that meets a bug must not meet it again in every later turn
            wait = parked.wait
            try:
                self._check(wait.fence)
                reply = wait.attempt()
                if reply is None and now_s >= parked.since_s + wait.wait_s:
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
        return min((parked.since_s + parked.wait.wait_s for parked in self._parked.values()), default=None)

"""Requests that wait for a state of the cluster, not for an order: for the shard map, or at a barrier."""

from collections.abc import Callable
from dataclasses import dataclass

from ps_proto.errors import ParameterServerError
from ps_server.events import Body, Effect, Refuse, Reply


@dataclass(frozen=True, slots=True)
class _Waiting:
    attempt: Callable[[], Body | None]
    give_up: Callable[[float], ParameterServerError]
    since_s: float
    deadline_s: float


class WaitingRoom:
    """Looks at each of them after every turn."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    def add(
        self,
        request: int,
        wait_s: float,
        now_s: float,
        attempt: Callable[[], Body | None],
        give_up: Callable[[float], ParameterServerError],
    ) -> None:
        """Let a request wait: `attempt` answers it or returns None to wait on; `give_up(after_s)` is the error at its deadline."""
        self._waiting[request] = _Waiting(attempt, give_up, now_s, now_s + wait_s)

    def forget(self, request: int) -> None:
        """Let a request go that nobody waits for."""
        self._waiting.pop(request, None)

    def due_s(self) -> list[float]:
        """Return the times at which requests give up."""
        return [waiting.deadline_s for waiting in self._waiting.values()]

    def wake(self, now_s: float, effects: list[Effect]) -> None:
        """Answer those that may be answered, and refuse those whose time is up."""
        for request, waiting in list(self._waiting.items()):
            try:
                reply = waiting.attempt()
                if reply is None and now_s >= waiting.deadline_s:
                    raise waiting.give_up(now_s - waiting.since_s)
            except ParameterServerError as error:
                effects.append(Refuse(request, error))
            else:
                if reply is None:
                    continue
                effects.append(Reply(request, reply))
            del self._waiting[request]

"""Requests that wait for a state of the cluster, not for an order: for the shard map, or at a barrier."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ps_proto.errors import ParameterServerError
from ps_server.events import Body, Effect, Refuse, Reply


@dataclass(slots=True)
class _Waiting:
    attempt: Callable[[], Body | None]
    give_up: Callable[[float], ParameterServerError]
    since_s: float
    deadline_s: float
    alike: Callable[[], Hashable]  # returns what it waits for, maybe with others; None: nobody waits for the same


class WaitingRoom:
    """Looks at them after every turn; of those that are alike, at one.

    A thousand ranks at a barrier make a thousand turns: to look at each of them after each would be a million looks at all ranks.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    def add(
        self,
        request: int,
        wait_s: float,
        now_s: float,
        attempt: Callable[[], Body | None],
        give_up: Callable[[float], ParameterServerError],
        alike: Callable[[], Hashable] = lambda: None,
    ) -> None:
        """Let a request wait: `attempt` answers it or returns None to wait on; `give_up(after_s)` is the error at its deadline.

        `alike`: asked at each look; where one that says the same waits on, this does too. An error may be its own: see `wake`.
        """
        self._waiting[request] = _Waiting(attempt, give_up, now_s, now_s + wait_s, alike)

    def forget(self, request: int) -> None:
        """Let a request go that nobody waits for."""
        self._waiting.pop(request, None)

    def due_s(self) -> list[float]:
        """Return the times at which requests give up."""
        return [waiting.deadline_s for waiting in self._waiting.values()]

    def wake(self, now_s: float, effects: list[Effect], everyone: bool = True) -> None:
        """Answer those that may be answered, and refuse those whose time is up.

        `everyone`: look at each of those that are alike, too: who takes part may have changed, which refuses some of them.
        """
        waits_on: set[Hashable] = set()
        for request, waiting in list(self._waiting.items()):
            try:
                alike = waiting.alike()
                is_looked_at = everyone or alike is None or alike not in waits_on
                reply = waiting.attempt() if is_looked_at else None
                if reply is None and now_s >= waiting.deadline_s:
                    raise waiting.give_up(now_s - waiting.since_s)
            except ParameterServerError as error:
                effects.append(Refuse(request, error))
            else:
                if reply is None:
                    waits_on.add(alike)
                    continue
                effects.append(Reply(request, reply))
            del self._waiting[request]

"""Telling the other servers what this one decided (R9): each again until it has acknowledged. One that is silent holds nobody up."""

import itertools
import math
from dataclasses import dataclass

from ps_proto.errors import ParameterServerError
from ps_proto.requests import Decision, Fence, StepDecided
from ps_server.events import Body, Effect, Tell
from ps_server.shard.membership import Membership

AGAIN_FIRST_S, AGAIN_MOST_S = 0.05, 1.6  # from one attempt to the next, doubled each time


@dataclass(slots=True)
class _Telling:
    """A decision on its way to one server. `due_s`: when it is told again; inf while an answer may come."""

    job: int
    decision: Decision
    due_s: float
    pause_s: float = AGAIN_FIRST_S


class Teller:
    """What the others have yet to acknowledge: a step or two each, since no worker goes on without all of the servers."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._open: dict[tuple[str, int, int], _Telling] = {}  # (server, job, step)
        self._orders: dict[int, tuple[str, int, int]] = {}  # order number -> which of them
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    def tell(self, job: int, decisions: list[Decision], now_s: float) -> None:
        """Take decisions for every other server in the map."""
        for server in self._membership.others:
            for decision in decisions:
                self._open[server, job, decision.step] = _Telling(job, decision, now_s)

    def due(self, now_s: float) -> list[Effect]:
        """Return the orders that are to be given now."""
        effects: list[Effect] = []
        shard_map, others = self._membership.shard_map, self._membership.others
        for key, telling in list(self._open.items()):
            if telling.due_s > now_s:
                continue
            if shard_map is None or key[0] not in others:  # it has left the map: what it held is another's
                del self._open[key]
                continue
            number = next(self._numbers)
            self._orders[number] = key
            telling.due_s = math.inf
            body = StepDecided(Fence(shard_map.version, timeline=self._membership.timeline), telling.job, telling.decision)
            effects.append(Tell(number, key[0], others[key[0]], body))
        return effects

    def on_answer(self, order: int, outcome: Body | ParameterServerError, now_s: float) -> None:
        """Take a server's answer: whatever went wrong, it is told again."""
        key = self._orders.pop(order, None)
        if key is None:
            return  # of before a rollback
        if not isinstance(outcome, ParameterServerError):
            self._open.pop(key, None)
        elif key in self._open:
            telling = self._open[key]
            telling.due_s, telling.pause_s = now_s + telling.pause_s, min(2 * telling.pause_s, AGAIN_MOST_S)

    def clear(self) -> None:
        """Forget everything: those steps are not decided any more."""
        self._open.clear()
        self._orders.clear()

    def deadline_s(self) -> float | None:
        """Return when the next one is told again."""
        due_s = min([telling.due_s for telling in self._open.values()], default=math.inf)
        return None if due_s == math.inf else due_s

"""Requests that need servers: each is a *plan*, a generator that yields a round of orders and goes on with all their answers.

Plans run one after another, so that two ranks that join at once see each other's result; a request that is asked again while its plan
waits or runs joins that plan, so that retries never pile up. Orders are idempotent; one that fails is given again until the
request's `wait_s` is over, and the refusal then names the server. What a server refuses for good is raised in the plan, at its `yield`, and
ends it.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ps_proto.errors import ParameterServerError, Recovering, Unreachable
from ps_server.events import Body, Effect, Refuse, Reply, Tell
from sharding.shard_map import Server

ORDER_AGAIN_S = 0.25  # an order is small and its server near: this is a pause, not a deadline
ORDERS_S_MIN = 1.0  # a request may take this long whatever its wait_s: servers that are well need a moment, too

Plan = Generator[Body, list[Any], Body]


@dataclass(frozen=True, slots=True)
class _Asking:
    """One who waits for a plan."""

    since_s: float
    until_s: float


@dataclass
class _Work:
    """A plan, who asked for it, and the round of orders that it waits for."""

    key: Hashable  # the same for a request that is asked again
    plan: Plan
    requests: dict[int, _Asking] = field(default_factory=dict)
    until_s: float = math.inf  # when it is given up at the latest; never where nobody asked
    order: Body | None = None
    answers: dict[str, Body | None] = field(default_factory=dict)  # server -> its answer, None until it came
    causes: dict[str, str] = field(default_factory=dict)  # server -> why it has not followed the order yet, where that is known

    @property
    def is_for_all(self) -> bool:
        return self.until_s == math.inf


class Plans:
    """The plan that runs and those that wait for it. `servers`: those registered, as they come; each order goes to all of them."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self._servers = servers
        self._queue: deque[_Work] = deque()
        self._running: _Work | None = None
        self._orders: dict[int, tuple[Body, str]] = {}  # order number -> what was ordered, of which server
        self._next_order = 1
        self._again_s: dict[str, float] = {}  # server -> when its order is given again

    def add(self, key: Hashable, request: int, wait_s: float, now_s: float, make_plan: Callable[[], Plan]) -> None:
        """Queue a plan for a request, or let the request share the one of the same key that is queued or at work."""
        asking = _Asking(now_s, now_s + max(wait_s, ORDERS_S_MIN))
        for work in self._works():
            if work.key == key:
                work.requests[request] = asking
                work.until_s = max(work.until_s, asking.until_s)
                return
        self._queue.append(_Work(key, make_plan(), {request: asking}, asking.until_s))

    def add_for_all(self, key: Hashable, plan: Plan) -> None:
        """Queue a plan that nobody asked for and without which nothing else may run: what runs now is given up."""
        if self._running is not None:
            self._give_up()
        self._queue.append(_Work(key, plan))

    def forget(self, request: int) -> None:
        """Let a request go that nobody waits for; its plan goes on all the same: others may count on what it did."""
        for work in self._works():
            work.requests.pop(request, None)

    def _works(self) -> list[_Work]:
        return [*([self._running] if self._running is not None else []), *self._queue]

    def due_s(self) -> list[float]:
        """Return the times at which a request or a plan gives up, or an order is to be given again."""
        due = list(self._again_s.values())
        for work in self._works():
            due += [asking.until_s for asking in work.requests.values()]
            if not work.is_for_all:
                due.append(work.until_s)
        return due

    # --- turns -----------------------------------------------------------------------------------------------------------

    def expire(self, now_s: float, effects: list[Effect]) -> None:
        """Refuse the requests whose time is up, and give up plans that nobody waits for any more."""
        for work in reversed(self._works()):  # the one at work last: all of them wait for its servers
            late = {request: asking for request, asking in work.requests.items() if asking.until_s <= now_s}
            effects += [Refuse(request, self._silent_server(now_s - asking.since_s)) for request, asking in late.items()]
            work.requests = {request: asking for request, asking in work.requests.items() if request not in late}
            if not work.requests and work.until_s <= now_s:
                if work is self._running:
                    self._give_up()
                else:
                    self._queue.remove(work)

    def _silent_server(self, after_s: float) -> ParameterServerError:
        """Return the error that names the server that all plans wait for."""
        assert self._running is not None, "whoever waits for a plan waits for the one that runs"
        server = next(server for server, answer in self._running.answers.items() if answer is None)
        return Unreachable(server, self._servers[server].address, after_s, self._running.causes.get(server, "no answer to the coordinator"))

    def _give_up(self) -> None:
        assert self._running is not None
        self._running.plan.close()
        self._running = None
        self._again_s.clear()

    def advance(self, effects: list[Effect]) -> None:
        """Start the next plan where none runs, and go on with one whose round is answered."""
        while True:
            if self._running is None:
                if not self._queue:
                    return
                self._running = self._queue.popleft()
            elif any(answer is None for answer in self._running.answers.values()):
                return
            work = self._running
            try:
                work.order = next(work.plan) if work.order is None else work.plan.send(list(work.answers.values()))
            except StopIteration as stop:
                effects += [Reply(request, stop.value) for request in work.requests]
                self._running = None
            except ParameterServerError as error:
                effects += [Refuse(request, error) for request in work.requests]
                self._running = None
            else:
                work.answers, work.causes = dict.fromkeys(sorted(self._servers)), {}
                for server in work.answers:
                    self._tell(server, effects)

    def _tell(self, server: str, effects: list[Effect]) -> None:
        assert self._running is not None
        number = self.number()
        self._orders[number] = (self._running.order, server)
        effects.append(Tell(number, server, self._servers[server].address, self._running.order))

    def number(self) -> int:
        """Return a number for an order that no other has."""
        number, self._next_order = self._next_order, self._next_order + 1
        return number

    def on_answer(self, number: int, outcome: Body | ParameterServerError, now_s: float, effects: list[Effect]) -> None:
        """Take a server's answer to an order of a plan."""
        order, server = self._orders.pop(number)
        work = self._running
        if work is None or order is not work.order or work.answers[server] is not None:
            return  # of a plan that was given up
        if not isinstance(outcome, ParameterServerError):
            work.answers[server] = outcome
        elif work.is_for_all or isinstance(outcome, Unreachable | Recovering):
            work.causes[server] = outcome.cause if isinstance(outcome, Unreachable) else str(outcome)
            self._again_s[server] = now_s + ORDER_AGAIN_S
        else:
            try:
                work.plan.throw(outcome)  # it may take back what it began
            except ParameterServerError as error:
                effects += [Refuse(request, error) for request in work.requests]
            self._give_up()

    def give_orders_again(self, now_s: float, effects: list[Effect]) -> None:
        """Give the orders again whose servers failed a while ago."""
        for server in [server for server, due_s in self._again_s.items() if due_s <= now_s]:
            del self._again_s[server]
            self._tell(server, effects)

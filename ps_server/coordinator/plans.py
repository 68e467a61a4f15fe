"""Requests that need servers or time: each is a *plan*, a generator that yields what is to be done and goes on with what came of it.

    answers = yield order               give the order to every server; goes on with all their answers
    answers = yield Each(orders, s)     give each server its own order; goes on with all their answers
    outcome = yield Do(task)            have a task done aside; goes on with its outcome
    yield Wait(seconds)                 goes on after that time
    now_s = yield Now()                 goes on at once

The plans of one `Plans` run one after another, so that two ranks that join at once see each other's result; a request that is asked again
while its plan waits or runs joins that plan, so that retries never pile up. Orders are idempotent; one that fails is given again until the
request's `wait_s` is over, and the refusal then names the server. What a server refuses for good, and the error that a task ends with, is
raised in the plan, at its `yield`: a plan that lets it pass ends with it.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ps_proto.errors import ParameterServerError, Recovering, Unreachable
from ps_server.events import Body, Effect, Refuse, Reply, Tell, Work
from sharding.shard_map import Server

ORDER_AGAIN_S = 0.25  # an order is small and its server near: this is a pause, not a deadline
ORDERS_S_MIN = 1.0  # a request may take this long whatever its wait_s: servers that are well need a moment, too


@dataclass(frozen=True, slots=True)
class Wait:
    """Let so many seconds pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Do:
    """Have this task, one of ps_server.tasks, done aside."""

    task: object


@dataclass(frozen=True, slots=True)
class Each:
    """Give each server its own order, by name. One that has not answered after `within_s` is named by an Unreachable at the `yield`."""

    orders: Mapping[str, Body]
    within_s: float


@dataclass(frozen=True, slots=True)
class Now:
    """Tell the time."""


Plan = Generator[Body | Each | Wait | Do | Now, Any, Body]


@dataclass(frozen=True, slots=True)
class _Asking:
    """One who waits for a plan."""

    since_s: float
    until_s: float


@dataclass
class _Planned:
    """A plan, who asked for it, and what it waits for: a round of orders, a task, or a time."""

    key: Hashable  # the same for a request that is asked again
    plan: Plan
    requests: dict[int, _Asking] = field(default_factory=dict)
    until_s: float = math.inf  # when it is given up at the latest
    why: str = ""  # of a plan for all: what it is for
    wake_s: float = -math.inf  # when its Wait is over
    task: int | None = None  # the number of its task that is under way
    orders: Mapping[str, Body] | None = None
    since_s: float = math.inf  # when the orders were given first
    orders_until_s: float = math.inf
    answers: dict[str, Body | None] = field(default_factory=dict)  # server -> its answer, None until it came
    causes: dict[str, str] = field(default_factory=dict)  # server -> why it has not followed the order yet, where that is known

    @property
    def is_for_all(self) -> bool:
        return bool(self.why)

    def is_waiting(self, now_s: float) -> bool:
        return self.task is not None or self.wake_s > now_s or self.silent() is not None

    def silent(self) -> str | None:
        """Return a server that has not answered, if there is one."""
        return next((server for server, answer in self.answers.items() if answer is None), None)


class Plans:
    """The plan that runs and those that wait for it.

    `servers`: those registered, as they come. `numbers`: for orders and tasks, each of which is the core's
    only one of its number: others may take some, and of an answer to one of theirs nothing is taken here.
    """

    def __init__(self, servers: Mapping[str, Server], numbers: Iterator[int]) -> None:
        self._servers = servers
        self._numbers = numbers
        self._queue: deque[_Planned] = deque()
        self._running: _Planned | None = None
        self._orders: dict[int, tuple[Mapping[str, Body], str]] = {}  # order number -> of which round, and of which server
        self._refusals: list[Effect] = []  # of plans that were given up in this turn
        self._again_s: dict[str, float] = {}  # server -> when its order is given again
        self._tasks: dict[int, object] = {}  # those under way, also of plans that were given up

    def add(self, key: Hashable, request: int, wait_s: float, now_s: float, make_plan: Callable[[], Plan]) -> None:
        """Queue a plan for a request, or let the request share the one of the same key that is queued or at work."""
        asking = _Asking(now_s, now_s + max(wait_s, ORDERS_S_MIN))
        for planned in self._all():
            if planned.key == key:
                planned.requests[request] = asking
                planned.until_s = max(planned.until_s, asking.until_s)
                return
        self._queue.append(_Planned(key, make_plan(), {request: asking}, asking.until_s))

    def add_unasked(self, key: Hashable, plan: Plan) -> None:
        """Queue a plan for which no request waits."""
        self._queue.append(_Planned(key, plan))

    def add_for_all(self, key: Hashable, plan: Plan, why: str) -> None:
        """Let a plan run next that nobody asked for and without which nothing else may run.

        What runs now is given up: its requests are refused with Recovering, which says `why`. One of the same key that has not begun makes
        way for it.
        """
        self.give_up(Recovering("The coordinator", why))
        self._queue = deque([planned for planned in self._queue if not (planned.is_for_all and planned.key == key)])
        self._queue.appendleft(_Planned(key, plan, why=why))

    def give_up(self, error: ParameterServerError) -> None:
        """End the plan that runs, if one does, and refuse its requests with `error`."""
        if self._running is not None:
            self._refusals += [Refuse(request, error) for request in self._running.requests]
            self._drop()

    def clear(self, running: ParameterServerError, waiting: ParameterServerError) -> None:
        """End every plan: the requests of the one that runs are refused with the first error, those of the others with the second."""
        self.give_up(running)
        self._refusals += [Refuse(request, waiting) for planned in self._queue for request in planned.requests]
        self._queue.clear()

    @property
    def is_busy(self) -> bool:
        """Whether a plan runs or waits."""
        return bool(self._all())

    @property
    def tasks(self) -> list[object]:
        """The tasks under way, also of plans that were given up."""
        return list(self._tasks.values())

    def has(self, key: Hashable) -> bool:
        """Return whether a plan of this key runs or waits."""
        return any([planned.key == key for planned in self._all()])

    def forget(self, request: int) -> None:
        """Let a request go that nobody waits for; its plan goes on all the same: others may count on what it did."""
        for planned in self._all():
            planned.requests.pop(request, None)

    def _all(self) -> list[_Planned]:
        return [*([self._running] if self._running is not None else []), *self._queue]

    def due_s(self) -> list[float]:
        """Return the times at which a request or a plan gives up, a plan goes on, or an order is to be given again."""
        due = list(self._again_s.values())
        if self._running is not None:
            due += [self._running.wake_s, self._running.orders_until_s]
        for planned in self._all():
            due += [asking.until_s for asking in planned.requests.values()]
            due.append(planned.until_s)
        return [due_s for due_s in due if math.isfinite(due_s)]

    # --- turns -----------------------------------------------------------------------------------------------------------

    def expire(self, now_s: float, effects: list[Effect]) -> None:
        """End a round of orders whose time is up, refuse the requests whose time is up, and give up plans that nobody waits for."""
        running = self._running
        if running is not None and running.orders_until_s <= now_s and (server := running.silent()) is not None:
            self._go_on(running, partial(running.plan.throw, self._silence_of(server, now_s - running.since_s)), now_s, effects)
        for planned in reversed(self._all()):  # the one at work last: all of them wait for it
            late = {request: asking for request, asking in planned.requests.items() if asking.until_s <= now_s}
            effects += [Refuse(request, self._held_up(now_s - asking.since_s)) for request, asking in late.items()]
            planned.requests = {request: asking for request, asking in planned.requests.items() if request not in late}
            if not planned.requests and planned.until_s <= now_s:
                if planned is self._running:
                    self._drop()
                else:
                    self._queue.remove(planned)

    def _held_up(self, after_s: float) -> ParameterServerError:
        """Return the error that says what all plans wait for: a server, by its name, or the plan that runs."""
        assert self._running is not None, "whoever waits for a plan waits for the one that runs"
        server = self._running.silent()
        if server is None:
            return Recovering("The coordinator", self._running.why or f"after {after_s:.1f} s it is still at work")
        return self._silence_of(server, after_s)

    def _silence_of(self, server: str, after_s: float) -> Unreachable:
        assert self._running is not None
        return Unreachable(server, self._servers[server].address, after_s, self._running.causes.get(server, "no answer to the coordinator"))

    def _drop(self) -> None:
        assert self._running is not None
        self._running.plan.close()
        self._running = None
        self._again_s.clear()

    def advance(self, now_s: float, effects: list[Effect]) -> None:
        """Start the next plan where none runs, and go on with one that has what it waited for."""
        effects += self._refusals
        self._refusals = []
        while True:
            if self._running is None:
                if not self._queue:
                    return
                self._running = self._queue.popleft()
            elif self._running.is_waiting(now_s):
                return
            planned = self._running
            self._go_on(
                planned, partial(planned.plan.send, None if planned.orders is None else list(planned.answers.values())), now_s, effects
            )

    def _go_on(self, planned: _Planned, step: Callable[[], Any], now_s: float, effects: list[Effect]) -> None:
        """Let the plan that runs take a step, to its next `yield` or its end."""
        self._again_s.clear()
        planned.orders, planned.answers, planned.causes, planned.task = None, {}, {}, None
        planned.wake_s, planned.orders_until_s = -math.inf, math.inf
        try:
            wanted = step()
            while isinstance(wanted, Now):
                wanted = planned.plan.send(now_s)
        except StopIteration as stop:
            effects += [Reply(request, stop.value) for request in planned.requests]
            self._running = None
        except ParameterServerError as error:
            effects += [Refuse(request, error) for request in planned.requests]
            self._running = None
        else:
            match wanted:
                case Wait(seconds):
                    planned.wake_s = now_s + seconds
                case Do(task):
                    planned.task = self.number()
                    self._tasks[planned.task] = task
                    effects.append(Work(planned.task, task))
                case Each(orders, within_s):
                    planned.orders_until_s = now_s + within_s
                    self._order(planned, orders, now_s, effects)
                case order:
                    self._order(planned, dict.fromkeys(sorted(self._servers), order), now_s, effects)

    def _order(self, planned: _Planned, orders: Mapping[str, Body], now_s: float, effects: list[Effect]) -> None:
        planned.orders, planned.answers, planned.since_s = orders, dict.fromkeys(orders), now_s
        for server in orders:
            self._tell(server, effects)

    def _tell(self, server: str, effects: list[Effect]) -> None:
        assert self._running is not None
        assert self._running.orders is not None
        number = self.number()
        self._orders[number] = (self._running.orders, server)
        effects.append(Tell(number, server, self._servers[server].address, self._running.orders[server]))

    def number(self) -> int:
        """Return a number that no other order or task has."""
        return next(self._numbers)

    def on_answer(self, number: int, outcome: Body | ParameterServerError, now_s: float, effects: list[Effect]) -> None:
        """Take a server's answer to an order of a plan."""
        orders, server = self._orders.pop(number, (None, ""))
        planned = self._running
        if orders is None or planned is None or orders is not planned.orders or planned.answers[server] is not None:
            return  # of a plan that was given up, or of somebody else
        if not isinstance(outcome, ParameterServerError):
            planned.answers[server] = outcome
        elif planned.is_for_all or isinstance(outcome, Unreachable | Recovering):
            planned.causes[server] = outcome.cause if isinstance(outcome, Unreachable) else str(outcome)
            self._again_s[server] = now_s + ORDER_AGAIN_S
        else:
            self._go_on(planned, partial(planned.plan.throw, outcome), now_s, effects)

    def on_worked(self, number: int, outcome: object | ParameterServerError, now_s: float, effects: list[Effect]) -> None:
        """Take what came of a task of a plan."""
        self._tasks.pop(number, None)
        planned = self._running
        if planned is None or planned.task != number:
            return  # of a plan that was given up, or of somebody else
        step = partial(planned.plan.throw if isinstance(outcome, ParameterServerError) else planned.plan.send, outcome)
        self._go_on(planned, step, now_s, effects)

    def give_orders_again(self, now_s: float, effects: list[Effect]) -> None:
        """Give the orders again whose servers failed a while ago."""
        for server in [server for server, due_s in self._again_s.items() if due_s <= now_s]:
            del self._again_s[server]
            self._tell(server, effects)

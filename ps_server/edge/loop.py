"""Drive a core in one asyncio loop: requests in, answers out, orders to other servers, tasks done aside, and a tick when one is due.

The core decides, one event at a time; whoever asks gives a callback, or awaits a future. A bug in the core fails the request that met it,
with an incident id that finds its traceback in the log; the loop lives on.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from ps_proto.errors import ParameterServerError, Recovering
from ps_proto.status import as_ours
from ps_server.events import (
    Answered,
    Asked,
    Body,
    Core,
    Dropped,
    Effect,
    Event,
    MakeRows,
    Note,
    Persist,
    Refuse,
    Reply,
    Tell,
    Ticked,
    Work,
    Worked,
)
from sharding.arrays import empty_aligned

TICK_S_MIN = 0.001  # between two ticks, whatever the core asks for
TICK_S_AFTER_BUG = 1.0

Send = Callable[[str, str, Body], Awaitable[Body]]  # (server, address, order) -> its reply
Prepare = Callable[[Body], Awaitable[None]]
Outcome = Body | ParameterServerError
Answer = Callable[[Outcome], None]
Ask = Callable[[Body, Answer], int | None]  # as CoreLoop.ask, in the loop's thread
DoTask = Callable[[object, Ask], Awaitable[object]]  # (task, ask of the task's own core) -> its outcome
Store = Callable[[Persist], None]

log = structlog.get_logger()


class CoreLoop:
    """One core, one event loop, no lock: everything here runs in the thread of the loop.

    send      carries an order to a server and returns the reply, or raises the ParameterServerError that stands for it.
    name      who answers, for errors.     now_s  a monotonic time in seconds.
    prepare   is awaited before the core hears of a request, while others are answered; what it raises is the request's end.
    do_task   does a task of the core and returns its outcome, or raises the ParameterServerError that stands for it.
    store     makes a Persist durable before it returns. Where it raises, the loop is broken: nothing else of that turn is carried out, the
              core hears of nothing any more, and whoever waits or comes is told that this process is stopping.
    """

    def __init__(
        self,
        core: Core,
        send: Send,
        *,
        name: str = "The server",
        now_s: Callable[[], float] = time.monotonic,
        prepare: Prepare | None = None,
        do_task: DoTask | None = None,
        store: Store | None = None,
    ) -> None:
        self.name = name
        self.broken_by: ParameterServerError | None = None  # why the core must not go on
        self.on_broken: Callable[[], None] = lambda: None  # called then
        self._core = core
        self._send = send
        self._now_s = now_s
        self._prepare = prepare
        self._do_task = do_task
        self._store = store
        self._requests = itertools.count(1)
        self._answers: dict[int, Answer] = {}  # of those who wait
        self._under_way: set[asyncio.Task[None]] = set()  # orders and tasks
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._is_closed = False

    def begin(self) -> None:
        """Give the core a turn before anybody asks."""
        self._turn(Ticked())

    async def submit(self, body: Body) -> Body:
        """Ask the core; return its reply or raise its refusal, once there is one. Cancelling this tells the core that nobody waits."""
        self._check_open()
        if self._prepare is not None:
            await self._prepare(body)
            self._check_open()
        answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        request = self.ask(body, lambda outcome: _settle(answer, outcome))
        try:
            return await answer
        except asyncio.CancelledError:
            if request is not None:
                self.drop(request)
            raise

    def ask(self, body: Body, answer: Answer, make_rows: MakeRows = empty_aligned, is_borrowed: bool = False) -> int | None:
        """Ask the core what needs no preparing; `answer` is called with the outcome, once, now or later.

        Return the request's number where it is later, for `drop`. `make_rows`, `is_borrowed`: as in Asked.
        """
        request = next(self._requests)
        self._answers[request] = answer
        if self._is_closed:
            self._settle(request, self._closing())
        else:
            self._turn(Asked(request, body, make_rows, is_borrowed))
        return request if request in self._answers else None

    def drop(self, request: int) -> None:
        """Tell the core that nobody waits for this request any more; its answer is not called. One that was answered is fine."""
        if self._answers.pop(request, None) is not None:
            self._turn(Dropped(request))

    def report(self, bug: BaseException, doing: str) -> ParameterServerError:
        """Log an exception that is not ours, with its traceback; return the error that stands for it."""
        incident = uuid.uuid4().hex[:12]
        log.error("met a bug", incident=incident, doing=doing, exc_info=bug)
        return as_ours(bug, self.name, incident)

    async def close(self) -> None:
        """Refuse what waits and what comes, and stop the clock."""
        self._refuse_all()
        under_way = list(self._under_way)
        for order in under_way:
            order.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _refuse_all(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for request in list(self._answers):
            self._settle(request, self._closing())

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closing()

    def _closing(self) -> Recovering:
        return Recovering(self.name, "it is stopping")

    def _turn(self, event: Event) -> None:
        """Let the core handle an event, and carry its effects out."""
        if self._is_closed:
            return
        pause_s = TICK_S_MIN if isinstance(event, Ticked) else 0.0
        try:
            for effect in self._core.handle(event, self._now_s()):
                if isinstance(effect, Persist) and not self._make_durable(effect):
                    return
                self._carry_out(effect)
        except Exception as bug:
            error = self.report(bug, type(event).__name__)
            if isinstance(event, Asked):
                self._settle(event.request, error)
            pause_s = TICK_S_AFTER_BUG
        self._arm(pause_s)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Reply(request, body):
                self._settle(request, body)
            case Refuse(request, error):
                self._settle(request, error)
            case Tell():
                self._begin(self._tell(effect))
            case Work():
                self._begin(self._work(effect))
            case Note(sentence, is_warning):
                (log.warning if is_warning else log.info)(sentence)

    def _make_durable(self, effect: Persist) -> bool:
        """Store what the core wants to be durable; where that fails, break the loop and return False."""
        assert self._store is not None, "this core stores nothing"
        try:
            self._store(effect)
        except Exception as error:
            self.break_off(error if isinstance(error, ParameterServerError) else self.report(error, "storing the core's state"))
            return False
        return True

    def break_off(self, error: ParameterServerError) -> None:
        """Let the core hear of nothing any more: it must not go on."""
        self.broken_by = error
        self._refuse_all()
        self.on_broken()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _settle(self, request: int, outcome: Outcome) -> None:
        """Answer a request, unless whoever asked has gone."""
        answer = self._answers.pop(request, None)
        if answer is not None:
            answer(outcome)

    async def _tell(self, order: Tell) -> None:
        outcome: Any
        try:
            outcome = await self._send(order.server, order.address, order.body)
        except ParameterServerError as error:
            outcome = error
        except Exception as bug:
            outcome = self.report(bug, f"{type(order.body).__name__} to {order.server}")
        self._turn(Answered(order.order, outcome))

    async def _work(self, work: Work) -> None:
        outcome: Any
        try:
            assert self._do_task is not None, "this core has no tasks"
            outcome = await self._do_task(work.task, self.ask)
        except ParameterServerError as error:
            outcome = error
        except Exception as bug:
            outcome = self.report(bug, f"task {type(work.task).__name__}")
        self._turn(Worked(work.number, outcome))

    def _arm(self, pause_s: float = 0.0) -> None:
        """See that a tick comes when the core wants one; a timer that turns out to be early looks again, so only an earlier one is set.

        pause_s: the least time until then.
        """
        due_s = self._core.deadline_s()
        if due_s is None:
            return
        now_s = self._now_s()
        due_s = max(due_s, now_s + pause_s)
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - now_s), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        due_s = self._core.deadline_s()
        if due_s is not None and due_s <= self._now_s():
            self._turn(Ticked())
        else:
            self._arm()


def _settle(answer: "asyncio.Future[Body]", outcome: Outcome) -> None:
    """Give a future its outcome, unless it was cancelled."""
    if answer.done():
        return
    if isinstance(outcome, ParameterServerError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)

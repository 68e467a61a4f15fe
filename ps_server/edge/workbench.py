"""Where a core's tasks are done: a thread for each, which works on stores, and asks the core in the turns of the event loop.

    event loop      Work ────┐            ┌─ turn ─┐                                 ┌──> Worked
    task's thread            └─ program ──┤  Ask   ├── hashes, waits ────────────────┘
    its helper                            └────────┴── a store's operation that was begun

All threads are daemons: a stop waits for them for a while only, since a store may hang. A program whose core has stopped ends with its next
question.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import structlog

from ps_proto.errors import ParameterServerError, Recovering
from ps_server.edge.aside import run_aside
from ps_server.edge.loop import Ask
from ps_server.storage.program import run_beside
from ps_server.storage.programs import PROGRAMS
from ps_server.storage.roots import open_store
from ps_server.storage.store import Store

STOP_GRACE_S = 1.0  # for a task that is under way, to end by itself

log = structlog.get_logger()


class Workbench:
    """Does the tasks of one core: `do` is the `do_task` of its CoreLoop.

    name     whose, for errors.     options  of object stores, as for `open_store`.
    """

    def __init__(self, name: str, options: Mapping[str, str], *, stop_grace_s: float = STOP_GRACE_S) -> None:
        self._name = name
        self._options = options
        self._stop_grace_s = stop_grace_s

    async def do(self, task: object, ask: Ask) -> object:
        """Do a task and return its outcome, or raise what stands for it. Cancelling this ends its program at the next question."""
        kind = type(task).__name__
        questions = _Questions(self._name, ask)
        outcome: list[object] = []
        begun_s = time.monotonic()

        def work() -> None:
            outcome.append(run_beside(PROGRAMS[type(task)](task), self._open, questions.ask, _start))

        done = run_aside(kind, work)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            questions.close()
            await asyncio.wait({done}, timeout=self._stop_grace_s)
            done.cancel()  # where it goes on, nobody hears of it
            raise
        except ParameterServerError as error:
            log.info("could not do a task", task=kind, took_s=round(time.monotonic() - begun_s, 3), cause=str(error))
            raise
        log.debug("did a task", task=kind, took_s=round(time.monotonic() - begun_s, 3))
        return outcome[0]

    def _open(self, root: str) -> Store:
        return open_store(root, self._options)


class _Questions:
    """What a task's thread asks of its core. `ask` is the loop's, of which this is made in its thread."""

    def __init__(self, name: str, ask: Ask) -> None:
        self._name = name
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._waiting: Future[list[object]] | None = None
        self._is_closed = False

    def ask(self, bodies: Sequence[object]) -> list[object]:
        """Ask from the task's thread; return the replies or raise the first refusal."""
        answer: Future[list[object]] = Future()
        with self._guard:
            if self._is_closed:
                raise self._closing()
            self._waiting = answer
            self._loop.call_soon_threadsafe(self._ask_next, list(bodies), [], answer)
        return answer.result()

    def close(self) -> None:
        """Refuse the questions that wait and those that come; in the loop's thread."""
        with self._guard:
            self._is_closed = True
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_exception(self._closing())

    def _ask_next(self, bodies: list[object], replies: list[object], answer: "Future[list[object]]") -> None:
        """Ask the first of what is left; the next one is asked in the loop's next round, after all that has come meanwhile."""
        if answer.done():
            return
        if len(replies) == len(bodies):
            answer.set_result(replies)
            return

        def on_outcome(outcome: object) -> None:
            if answer.done():
                return
            if isinstance(outcome, ParameterServerError):
                answer.set_exception(outcome)
                return
            replies.append(outcome)
            if len(replies) == len(bodies):
                answer.set_result(replies)
            else:
                self._loop.call_soon(self._ask_next, bodies, replies, answer)

        self._ask(bodies[len(replies)], on_outcome)

    def _closing(self) -> Recovering:
        return Recovering(self._name, "it is stopping")


def _start(work: Callable[[], Any]) -> Callable[[], Any]:
    """Do what a program begins in a thread of its own; return what waits for it."""
    done: Future[Any] = Future()

    def do() -> None:
        try:
            value = work()
        except BaseException as error:  # the thread's top: whoever waits gets it
            done.set_exception(error)
        else:
            done.set_result(value)

    threading.Thread(target=do, name="store", daemon=True).start()
    return done.result

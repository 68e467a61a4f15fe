"""Where a core's tasks are done: a thread for each, which works on stores, and asks the core in the turns of the event loop.

    event loop      Work ────┐            ┌─ turn ─┐                                 ┌──> Worked
    task's thread            └─ program ──┤  Ask   ├── hashes, waits ────────────────┘
    its helper                            └────────┴── a store's operation that was begun

All threads are daemons: a stop waits for them for a while only, since a store may hang. A program whose core has stopped ends with its next
question.

A task whose store does not answer, such as a network folder whose server is gone, is given up: its outcome says so, and the core goes on.
Its thread cannot be ended. So as long as it hangs no other task begins under that root: no second thread comes to hang there, and what the
first may yet do when the store answers, that one operation, is done before anybody looks.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import structlog

from ps_proto.errors import ParameterServerError, Recovering, StorageFailed
from ps_server.edge.aside import run_aside
from ps_server.edge.loop import Ask
from ps_server.edge.watched_store import Begun, Watch, WatchedStore
from ps_server.storage.program import run_beside
from ps_server.storage.programs import PROGRAMS
from ps_server.storage.roots import open_store
from ps_server.tasks import FindCheckpoint, LoadPart

STOP_GRACE_S = 1.0  # for a task that is under way, to end by itself
STORE_S = 300.0  # for one operation of a store: beyond what object stores retry for, and beyond the failover of a file server
LOOK_S = 1.0  # between two looks at a task under way

log = structlog.get_logger()


class Workbench:
    """Does the tasks of one core: `do` is the `do_task` of its CoreLoop.

    name     whose, for errors.     options  of object stores, as for `open_store`.
    store_s  as long as one operation of a store may take. A part that is loaded has no such limit: to go back to an older checkpoint would
             not be better than to wait; a line in the log says what it waits for.
    now_s    a monotonic time in seconds.     look_s  between two looks at it while a task is under way.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, str],
        *,
        stop_grace_s: float = STOP_GRACE_S,
        store_s: float = STORE_S,
        look_s: float = LOOK_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._options = options
        self._stop_grace_s = stop_grace_s
        self._store_s = store_s
        self._look_s = look_s
        self._now_s = now_s
        self._hanging: dict[asyncio.Future[None], tuple[str, StorageFailed]] = {}  # end of a thread -> where, and why it was given up

    async def do(self, task: object, ask: Ask) -> object:
        """Do a task and return its outcome, or raise what stands for it: StorageFailed where a store does not answer.

        Cancelling this ends its program at the next question.
        """
        kind, can_wait = type(task).__name__, isinstance(task, LoadPart)
        if not can_wait:
            self._check_answers(task)
        questions, watch = _Questions(self._name, ask), Watch(self._now_s)
        outcome: list[object] = []
        begun_s = self._now_s()

        def work() -> None:
            outcome.append(
                run_beside(
                    PROGRAMS[type(task)](task),
                    lambda root: WatchedStore(root, open_store(root, self._options), watch),
                    questions.ask,
                    _start,
                )
            )

        done = run_aside(kind, work)
        try:
            late = await self._end_or_late(done, watch, can_wait)
            if late is not None:
                self._give_up(late, done, watch, questions)
            await done
        except asyncio.CancelledError:
            questions.close()
            await asyncio.wait({done}, timeout=self._stop_grace_s)
            done.cancel()  # where it goes on, nobody hears of it
            raise
        except ParameterServerError as error:
            log.info("could not do a task", task=kind, took_s=round(self._now_s() - begun_s, 3), cause=str(error))
            raise
        log.debug("did a task", task=kind, took_s=round(self._now_s() - begun_s, 3))
        return outcome[0]

    # --- a store that hangs ----------------------------------------------------------------------------------------------

    def _check_answers(self, task: Any) -> None:
        """Raise where another task hangs below a root of this one."""
        roots = task.roots if isinstance(task, FindCheckpoint) else (task.root,)
        for root, error in self._hanging.values():
            if root in roots:
                raise error

    async def _end_or_late(self, done: "asyncio.Future[None]", watch: Watch, can_wait: bool) -> Begun | None:
        """Wait for a task's end; return the operation that takes too long, if one does."""
        told: Begun | None = None
        while not done.done():
            await asyncio.wait({done}, timeout=self._look_s)
            longest = watch.longest()
            if longest is None or done.done() or self._now_s() - longest.since_s < self._store_s or longest == told:
                continue
            log.warning("a store does not answer", root=longest.root, path=longest.path, for_s=round(self._store_s, 3))
            if not can_wait:
                return longest
            told = longest
        return None

    def _give_up(self, late: Begun, done: "asyncio.Future[None]", watch: Watch, questions: "_Questions") -> None:
        """Raise the error of a task that hangs; it does nothing more than what it hangs in, and until then nobody else works there."""
        error = StorageFailed(f"{late.root}/{late.path}".rstrip("/"), f"it has not answered for {self._store_s:.0f} s")

        def on_end(ended: "asyncio.Future[None]") -> None:
            del self._hanging[ended]
            ended.exception()  # nobody waits for it
            log.info("a store answers again", root=late.root)

        self._hanging[done] = (late.root, error)
        done.add_done_callback(on_end)
        watch.end(error)
        questions.close()
        raise error


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

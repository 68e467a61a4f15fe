"""Where a profile listens to a client: spans around its calls, for as long as the profile runs.

An attribute of the object hides the method of its class, and is taken away again: a client that nobody looks at has no branch more for it.
"""

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any

from ps_proto.requests import Assign, Barrier, Finish, Pull, Pulled, Push
from ps_worker.asking import Call, Operation
from ps_worker.client import Client
from ps_worker.driver import Handle
from ps_worker.profiling.stopwatch import Carried, Stopwatch

PULL, PUSH, END, BARRIER, OTHER = "pull", "push", "end", "barrier", "other"
KINDS: dict[type[Any], str] = {Pull: PULL, Push: PUSH, Finish: END, Barrier: BARRIER}
CALLS = "calls"  # to peers, in the thread that waits for them
PAUSE = "pause"  # before a peer is asked again that gave no answer
AWAIT = "await"  # for what was queued, which makes its calls in another thread
BESIDE = "beside"  # an operation in a thread of the client's

# A client's method -> the kind of what it does.
METHODS = {
    "pull": PULL,
    "pull_async": PULL,
    "pull_planned": PULL,
    "push": PUSH,
    "push_async": PUSH,
    "retry_push": PUSH,
    "end_step": END,
    "end_step_async": END,
    "mark": END,
    "flush": END,
    "barrier": BARRIER,
    "agree_async": BARRIER,
}
ENDS = ("end_step", "end_step_async")


class Taps:
    """Puts a stopwatch into a client's calls. `on_step_end`: called behind each call that ends a step, in its thread."""

    def __init__(self, client: Client, watch: Stopwatch, on_step_end: Callable[[], None]) -> None:
        self._watch = watch
        self._on_step_end = on_step_end
        self._hidden: list[tuple[Any, str]] = []
        connection = client.connection
        for name, kind in METHODS.items():
            self._hide(client, name, self._of_client(kind, is_end=name in ENDS))
        self._hide(connection.driver, "run", self._of_run)
        self._hide(connection.driver, "exchange", self._of_exchange)
        self._hide(connection.driver, "call", self._of_call)
        self._hide(connection.driver, "pause", self._of_pause)
        for lane, kind in ((connection.pulls, PULL), (connection.pushes, PUSH), (connection.barriers, BARRIER)):
            self._hide(lane, "wait", self._of_wait(kind))

    @staticmethod
    def are_in(client: Client) -> bool:
        """Return whether a client is listened to."""
        return "pull" in vars(client)

    def remove(self) -> None:
        """Let all be as it was before; a second time does nothing."""
        while self._hidden:
            owner, name = self._hidden.pop()
            delattr(owner, name)

    def _hide(self, owner: Any, name: str, tap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        method = getattr(owner, name)
        setattr(owner, name, wraps(method)(tap(method)))
        self._hidden.append((owner, name))

    # --- what is put around what -------------------------------------------------------------------------------------------------

    def _of_client(self, kind: str, is_end: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def tap(method: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*args: Any, **kwargs: Any) -> Any:
                with self._watch.span(kind, kind):
                    outcome = method(*args, **kwargs)
                if isinstance(outcome, Handle):
                    outcome.waiting = self._watch.span(AWAIT, kind)
                if is_end:
                    self._on_step_end()
                return outcome

            return timed

        return tap

    def _of_wait(self, kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def tap(method: Callable[..., Any]) -> Callable[..., Any]:
            def timed() -> None:
                with self._watch.span(AWAIT, kind):
                    method()

            return timed

        return tap

    def _of_run(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(operation: Operation[Any]) -> Any:
            if get_ident() == self._watch.thread:
                return method(operation)
            with self._watch.span(BESIDE):
                return method(operation)

        return timed

    def _of_exchange(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(calls: tuple[Call, ...]) -> Any:
            kind = KINDS.get(type(calls[0].body), OTHER) if calls else OTHER
            with self._watch.span(CALLS, kind):
                return method(calls)

        return timed

    def _of_pause(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(seconds: float) -> None:
            stack = self._watch.stack()
            kind = stack[-1].kind if stack else ""
            with self._watch.span(PAUSE, kind or OTHER):
                method(seconds)

        return timed

    def _of_call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(call: Call) -> Any:
            watch = self._watch
            begin_s = watch.now_s()
            outcome = method(call)
            end_s = watch.now_s()
            kind = KINDS.get(type(call.body), OTHER)
            watch.carry(Carried(kind, call.peer, get_ident(), begin_s, end_s, _sent_bytes(call.body), _received_bytes(outcome)))
            return outcome

        return timed


def _sent_bytes(body: Any) -> int:
    if isinstance(body, Pull):
        return sum([part.ids.nbytes for part in body.tables])
    if isinstance(body, Push | Assign):
        return sum([part.ids.nbytes + part.rows.nbytes for part in body.tables])
    return 0


def _received_bytes(outcome: Any) -> int:
    return sum([rows.nbytes for rows in outcome.rows]) if isinstance(outcome, Pulled) else 0

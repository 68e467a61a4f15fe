"""Runs the protocol's operations over a transport: in the caller's thread, or queued in the order in which they were handed in."""

import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ps_proto.errors import ParameterServerError
from ps_worker.asking import Call, Exchange, Operation

CALLS_MAX = 512  # threads, made as they are needed: a pull and a push at once to the most servers that a cluster has

T = TypeVar("T")


class Transport(Protocol):
    """Carries one request to one address and brings back its reply. Safe to use from several threads."""

    def call(self, address: str, body: Any, timeout_s: float, peer: str = ...) -> Any:
        """Return the reply, or raise the ParameterServerError that stands for its lack; `body` is of a class in METHODS."""
        ...

    def lend(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return memory from which calls send what lies in it without one more copy, at a multiple of 64; None where there is none."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


class Handle(Generic[T]):
    """What becomes of an operation that was queued. `waiting`: entered for as long as somebody waits for its result."""

    waiting: AbstractContextManager[object] = nullcontext()

    def __init__(self, future: "Future[T]", before_wait: Callable[[], None] | None = None) -> None:
        """`before_wait` is called before a wait for what has not ended: it may be what lets that begin."""
        self._future = future
        self._before_wait = before_wait
        self._is_heard = False

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the result and return it, or raise the error it ended in; TimeoutError after `timeout_s`."""
        try:
            with self.waiting:
                before_wait = self._before_wait
                if before_wait is not None and not self._future.done():
                    before_wait()
                return self._future.result(timeout_s)
        finally:
            self._is_heard = self._future.done()

    def raise_unheard(self) -> None:
        """Raise the error of one that has ended in it, unless `result` has told somebody."""
        if not self._is_heard and not self._future.cancelled():
            self.result()

    @property
    def may_be_unheard(self) -> bool:
        """Whether it has, or may come to, an error for `raise_unheard`."""
        if self._is_heard or self._future.cancelled():
            return False
        return not self._future.done() or self._future.exception() is not None

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._future.done()

    def cancel(self) -> None:
        """Let go of it: what has not begun never begins, and what has ends unheard."""
        self._future.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether it was let go of before it began."""
        return self._future.cancelled()

    def run(self, work: Callable[[], T]) -> None:
        """Do the work and let its result or error be the handle's; one that is cancelled is not done."""
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            self._future.set_result(work())
        except BaseException as error:
            _empty_frames(error)
            self._future.set_exception(error)
        self._before_wait = None  # it may hold the client, whose lane may keep this handle

    def fail(self, error: BaseException) -> None:
        """End it with an error."""
        self._future.set_exception(error)


def _empty_frames(error: BaseException) -> None:
    """Let go of what the frames hold that an error came through: it may be kept for long, and they had arrays."""
    chain: BaseException | None = error
    while chain is not None:
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__cause__ or chain.__context__


class Driver:
    """Makes the calls of an Exchange at once, each to its peer."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._calls = ThreadPoolExecutor(max_workers=CALLS_MAX, thread_name_prefix="rowstead-call")

    def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end; return its result or raise its error."""
        outcome: Any = None
        try:
            while True:
                effect = operation.send(outcome)
                if isinstance(effect, Exchange):
                    outcome = self.exchange(effect.calls)
                else:
                    self.pause(effect.seconds)
                    outcome = None
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            operation.close()  # after a Ctrl-C it puts its affairs in order now, not when the traceback is let go

    def exchange(self, calls: tuple[Call, ...]) -> list[Any]:
        """Make these calls at once; return their outcomes, in their order."""
        if len(calls) == 1:
            return [self.call(calls[0])]
        others = [self._calls.submit(self.call, call) for call in calls[1:]]
        first = [self.call(call) for call in calls[:1]]
        return first + [other.result() for other in others]

    def call(self, call: Call) -> Any:
        """Make one call; return its reply, or the error that stands for its lack."""
        try:
            return self.transport.call(call.address, call.body, call.timeout_s, call.peer)
        except ParameterServerError as error:
            return error

    def pause(self, seconds: float) -> None:
        """Do nothing for a while, before a peer that gave no answer is asked again."""
        time.sleep(seconds)

    def close(self) -> None:
        """End the threads and close the transport."""
        self._calls.shutdown(wait=True)
        self.transport.close()


class Lane:
    """Operations that run one after another, in the order in which they were handed in."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"rowstead-{name}")
        self._last: Future[Any] | None = None
        self._pid = os.getpid()
        self._handles: list[Handle[Any]] = []

    def run(self, operation: Operation[T]) -> T:
        """Run it in the caller's thread once what was queued before has ended."""
        self.wait()
        return self._driver.run(operation)

    def submit(
        self, operation: Operation[T], then: Callable[[T], Any] = lambda result: result, handle: Handle[Any] | None = None
    ) -> Handle[Any]:
        """Queue it; the result of the handle, a new one unless given, is `then(its result)`."""
        handle = handle or Handle(Future())
        self._last = self._thread.submit(handle.run, lambda: then(self._driver.run(operation)))
        # What has ended well is let go of: a pull's handle has its rows, and nobody may ever ask this lane for what is unheard.
        self._handles = [*[one for one in self._handles if one.may_be_unheard], handle]
        return handle

    def wait(self) -> None:
        """Wait until what is queued has ended, well or not: its own handle says how."""
        if self._last is not None and os.getpid() == self._pid:  # a forked child has no thread that would end it
            self._last.exception()

    def raise_unheard(self) -> None:
        """Wait for what is queued, and raise the first error whose handle nobody has asked for its result: it must not vanish."""
        self.wait()
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.raise_unheard()

    def raise_failed(self) -> None:
        """Raise the first error that has come and that nobody has heard; wait for nothing."""
        for handle in self._handles:
            if handle.done():
                handle.raise_unheard()

    def close(self) -> None:
        """Let what is queued end, then end the thread."""
        self._thread.shutdown(wait=True)

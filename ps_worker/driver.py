"""Runs the protocol's operations over a transport: in the caller's thread, or queued in the order in which they were handed in."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from ps_proto.errors import ParameterServerError
from ps_worker.asking import Call, Exchange, Operation

T = TypeVar("T")


class Transport(Protocol):
    """Carries one request to one address and brings back its reply. Safe to use from several threads."""

    def call(self, address: str, body: Any, timeout_s: float, peer: str = ...) -> Any:
        """Return the reply, or raise the ParameterServerError that stands for its lack; `body` is one of ps_proto.requests."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


class Handle(Generic[T]):
    """What becomes of an operation that was queued."""

    def __init__(self, future: "Future[T]") -> None:
        self._future = future

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the result and return it, or raise the error it ended in; TimeoutError after `timeout_s`."""
        return self._future.result(timeout_s)

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._future.done()

    def run(self, work: Callable[[], T]) -> None:
        """Do the work and let its result or error be the handle's."""
        try:
            self._future.set_result(work())
        except BaseException as error:
            self._future.set_exception(error)

    def fail(self, error: BaseException) -> None:
        """End it with an error."""
        self._future.set_exception(error)


class Driver:
    """Makes the calls of an Exchange at once, each to its peer."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._calls = ThreadPoolExecutor(max_workers=64, thread_name_prefix="rowstead-call")

    def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end; return its result or raise its error."""
        outcome: Any = None
        try:
            while True:
                effect = operation.send(outcome)
                if isinstance(effect, Exchange):
                    outcome = self._exchange(effect.calls)
                else:
                    time.sleep(effect.seconds)
                    outcome = None
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            operation.close()  # after a Ctrl-C it puts its affairs in order now, not when the traceback is let go

    def _exchange(self, calls: tuple[Call, ...]) -> list[Any]:
        others = [self._calls.submit(self._call, call) for call in calls[1:]]
        first = [self._call(call) for call in calls[:1]]
        return first + [other.result() for other in others]

    def _call(self, call: Call) -> Any:
        try:
            return self.transport.call(call.address, call.body, call.timeout_s, call.peer)
        except ParameterServerError as error:
            return error

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
        return handle

    def wait(self) -> None:
        """Wait until what is queued has ended, well or not: its own handle says how."""
        if self._last is not None:
            self._last.exception()

    def close(self) -> None:
        """Let what is queued end, then end the thread."""
        self._thread.shutdown(wait=True)

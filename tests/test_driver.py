"""The driver and its lanes, over a transport that the test holds in its hand."""

import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ps_proto.errors import UnknownTable, Unreachable
from ps_worker.asking import Call, Exchange, Operation, Pause
from ps_worker.driver import Driver, Handle, Lane


class FakeTransport:
    """Answers with the request's own body; a body that is an exception is raised, one that is an event is waited for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, float, str]] = []
        self.is_closed = False

    def call(self, address: str, body: Any, timeout_s: float, peer: str = "") -> Any:
        self.calls.append((address, body, timeout_s, peer))
        if isinstance(body, BaseException):
            raise body
        if isinstance(body, threading.Event):
            assert body.wait(10.0)
        if isinstance(body, threading.Barrier):
            body.wait(10.0)
        return f"{peer}: {body}" if isinstance(body, str) else body

    def lend(self, nbytes: int) -> None:
        return None

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver(FakeTransport())
    yield driver
    driver.close()


def exchange(*bodies: Any) -> Operation[list[Any]]:
    outcomes: list[Any] = yield Exchange(tuple([Call(f"peer-{k}", f"host-{k}", body, 5.0) for k, body in enumerate(bodies)]))
    return outcomes


def test_outcomes_come_in_the_order_of_the_calls(driver: Driver) -> None:
    error = Unreachable("peer-1", "host-1", 1.0, "timed out")
    assert driver.run(exchange("a", error, "c")) == ["peer-0: a", error, "peer-2: c"]
    assert sorted(driver.transport.calls, key=lambda call: call[0])[0] == ("host-0", "a", 5.0, "peer-0")  # type: ignore[attr-defined]


def test_the_calls_of_an_exchange_are_made_at_once(driver: Driver) -> None:
    together = threading.Barrier(20)
    assert len(driver.run(exchange(*[together] * 20))) == 20


def test_an_exchange_of_nothing_has_no_outcomes(driver: Driver) -> None:
    assert driver.run(exchange()) == []


def test_an_operation_that_pauses_goes_on(driver: Driver) -> None:
    def operation() -> Operation[str]:
        assert (yield Pause(0.0)) is None
        return "done"

    assert driver.run(operation()) == "done"


def test_an_error_of_an_operation_is_raised(driver: Driver) -> None:
    def operation() -> Operation[None]:
        (outcome,) = yield from exchange(UnknownTable("user"))
        raise outcome

    with pytest.raises(UnknownTable):
        driver.run(operation())


def test_a_bug_of_the_transport_is_no_outcome(driver: Driver) -> None:
    with pytest.raises(KeyError):
        driver.run(exchange(KeyError("bug")))
    with pytest.raises(KeyError):
        driver.run(exchange("a", KeyError("bug")))


def test_a_lane_keeps_the_order_and_handles_have_the_results(driver: Driver) -> None:
    lane, gate, order = Lane(driver, "test"), threading.Event(), []

    def operation(k: int) -> Operation[int]:
        yield from exchange(gate)
        order.append(k)
        return k

    handles: list[Handle[int]] = [lane.submit(operation(k), lambda k: 10 * k) for k in range(5)]
    assert not any(handle.done() for handle in handles)
    with pytest.raises(TimeoutError):
        handles[0].result(0.0)
    gate.set()
    assert lane.run(operation(5)) == 5  # once what was queued has ended
    assert order == [0, 1, 2, 3, 4, 5]
    assert [handle.result() for handle in handles] == [0, 10, 20, 30, 40]
    assert all(handle.done() for handle in handles)
    lane.close()


def test_an_exception_in_one_operation_does_not_stop_the_lane(driver: Driver) -> None:
    lane = Lane(driver, "test")

    def failing(error: Exception) -> Operation[None]:
        yield Pause(0.0)
        raise error

    first, second = lane.submit(failing(UnknownTable("user"))), lane.submit(failing(ZeroDivisionError()))
    lane.wait()  # is no place to raise what belongs to a handle
    third = lane.submit(exchange("a"))
    lane.wait()
    assert third.result() == ["peer-0: a"]
    for handle, error in ((first, UnknownTable), (second, ZeroDivisionError)):
        with pytest.raises(error):
            handle.result()
        with pytest.raises(error):  # and again
            handle.result()
    assert lane.run(exchange("b")) == ["peer-0: b"]
    lane.close()


def test_an_error_that_is_kept_keeps_nothing_that_the_operation_held(driver: Driver) -> None:
    class Large:
        pass

    def failing(held: Large) -> Operation[None]:
        try:
            (outcome,) = yield from exchange(UnknownTable("cause"))
            raise outcome
        except UnknownTable as error:
            raise Unreachable("peer", "address", 1.0, "cause") from error

    lane, large = Lane(driver, "test"), Large()
    gone = weakref.ref(large)
    handle = lane.submit(failing(large))
    del large
    with pytest.raises(Unreachable) as caught:
        handle.result()
    assert caught.value.__traceback__ is not None, "where it came from stays"
    lane.close()
    assert gone() is None


def test_a_forked_child_does_not_wait_for_what_its_parent_has_queued() -> None:
    script = """
import os, sys, threading
from ps_worker.asking import Call, Exchange
from ps_worker.driver import Driver, Lane

gate, parent = threading.Event(), os.getpid()

class Transport:
    def call(self, address, body, timeout_s, peer):
        if os.getpid() == parent:
            gate.wait()
        return body

def operation(body):
    return (yield Exchange((Call("peer", "address", body, 1.0),)))

lane = Lane(Driver(Transport()), "test")
queued = lane.submit(operation("queued"))
child = os.fork()
if child == 0:
    os._exit(0 if lane.run(operation("child")) == ["child"] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
gate.set()
assert queued.result() == ["queued"]
lane.close()
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_lane_keeps_only_handles_that_may_have_an_error_nobody_heard(driver: Driver) -> None:
    """A pull's handle has its rows: a loop that reads ahead must not gather them."""
    lane, gate = Lane(driver, "test"), threading.Event()
    asked, unasked = lane.submit(exchange("a")), lane.submit(exchange("b"))
    cancelled: Handle[None] = Handle(Future())
    cancelled.cancel()
    lane.submit(exchange("c"), handle=cancelled)
    failed = lane.submit(exchange(KeyError("unheard")))
    asked.result()
    lane.wait()
    waiting = lane.submit(exchange(gate))
    made = [weakref.ref(handle) for handle in (asked, unasked, cancelled, failed, waiting)]
    del asked, unasked, cancelled, failed, waiting
    found = [handle() is None for handle in made]
    gate.set()
    assert found == [True, True, True, False, False]
    with pytest.raises(KeyError, match="unheard"):
        lane.raise_unheard()
    lane.close()


def test_an_error_of_what_becomes_of_the_result_is_the_handles(driver: Driver) -> None:
    lane = Lane(driver, "test")
    handle = lane.submit(exchange("a"), lambda outcomes: outcomes[1])
    with pytest.raises(IndexError):
        handle.result()
    lane.close()


def test_two_lanes_go_on_beside_each_other(driver: Driver) -> None:
    one, other, gate = Lane(driver, "one"), Lane(driver, "other"), threading.Event()
    waiting = one.submit(exchange(gate))
    assert other.submit(exchange("a")).result(5.0) == ["peer-0: a"]
    assert not waiting.done()
    gate.set()
    assert waiting.result(5.0) == [gate]
    one.close()
    other.close()


def test_closing_lets_what_is_queued_end_and_ends_the_threads() -> None:
    before = set(threading.enumerate())
    driver = Driver(FakeTransport())
    lane = Lane(driver, "test")
    handles = [lane.submit(exchange("a", "b")) for _ in range(5)]
    lane.close()
    driver.close()
    assert all(handle.done() for handle in handles)
    assert driver.transport.is_closed  # type: ignore[attr-defined]
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("rowstead")]


def test_a_lane_that_was_never_used_waits_for_nothing(driver: Driver) -> None:
    lane = Lane(driver, "test")
    lane.wait()
    lane.close()

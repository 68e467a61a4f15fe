"""What a worker resumes from: when it is captured, and that it travels with the end of the step that it belongs to (R15, H3)."""

import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest

from clients import ITEM, USER, alone, each_mode, ones
from inprocess import Fault, InProcess
from ps_proto.codec import RESUME_BYTES_MAX
from ps_proto.errors import InvalidRequest, ObserverCannot, Unreachable
from ps_proto.requests import Finish, Pull, Push
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from ps_worker.client import Client
from ps_worker.driver import Handle
from ps_worker.records import Records

ON_ARRIVAL = [Async(), BoundedStaleness(1)]


class Script:
    """What a script has to say at each capture: its own words, or else how often it was asked."""

    def __init__(self) -> None:
        self.words = b""
        self.asked = 0
        self.threads: set[int] = set()

    def __call__(self) -> bytes:
        self.asked += 1
        self.threads.add(threading.get_ident())
        return self.words or b"state %d" % self.asked


def states(cluster: InProcess) -> list[tuple[int, bytes]]:
    """What the servers heard of steps that ended, each with its state, and once."""
    told = [body.finished for _, body in cluster.calls if isinstance(body, Pull | Finish) and body.finished is not None]
    return list(dict.fromkeys([(finished.clock, finished.resume) for finished in told]))


def captured(mode: Mode, servers: int = 2) -> tuple[InProcess, Client, Script]:
    cluster, client = alone(mode, servers, USER, ITEM)
    script = Script()
    client.provide_resume(script)
    return cluster, client, script


@each_mode
def test_a_step_ends_for_the_servers_once_the_loop_asks_for_its_next_batch(mode: Mode) -> None:
    cluster, client, script = captured(mode)
    with client:
        client.push("item", [1], ones(1, 2))
        client.end_step()
        assert (client.clock, script.asked, states(cluster)) == (1, 0, [])  # a scheduler may be stepped now
        script.words = b"after the scheduler"
        client.mark()
        client.mark()  # once a step
        assert script.asked == 1
        assert client.pull("item", [1]).tolist() == [[-1, -1]]
        assert states(cluster) == [(0, b"after the scheduler")]


@each_mode
def test_what_changes_behind_a_capture_is_said_once_more(mode: Mode) -> None:
    cluster, client, script = captured(mode)
    with client:
        client.push("item", [1], ones(1, 2))
        client.end_step()
        client.mark_again()  # nothing was captured yet
        script.words = b"before the evaluation"
        client.pull("item", [1])
        client.mark_again()  # nothing has changed
        script.words = b"behind the evaluation"
        client.mark_again()
        script.words = b"the loop is broken off"
        client.mark_later()
        assert script.asked == 3
        client.pull("item", [1])
        client.pull("item", [1])
        assert script.asked == 4
        assert states(cluster) == [(0, b"before the evaluation"), (0, b"behind the evaluation"), (0, b"the loop is broken off")]
        client.disconnect()
    with cluster.connect(0, 1, mode, resume=True) as resumed:
        assert resumed.resume == b"the loop is broken off"


@each_mode
def test_what_is_to_be_said_later_is_not_said_of_another_step_nor_by_one_that_disconnects(mode: Mode) -> None:
    cluster, client, script = captured(mode)
    client.end_step()
    client.mark()
    client.mark_later()
    client.end_step()
    client.mark()
    assert script.asked == 3
    client.mark_later()
    client.disconnect()
    assert script.asked == 3
    assert (0, b"state 3") not in states(cluster)


CALLS: dict[str, Callable[[Client], Any]] = {
    "pull": lambda client: client.pull("item", [1]),
    "pull_async": lambda client: client.pull_async("item", [1]).result(),
    "pull_planned": lambda client: client.pull_planned(["item"], lambda: {"item": np.array([1], np.uint64)}, client.turn).result(),
    "push": lambda client: client.push("item", [1], ones(1, 2)),
    "push_async": lambda client: client.push_async("item", [1], ones(1, 2)).result(),
    "retry_push": lambda client: client.retry_push(),
    "assign": lambda client: client.assign("item", [1], ones(1, 2)),
    "restore": lambda client: client.restore("item", Records(np.array([1], np.uint64), ones(1, 2), {})),
    "clear": lambda client: client.clear("item"),
    "flush": lambda client: client.flush(),
    "barrier": lambda client: client.barrier(),
    "agree_async": lambda client: client.agree_async(1).result(),
    "export": lambda client: client.export("item"),
    "end_step": lambda client: client.end_step(),
    "close": lambda client: client.close(),
}


@each_mode
@pytest.mark.parametrize("name", CALLS)
def test_where_nobody_marks_it_the_next_call_that_talks_to_the_servers_does(name: str, mode: Mode) -> None:
    cluster, client, script = captured(mode)
    with client:
        client.push("item", [1], ones(1, 2))
        client.end_step()
        CALLS[name](client)
        assert script.asked == 1
        client.close()
    assert states(cluster)[0] == (0, b"state 1")


@each_mode
def test_what_needs_no_server_captures_nothing(mode: Mode) -> None:
    _, client, script = captured(mode)
    with client:
        client.end_step()
        client.create_table(USER)
        client.set_optimizer("item", ITEM.optimizer)
        client.stats()
        assert not client.can_pull_ahead(["item"], client.turn + 5) or mode == Async()
        assert script.asked == 0


def test_a_pull_for_the_next_step_waits_for_the_capture_and_brings_it() -> None:
    """With ps.prefetch in a synchronous job the first pull of a step has been asked for long before (H3)."""
    cluster, client, script = captured(Sync())
    with client:
        handle = client.pull_async("item", [1], clock=1)
        client.push("item", [1], ones(1, 2))
        client.end_step()
        assert not any(isinstance(body, Pull) for _, body in cluster.calls)
        script.words = b"at the mark"
        client.mark()
        assert handle.result().tolist() == [[-1, -1]]
        assert states(cluster) == [(0, b"at the mark")]
        assert not any(isinstance(body, Finish) for _, body in cluster.calls)


@each_mode
def test_waiting_for_rows_that_only_the_capture_lets_come_captures(mode: Mode) -> None:
    cluster, client, script = captured(mode)
    with client:
        handle = client.pull_async("item", [1], clock=1)
        client.push("item", [1], ones(1, 2))
        client.end_step()
        handle.result(5.0)
        client.mark()
        assert script.asked == 1
        client.flush()
    assert states(cluster)[0] == (0, b"state 1")


def test_only_the_thread_that_trains_captures() -> None:
    _, client, script = captured(Sync())
    with client:
        handle = client.pull_async("item", [1], clock=1)
        client.end_step()
        thread = threading.Thread(target=lambda: handle.result(5.0))
        thread.start()
        client.mark()
        thread.join()
        assert script.threads == {threading.get_ident()}


@pytest.mark.parametrize("mode", ON_ARRIVAL, ids=str)
def test_an_early_read_of_the_next_step_does_not_say_that_this_one_is_over(mode: Mode) -> None:
    cluster, client, _ = captured(mode)
    gate = threading.Event()

    def hold_pulls(address: str, body: Any) -> None:
        if isinstance(body, Pull):
            assert gate.wait(5.0)

    with client:
        cluster.before = hold_pulls
        first = client.pull_async("item", [1], clock=0)
        second = client.pull_async("item", [2], clock=1)  # queued behind it: it is made up after the step has ended
        client.push("item", [1], ones(1, 2))
        client.end_step()
        gate.set()
        wait([first._future, second._future], 5.0)  # not by their handles, which would mark
        assert states(cluster) == []
        client.mark()
        assert states(cluster) == [(0, b"state 1")]


@pytest.mark.parametrize("mode", ON_ARRIVAL, ids=str)
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_step_that_ends_beside_its_push_is_held_back_too(mode: Mode, is_marked: bool) -> None:
    cluster, client, script = captured(mode)
    with client:
        client.push_async("item", [1], ones(1, 2))
        ended: Handle[None] = client.end_step_async()
        assert (client.clock, script.asked, states(cluster)) == (1, 0, [])
        if is_marked:
            client.mark()
        ended.result(5.0)  # waiting for it marks it: nothing else might come
        assert states(cluster) == [(0, b"state 1")]


@pytest.mark.parametrize("mode", ON_ARRIVAL, ids=str)
def test_what_is_captured_travels_with_its_own_step_where_several_end_beside_their_pushes(mode: Mode) -> None:
    cluster, client, script = captured(mode)
    pushed = threading.Event()

    def hold_pushes(address: str, body: Any) -> None:
        if isinstance(body, Push):
            assert pushed.wait(5.0)

    cluster.before = hold_pushes
    with client:
        for number in range(5):
            client.push_async("item", [1, 2, 3], ones(3, 2))  # marks the step before
            client.end_step_async()
            script.words = b"after step %d" % number
        assert states(cluster) == []
        pushed.set()
        client.flush()
        assert states(cluster) == [(number, b"after step %d" % number) for number in range(5)]
        client.disconnect()
    with cluster.connect(0, 1, mode, resume=True) as resumed:
        assert (resumed.clock, resumed.resume) == (5, b"after step 4")
        assert resumed.pull("item", [1, 2, 3]).tolist() == [[-5, -5]] * 3


def test_what_changes_behind_the_last_of_several_steps_is_said_of_that_one() -> None:
    cluster, client, script = captured(Async())
    with client:
        cluster.faults.append(Fault(Finish, "server-0:0", is_lost=True, count=1_000))
        ended = []
        for number in range(3):
            ended.append(client.end_step_async())
            script.words = b"after step %d" % number
            client.mark()
        for handle in ended:
            with pytest.raises(Unreachable):
                handle.result(5.0)
        cluster.faults.clear()
        cluster.calls.clear()
        script.words = b"behind step 2"
        client.mark_again()
        assert states(cluster) == [(0, b"after step 0"), (1, b"after step 1"), (2, b"behind step 2")]


def test_a_push_that_fails_beside_a_held_step_is_told_with_its_state_after_the_retry() -> None:
    cluster, client, _ = captured(Async(), 1)
    with client:
        cluster.down.add("server-0:0")
        pushed = client.push_async("item", [1], ones(1, 2))
        ended = client.end_step_async()
        client.mark()
        for handle in (pushed, ended):
            with pytest.raises(Exception, match=r"did not answer|never acknowledged"):
                handle.result(5.0)
        cluster.down.clear()
        client.retry_push()
        assert states(cluster) == [(0, b"state 1")]


@pytest.mark.parametrize("mode", ON_ARRIVAL, ids=str)
def test_servers_that_could_not_be_told_at_the_mark_are_told_by_the_next_pull(mode: Mode) -> None:
    cluster, client, script = captured(mode)
    with client:
        client.end_step()
        cluster.down.add("server-1:0")
        with pytest.raises(Unreachable):
            client.mark()
        cluster.down.clear()
        client.pull("item", [1])
        assert script.asked == 1
        assert set(states(cluster)) == {(0, b"state 1")}


@each_mode
def test_closing_a_step_with_pushes_captures_after_it(mode: Mode) -> None:
    cluster, client, script = captured(mode)
    client.push("item", [1], ones(1, 2))
    client.end_step()
    client.push("item", [1], ones(1, 2))
    client.close()
    assert script.asked == 2
    assert states(cluster) == [(0, b"state 1"), (1, b"state 2")]


def test_what_the_provider_raises_keeps_the_step_from_the_servers() -> None:
    cluster, client, script = captured(Async())

    def broken() -> bytes:
        raise ValueError("no state")

    client.provide_resume(broken)
    client.end_step()
    for _ in range(2):
        with pytest.raises(ValueError, match="no state"):
            client.pull("item", [1])
    assert states(cluster) == []
    client.provide_resume(script)
    client.pull("item", [1])
    assert states(cluster) == [(0, b"state 1")]
    client.close()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("text", "resume state is a str, but must be bytes"),
        (b"x" * (RESUME_BYTES_MAX + 1), "resume state is 65,537 bytes, but must be at most"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: Any, said: str) -> None:
    _, client, _ = captured(Async())
    with pytest.raises(InvalidRequest, match=said):
        client.end_step(resume=state)
    client.provide_resume(lambda: state)
    client.end_step()
    with pytest.raises(InvalidRequest, match=said):
        client.mark()
    client.disconnect()


def test_a_provider_that_reads_rows_is_told_that_it_must_not() -> None:
    _, client, _ = captured(Sync())
    client.provide_resume(lambda: bytes(client.pull("item", [1])))
    client.end_step()
    with pytest.raises(InvalidRequest, match="read from the servers while it is captured"):
        client.mark()
    client.disconnect()


@each_mode
def test_a_loop_of_its_own_gives_its_state_with_the_end_of_the_step(mode: Mode) -> None:
    cluster, client = alone(mode)
    with client:
        client.end_step(resume=b"mine")
        client.flush()
        client.end_step()
        client.flush()
    assert states(cluster) == [(0, b"mine"), (1, b"")]


@each_mode
def test_a_state_that_is_given_goes_before_the_providers(mode: Mode) -> None:
    cluster, client, script = captured(mode)
    with client:
        client.end_step(resume=b"mine")
        client.flush()
    assert (states(cluster), script.asked) == ([(0, b"mine")], 0)


def test_an_observer_resumes_nothing() -> None:
    cluster, client, _ = captured(Async())
    with client, cluster.connect() as observer:
        observer.mark()
        with pytest.raises(ObserverCannot, match="without a rank cannot resume"):
            observer.provide_resume(lambda: b"")

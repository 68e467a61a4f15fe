"""A client that goes on where its rank was: which step, with what state, and that each push of a step that is done again counts once."""

import pytest

from clients import ITEM, USER, alone, each_mode, ones
from inprocess import COORDINATOR, PATIENT, Fault, InProcess
from ps_proto.errors import StaleIncarnation, Unreachable
from ps_proto.requests import Barrier, Finish, Pull
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from ps_worker.client import Client
from ps_worker.protocol import BarriersAsked
from ps_worker.resume.replay import Replay

ON_ARRIVAL = [Async(), BoundedStaleness(1)]


def captured(client: Client) -> Client:
    client.provide_resume(lambda: b"clock %d" % client.clock)
    return client


def step(client: Client, count: int = 1) -> None:
    """Make some steps, each of which takes 1 from item 7."""
    for _ in range(count):
        client.push("item", [7], ones(1, 2))
        client.end_step()
        client.mark()


def again(cluster: InProcess, mode: Mode) -> Client:
    """Connect the worker that follows one which died."""
    return captured(cluster.connect(0, 1, mode, PATIENT, resume=True))


def row(client: Client) -> list[list[float]]:
    rows: list[list[float]] = client.pull("item", [7]).tolist()
    return rows


@each_mode
def test_a_worker_that_died_in_a_step_goes_on_with_that_step(mode: Mode) -> None:
    cluster, client = alone(mode, 2, USER, ITEM)
    step(captured(client), 3)
    client.push("item", [7], ones(1, 2))
    client.disconnect()
    with again(cluster, mode) as resumed:
        assert (resumed.clock, resumed.is_resumed, resumed.resume, resumed.incarnation) == (3, True, b"clock 3", 2)
        step(resumed, 2)
        assert row(resumed) == [[-5, -5]]


@each_mode
def test_a_step_that_ended_before_the_capture_is_done_again_and_counts_once(mode: Mode) -> None:
    cluster, client = alone(mode, 2, USER, ITEM)
    step(captured(client))
    client.push("item", [7], ones(1, 2))
    client.end_step()  # the scheduler may not have been stepped yet
    assert client.clock == 2
    client.disconnect()
    with again(cluster, mode) as resumed:
        assert (resumed.clock, resumed.resume) == (1, b"clock 1")
        step(resumed)
        assert row(resumed) == [[-2, -2]]


@each_mode
@pytest.mark.parametrize("heard_by", ["server-0:0", "server-1:0"])
def test_a_step_that_one_server_has_heard_of_is_over(mode: Mode, heard_by: str) -> None:
    cluster, client = alone(mode, 2, USER, ITEM)
    captured(client)
    (deaf,) = {"server-0:0", "server-1:0"} - {heard_by}
    lost = [Fault(body, deaf, is_lost=True, count=1_000) for body in (Pull, Finish)]
    client.push("item", [7], ones(1, 2))
    client.end_step()
    cluster.faults.extend(lost)
    with pytest.raises(Unreachable):
        client.flush()
    client.disconnect()
    cluster.faults.clear()
    assert any(fault.fired for fault in lost)
    with again(cluster, mode) as resumed:
        assert (resumed.clock, resumed.resume) == (1, b"clock 1")
        step(resumed)
        assert row(resumed) == [[-2, -2]]


@pytest.mark.parametrize("mode", ON_ARRIVAL, ids=str)
def test_a_step_whose_push_was_still_on_its_way_is_done_again(mode: Mode) -> None:
    cluster, client = alone(mode, 1, ITEM)
    step(captured(client))
    client.push_async("item", [7], ones(1, 2))
    client.end_step_async()
    client.disconnect()
    with again(cluster, mode) as resumed:
        assert (resumed.clock, resumed.resume) == (1, b"clock 1")
        step(resumed)
        assert row(resumed) == [[-2, -2]]


@each_mode
def test_a_loop_of_its_own_resumes_from_what_it_gave_to_end_step(mode: Mode) -> None:
    cluster, client = alone(mode, 2, USER, ITEM)
    for number in range(3):
        client.push("item", [7], ones(1, 2))
        client.end_step(resume=b"mine %d" % number)
    client.flush()
    client.disconnect()
    with cluster.connect(0, 1, mode, PATIENT, resume=True) as resumed:
        assert (resumed.clock, resumed.resume) == (3, b"mine 2")
        assert row(resumed) == [[-3, -3]]


@each_mode
def test_without_a_finished_step_there_is_nothing_to_go_on_with(mode: Mode) -> None:
    cluster, client = alone(mode, 2, USER, ITEM)
    assert (client.is_resumed, client.resume) == (False, b"")
    captured(client).push("item", [7], ones(1, 2))
    client.disconnect()
    with again(cluster, mode) as resumed:
        assert (resumed.clock, resumed.is_resumed, resumed.resume) == (0, False, b"")
        step(resumed)
        assert row(resumed) == [[-1, -1]]


@each_mode
def test_who_does_not_resume_begins_above_every_step_that_is_known(mode: Mode) -> None:
    cluster, client = alone(mode, 2, USER, ITEM)
    step(captured(client))
    client.push("item", [7], ones(1, 2))
    client.flush()
    client.disconnect()
    with cluster.connect(0, 1, mode, PATIENT) as anew:
        assert (anew.clock, anew.is_resumed, anew.resume) == (1 if mode == Sync() else 2, False, b"")


@each_mode
def test_the_one_that_was_replaced_is_told_so_by_all_that_it_does(mode: Mode) -> None:
    cluster, client = alone(mode, 2, USER, ITEM)
    step(captured(client))
    with again(cluster, mode):
        for _ in range(2):
            with pytest.raises(StaleIncarnation):
                client.push("item", [7], ones(1, 2))
        with pytest.raises(StaleIncarnation):
            client.end_step()
    client.disconnect()


def test_barriers_go_on_with_the_number_that_they_had() -> None:
    cluster, client = alone(Async(), 1, USER)
    assert [client.agree_async(value).result() for value in (7, 8, 9)] == [7, 8, 9]
    assert client.barriers == BarriersAsked(next_one=3, passed=3)
    client.disconnect()
    with again(cluster, Async()) as resumed:
        resumed.follow(Replay(), BarriersAsked(next_one=2, passed=2))
        assert resumed.agree_async(5).result() == 9  # the one before it had passed this one
        assert resumed.agree_async(6).result() == 6
        assert resumed.agree_async(0, number=1).result() == 8
        assert resumed.barriers == BarriersAsked(next_one=4, passed=4)
    asked = [(body.generation, body.value) for _, body in cluster.calls if isinstance(body, Barrier) and body.incarnation == 2]
    assert asked == [(2, 0), (2, 5), (3, 6), (1, 0)]


def test_a_barrier_that_failed_keeps_its_number() -> None:
    cluster, client = alone(Async(), 1, USER)
    with client:
        cluster.down.add(COORDINATOR)
        with pytest.raises(Unreachable):
            client.barrier()
        cluster.down.clear()
        client.barrier()
        assert client.barriers == BarriersAsked(next_one=1, passed=1)

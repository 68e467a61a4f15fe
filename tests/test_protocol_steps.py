"""Who hears that a step is finished, and when."""

import pytest

from peers import NAMES, Peers, ids_of, rows_of, shard_map
from ps_proto.errors import InvalidRequest, NotOwner, UnfinishedPush, Unreachable
from ps_proto.requests import Fence, Finish, Finished, LeaveJob, Pull, Push, StepOrder
from ps_proto.values import SGD, Async, BoundedStaleness, Mode, Sync, TableSpec
from ps_worker.protocol import COORDINATOR
from scripted import silence


@pytest.fixture
def peers() -> Peers:
    return Peers(Sync()).joined()


def test_with_synchronous_tables_finished_goes_to_every_server_with_the_next_pull(peers: Peers) -> None:
    peers.push(0)
    peers.heard()
    peers.run(peers.worker.end_step())
    assert peers.worker.clock == 1
    assert peers.heard() == []  # nothing before the next step asks
    peers.pull(1)
    heard = peers.heard()
    assert [(peer, body.finished, len(body.tables)) for peer, body in heard] == [
        ("server-1", Finished(0), 1),
        ("server-0", Finished(0), 0),
        ("server-2", Finished(0), 0),  # also who owns nothing of either
    ]
    assert {body.fence.clock for _, body in heard} == {1}
    peers.pull(1)
    assert [(peer, body.finished) for peer, body in peers.heard()] == [("server-1", None)]


def test_finished_goes_with_the_first_request_even_if_it_reads_nothing(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.pull()
    assert [(peer, body.finished) for peer, body in peers.heard()] == [(name, Finished(0)) for name in NAMES]


def test_finished_is_said_until_every_server_has_heard_it(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.on(Pull, silence, peer="server-2")
    with pytest.raises(Unreachable, match="server-2"):
        peers.pull(0)
    peers.heard()
    peers.pull(0)
    assert {body.finished for _, body in peers.heard()} == {Finished(0)}
    peers.pull(0)
    assert {body.finished for _, body in peers.heard()} == {None}


def test_the_first_push_of_a_step_is_preceded_by_finished(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.push(1)
    assert [(peer, type(body)) for peer, body in peers.heard()] == [*[(name, Finish) for name in NAMES], ("server-1", Push)]


def test_a_second_end_step_says_the_first(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.run(peers.worker.end_step())
    assert [(peer, body.finished) for peer, body in peers.heard()] == [(name, Finished(0)) for name in NAMES]
    peers.run(peers.worker.flush())
    assert [(peer, body.finished, body.wait_s) for peer, body in peers.heard()] == [(name, Finished(1), 10.0) for name in NAMES]


def test_finished_is_not_said_before_all_of_the_steps_pushes_are_acknowledged(peers: Peers) -> None:
    peers.on(Push, *[silence] * 4, peer="server-1")
    with pytest.raises(Unreachable):
        peers.push(0, 1)
    with pytest.raises(UnfinishedPush):
        peers.run(peers.worker.end_step())
    assert peers.worker.clock == 0
    peers.run(peers.worker.pull([("dense", ids_of(0))]))
    assert not [body for _, body in peers.heard() if getattr(body, "finished", None) is not None]


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
def test_without_synchronous_tables_end_step_says_it_at_once(mode: Mode) -> None:
    peers = Peers(mode, tables=(TableSpec("sparse", 1, SGD(0.5)),)).joined()
    peers.run(peers.worker.end_step())
    assert [(peer, body.finished, body.wait_s) for peer, body in peers.heard()] == [(name, Finished(0), 0.0) for name in NAMES]
    peers.pull(0, table="sparse")
    assert [body.finished for _, body in peers.heard()] == [None]


def test_finished_survives_not_owner(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.map = shard_map(2)
    peers.on(Pull, NotOwner("server-1", 2), peer="server-1")
    peers.pull(0)
    again = [body for _, body in peers.heard() if isinstance(body, Pull) and body.fence.map_version == 2]
    assert [body.finished for body in again] == [Finished(0)] * 3


def test_leaving_finishes_a_step_with_pushes_and_waits_and_then_tells_the_coordinator(peers: Peers) -> None:
    peers.push(0)
    peers.heard()
    peers.run(peers.worker.leave())
    heard = peers.heard()
    assert [(peer, body) for peer, body in heard[:3]] == [
        (name, Finish(Fence(1, 0, 4, 1, 0), Finished(0), leave=True, wait_s=10.0)) for name in NAMES
    ]
    assert heard[3:] == [(COORDINATOR, LeaveJob(0, 4))]


def test_leaving_a_step_without_pushes_does_not_finish_it(peers: Peers) -> None:
    peers.run(peers.worker.leave())
    assert [(body.finished, body.leave) for peer, body in peers.heard() if peer != COORDINATOR] == [(None, True)] * 3
    assert peers.worker.clock == 0


def test_the_coordinator_is_not_told_of_a_leaving_that_some_server_did_not_hear(peers: Peers) -> None:
    peers.on(Finish, *[silence] * 5, peer="server-1")
    with pytest.raises(Unreachable):
        peers.run(peers.worker.leave())
    assert COORDINATOR not in [peer for peer, _ in peers.heard()]


ASYNC_ONLY = (TableSpec("sparse", 1, SGD(0.5)),)


def test_a_step_that_ends_now_is_announced_when_its_push_is_acknowledged() -> None:
    peers = Peers(Async(), tables=ASYNC_ONLY).joined()
    pushed = peers.worker.push([("sparse", ids_of(0), rows_of(1.0))])
    ended = peers.worker.end_step_now()
    assert peers.worker.clock == 1
    peers.pull(0, table="sparse")  # of the next step, while the push is under way
    assert [(body.fence.clock, body.finished) for _, body in peers.heard()] == [(1, None)]
    peers.run(pushed)
    peers.run(ended)
    heard = [body for _, body in peers.heard()]
    assert [(type(body), body.fence.clock) for body in heard] == [(Push, 0), *[(Finish, 1)] * 3]
    assert {body.finished for body in heard[1:]} == {Finished(0)}


def test_a_step_whose_push_is_held_up_is_announced_after_the_retry() -> None:
    peers = Peers(Async(), tables=ASYNC_ONLY).joined()
    peers.on(Push, *[silence] * 20, peer="server-1")
    pushed = peers.worker.push([("sparse", ids_of(0, 1), rows_of(1.0, 2.0))])
    ended = peers.worker.end_step_now()
    with pytest.raises(Unreachable):
        peers.run(pushed)
    with pytest.raises(UnfinishedPush):
        peers.run(ended)
    assert not [body for _, body in peers.heard() if isinstance(body, Finish)]
    peers.hooks.clear()
    peers.run(peers.worker.retry_push())
    heard = [body for _, body in peers.heard()]
    assert {(body.fence.clock, body.seq) for body in heard if isinstance(body, Push)} == {(0, 1)}  # its own name, in step 1
    assert [body.finished for body in heard if isinstance(body, Finish)] == [Finished(0)] * 3


@pytest.mark.parametrize("name", ["end_step", "flush", "leave"])
def test_a_step_whose_retried_push_is_refused_is_announced_by_whatever_comes_next(name: str) -> None:
    peers = Peers(Async(), tables=ASYNC_ONLY).joined()
    peers.on(Push, *[silence] * 20, peer="server-1")
    pushed, ended = peers.worker.push([("sparse", ids_of(1), rows_of(1.0))]), peers.worker.end_step_now()
    with pytest.raises(Unreachable):
        peers.run(pushed)
    with pytest.raises(UnfinishedPush):
        peers.run(ended)
    peers.hooks.clear()
    peers.on(Push, InvalidRequest("rows", "of another kind", "of this one"))
    with pytest.raises(InvalidRequest):
        peers.run(peers.worker.retry_push())
    peers.heard()
    peers.run(getattr(peers.worker, name)())
    heard = [(peer, body.finished) for peer, body in peers.heard() if isinstance(body, Finish)]
    assert heard[:3] == [(server, Finished(0)) for server in NAMES]


def test_an_end_that_is_run_behind_a_later_step_says_its_own_alone() -> None:
    peers = Peers(Async(), tables=ASYNC_ONLY).joined()
    first, second = peers.worker.end_step_now(), peers.worker.end_step_now()
    peers.run(first)
    assert [body.finished for _, body in peers.heard()] == [Finished(0)] * 3  # a push of step 1 may be under way
    peers.run(second)
    assert [body.finished for _, body in peers.heard()] == [Finished(1)] * 3


def test_what_ended_before_a_request_is_said_to_all_before_it_and_only_that() -> None:
    peers = Peers(Async(), tables=ASYNC_ONLY).joined()
    ends = [peers.worker.end_step_now() for _ in range(2)]
    pushed = peers.worker.push([("sparse", ids_of(1), rows_of(1.0))])
    ends.append(peers.worker.end_step_now())
    peers.on(Finish, *[silence] * 20, peer="server-1")
    with pytest.raises(Unreachable):
        peers.run(ends[0])
    peers.hooks.clear()
    peers.heard()
    peers.run(peers.worker.pull([("sparse", ids_of(1))]))
    assert peers.worker.clock == 3
    assert {body.finished for _, body in peers.heard()} == {Finished(0)}  # what may be said by now
    peers.run(pushed)
    heard = [body for _, body in peers.heard()]
    assert [body.finished for body in heard if isinstance(body, Finish)] == [Finished(1)] * 3
    assert [body.fence.clock for body in heard if isinstance(body, Push)] == [2]
    peers.run(ends[2])
    assert {body.finished for _, body in peers.heard()} == {Finished(2)}


def test_a_pull_tells_of_several_steps_that_some_server_could_not_be_told_of() -> None:
    peers = Peers(BoundedStaleness(0), tables=ASYNC_ONLY).joined()
    ends = [peers.worker.end_step_now() for _ in range(3)]
    peers.on(Finish, *[silence] * 60, peer="server-1")
    for end in ends:
        with pytest.raises(Unreachable):
            peers.run(end)
    peers.hooks.clear()
    peers.heard()
    peers.run(peers.worker.pull([("sparse", ids_of(1))]))
    told = [body.finished for server, body in peers.heard() if server == "server-1"]
    assert told == [Finished(0), Finished(1), Finished(2)]  # else it would wait for its own steps


def test_an_end_says_nothing_of_a_step_that_ends_while_it_is_looked_at() -> None:
    peers = Peers(Async(), tables=ASYNC_ONLY).joined()
    first = peers.worker.end_step_now()
    another = _EndsAnotherOnEntry(peers)
    peers.worker._steps._exclusive = another
    peers.run(first)
    assert another.fired
    assert {body.finished for _, body in peers.heard()} == {Finished(0)}  # Finished(1) is for that step's own end to say


class _EndsAnotherOnEntry:
    """A lock that another thread has just let go of, which ended the next step."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.fired = False

    def __enter__(self) -> None:
        if not self.fired:
            self.fired = True
            self._peers.worker.end_step_now()

    def __exit__(self, *_: object) -> None:
        pass


# --- what travels with the end of a step -------------------------------------------------------------------------------------


def admit(number: int) -> StepOrder:
    return StepOrder(number, "admit", 1, 2)


def test_a_step_that_is_held_is_heard_of_by_nobody_before_its_state_is_attached(peers: Peers) -> None:
    peers.run(peers.worker.end_step(is_held=True))
    assert peers.worker.clock == 1
    peers.worker.attach_resume(b"state")
    peers.run(peers.worker.announce_end())
    assert peers.heard() == []  # with synchronous tables the next step's first request says it
    peers.pull(1)
    assert {body.finished for _, body in peers.heard()} == {Finished(0, resume=b"state")}


def test_orders_travel_with_the_next_end_of_a_step_and_only_with_that(peers: Peers) -> None:
    peers.worker._steps.take_orders((admit(3),))
    peers.worker._steps.take_orders((admit(3), admit(4)))  # the coordinator says all of them each time
    for orders in ((admit(3), admit(4)), (), ()):
        peers.run(peers.worker.end_step())
        peers.pull(1)
        assert {body.finished.orders for _, body in peers.heard()} == {orders}
        peers.worker._steps.take_orders((admit(3), admit(4)))  # it has not heard yet that they are followed


def test_an_end_keeps_its_orders_in_every_repetition(peers: Peers) -> None:
    peers.worker._steps.take_orders((admit(3),))
    peers.run(peers.worker.end_step())
    peers.on(Pull, silence, peer="server-2")
    with pytest.raises(Unreachable, match="server-2"):
        peers.pull(0)
    peers.worker._steps.take_orders((admit(3), admit(4)))
    peers.pull(0)
    assert {body.finished for _, body in peers.heard()} == {Finished(0, orders=(admit(3),))}

"""A rank's lease: how it is renewed beside the training, what comes back with it, and how that ends."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clients import in_thread
from peers import PATIENCE, Peers, PeersTransport, kinds
from polling import poll_until
from ps_proto.errors import InvalidRequest, ObserverCannot, ParameterServerError, RolledBack, StaleIncarnation, Unreachable
from ps_proto.requests import Cluster, Finish, GetCluster, JobJoined, JoinJob, LeaseRenewed, Pull, RenewLease, StepOrder
from ps_proto.values import Mode, Sync
from ps_worker.asking import Call
from ps_worker.client import Client
from ps_worker.protocol import COORDINATOR
from scripted import silence

NEWER = StaleIncarnation(0, 5, 4)
BACK = RolledBack(0, 5, 1)
AWAY = Unreachable(COORDINATOR, "coordinator:1", 1.0, "connection refused")
ADMIT = StepOrder(3, "admit", 1, 2)


@pytest.fixture
def peers() -> Peers:
    return Peers(Sync()).joined()


def test_a_renewal_says_who_lives_and_where(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.on(RenewLease, LeaseRenewed((), 0))
    peers.run(peers.worker.renew())
    assert peers.heard() == [(COORDINATOR, RenewLease(0, 4, 1))]


def test_the_orders_of_a_renewal_travel_with_the_next_end_of_a_step(peers: Peers) -> None:
    peers.on(RenewLease, LeaseRenewed((ADMIT,), 0))
    peers.run(peers.worker.renew())
    peers.run(peers.worker.end_step())
    peers.heard()
    peers.pull(1)
    assert {body.finished.orders for _, body in peers.heard()} == {(ADMIT,)}


def test_a_renewal_is_one_attempt(peers: Peers) -> None:
    peers.on(RenewLease, silence)
    with pytest.raises(Unreachable):
        peers.run(peers.worker.renew())
    assert kinds(peers.heard()) == [(COORDINATOR, "RenewLease")]


@pytest.mark.parametrize(("lease_s", "timeout_s"), [(30.0, 10.0), (0.5, 1.0)])
def test_a_renewal_whose_answer_is_lost_leaves_time_for_another(peers: Peers, lease_s: float, timeout_s: float) -> None:
    timeouts: list[float] = []

    def renewed(call: Call) -> LeaseRenewed:
        timeouts.append(call.timeout_s)
        return LeaseRenewed((), 0)

    peers.on(JoinJob, JobJoined(5, 0, 6, 2, Sync(), 0, peers.map, peers.tables, rank=0, lease_s=lease_s))
    peers.run(peers.worker.join(0, 2, None, 1))
    peers.on(RenewLease, renewed)
    peers.run(peers.worker.renew())
    assert timeouts == [timeout_s]


def test_a_newer_timeline_is_looked_up_at_the_servers_which_know_the_clock(peers: Peers) -> None:
    peers.on(RenewLease, LeaseRenewed((), 1), LeaseRenewed((), 1))
    peers.on(GetCluster, *[Cluster(3, peers.map, (), 1, 2, Sync())] * 2)
    peers.run(peers.worker.renew())  # the servers have not heard of it yet
    peers.on(Finish, AWAY, peer="server-0")
    peers.on(Finish, BACK, peer="server-2")
    with pytest.raises(RolledBack, match="rank 0 goes on with step 5"):
        peers.run(peers.worker.renew())
    peers.heard()
    with pytest.raises(RolledBack):
        peers.pull(0)
    assert peers.heard() == []


def test_a_worker_that_was_replaced_is_told_by_its_lease_and_asks_nobody_more(peers: Peers) -> None:
    peers.on(RenewLease, NEWER)
    with pytest.raises(StaleIncarnation):
        peers.run(peers.worker.renew())
    peers.heard()
    for operation in (peers.worker.renew, peers.worker.end_step, peers.worker.flush):
        with pytest.raises(StaleIncarnation, match="Rank 0 has been taken over by incarnation 5; this is incarnation 4"):
            peers.run(operation())
    assert peers.heard() == []


def test_an_observer_has_no_lease() -> None:
    peers = Peers(Sync())
    peers.run(peers.worker.observe())
    with pytest.raises(ObserverCannot):
        peers.run(peers.worker.renew())


# --- the thread --------------------------------------------------------------------------------------------------------------


class Leased:
    """A client of scripted peers that has a lease, of `lease_s`; `renewals` counts. The script is used by two threads."""

    def __init__(self, lease_s: float = 0.006) -> None:
        self.peers = Peers(Sync())
        self.outcome: LeaseRenewed | ParameterServerError = LeaseRenewed((), 0)
        self.renewals = 0
        self.hold = threading.Event()
        self.hold.set()
        self.peers.hooks.append(self._answer)
        self._lease_s = lease_s
        self._transport = PeersTransport(self.peers)
        self.client = Client("coordinator:1", self._transport, PATIENCE, 0, 2, Sync())

    def _answer(self, call: Call) -> Any:
        match call.body:
            case JoinJob():
                mode: Mode = Sync()
                return JobJoined(4, 0, 6, 2, mode, 0, self.peers.map, self.peers.tables, rank=0, lease_s=self._lease_s)
            case RenewLease():
                self.renewals += 1
                while not (self.hold.wait(0.01) or self._transport.is_closed.is_set()):
                    pass
                return self.outcome
        return None

    def wait_for_renewals(self, count: int) -> None:
        begun = self.renewals
        poll_until(lambda: self.renewals >= begun + count, 5.0)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rowstead-lease"]


def is_over() -> bool:
    return not threads()


@pytest.fixture
def leased() -> Iterator[Leased]:
    leased = Leased()
    yield leased
    leased.client.disconnect()
    assert is_over()


def test_a_lease_is_renewed_until_the_client_closes(leased: Leased) -> None:
    (thread,) = threads()
    assert thread.daemon  # it keeps no process alive
    leased.wait_for_renewals(3)
    leased.client.close()
    assert is_over()


def test_closing_does_not_wait_for_a_coordinator_that_is_silent(leased: Leased) -> None:
    leased.hold.clear()
    leased.wait_for_renewals(1)
    leased.client.disconnect()
    assert is_over()


def test_without_a_lease_there_is_no_thread() -> None:
    leased = Leased(lease_s=0.0)
    assert is_over()
    leased.client.disconnect()


def test_a_client_that_is_let_go_of_renews_no_lease() -> None:
    leased = Leased()
    leased.wait_for_renewals(1)
    del leased.client
    poll_until(is_over, 5.0)


@pytest.mark.parametrize("call", [Client.end_step, Client.flush, lambda client: client.pull("dense", [1])])
def test_what_the_lease_has_learned_the_next_call_says(leased: Leased, call: Callable[[Client], Any]) -> None:
    leased.outcome = NEWER
    poll_until(is_over, 5.0)
    with pytest.raises(StaleIncarnation):
        call(leased.client)


def test_a_rollback_that_the_lease_has_learned_of_is_said_by_the_next_call(leased: Leased) -> None:
    leased.peers.on(Finish, BACK)
    leased.peers.on(GetCluster, Cluster(3, leased.peers.map, (), 1, 2, Sync()))
    leased.outcome = LeaseRenewed((), 1)
    poll_until(is_over, 5.0)
    with pytest.raises(RolledBack):
        leased.client.end_step()


def test_while_the_coordinator_is_away_training_goes_on_and_one_line_says_so(leased: Leased, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rowstead"):
        leased.outcome = AWAY
        leased.wait_for_renewals(10)
        leased.client.end_step()
        leased.outcome = LeaseRenewed((), 0)
        leased.wait_for_renewals(3)
    said = "Rank 0's lease is not renewed: the coordinator at coordinator:1 did not answer for 1.0 s (connection refused)."
    assert [message[: len(said)] for message in caplog.messages] == [said]
    assert caplog.messages[0].endswith("Training goes on.")


def test_an_unexpected_answer_does_not_end_the_lease(leased: Leased, caplog: pytest.LogCaptureFixture) -> None:
    """Such as to a renewal that comes right behind this rank's leaving."""
    leased.outcome = InvalidRequest("rank", "0, which has left", "a rank that takes part")
    leased.wait_for_renewals(10)
    assert threads()
    assert caplog.messages == []


def test_renewals_and_pulls_do_not_wait_for_each_other(leased: Leased) -> None:
    leased.hold.clear()
    leased.wait_for_renewals(1)
    assert leased.client.pull("dense", [1]).tolist() == [[10.0]]
    leased.hold.set()
    gate = threading.Event()
    leased.peers.on(Pull, lambda call: gate.wait(5.0) and None)
    thread, _ = in_thread(lambda: leased.client.pull("dense", [1]))
    leased.wait_for_renewals(3)
    gate.set()
    thread.join()

"""A server that dies without a copy, as clients see it: what they did is withdrawn, and their successors go on (R12, R15)."""

from collections.abc import Callable
from typing import Any

import pytest

from clients import ITEM, alone, each_mode, ones
from inprocess import PATIENT, InProcess
from polling import poll_until
from ps_proto.errors import RolledBack
from ps_proto.values import Async, Mode, Sync
from ps_worker.client import Client

IDS = range(20)  # so that each of the servers has some


def captured(client: Client) -> Client:
    client.provide_resume(lambda: b"clock %d" % client.clock)
    return client


def step(client: Client, count: int = 1) -> None:
    """Make some steps, each of which takes 1 from each row."""
    for _ in range(count):
        client.push("item", IDS, ones(len(IDS), 2))
        client.end_step()
        client.mark()


def rows(client: Client) -> set[float]:
    return set(client.pull("item", IDS).ravel().tolist())


def trained(mode: Mode, saves: bool = True, **options: Any) -> tuple[InProcess, Client]:
    """A cluster whose worker has a checkpoint of two steps behind it, and two more steps."""
    cluster, client = alone(mode, 2, ITEM, patience=PATIENT, **options)
    step(captured(client), 2)
    if saves:
        client.checkpoint("/kept")
    step(client, 2)
    client.flush()
    return cluster, client


CALLS: dict[str, Callable[[Client], Any]] = {
    "pull": lambda client: client.pull("item", IDS),
    "push": lambda client: client.push("item", IDS, ones(len(IDS), 2)),
    "flush": lambda client: client.flush(),
    "export": lambda client: client.export("item"),
    "close": lambda client: client.close(),
}


@each_mode
@pytest.mark.parametrize("name", CALLS)
def test_whatever_a_client_does_after_a_rollback_tells_it_and_its_successor_goes_on(name: str, mode: Mode) -> None:
    cluster, client = trained(mode)
    cluster.restart("server-1")
    with pytest.raises(RolledBack, match="where rank 0 goes on with step 2"):
        CALLS[name](client)
    for again in (Client.end_step, Client.barrier, Client.stats, CALLS["pull"]):
        if name != "close":
            with pytest.raises(RolledBack):
                again(client)
    client.disconnect()
    with captured(cluster.connect(0, 1, mode, PATIENT, resume=True)) as resumed:
        assert (resumed.clock, resumed.is_resumed, resumed.resume) == (2, True, b"clock 2")
        assert rows(resumed) == {-2}
        step(resumed, 3)
        assert rows(resumed) == {-5}


@each_mode
def test_without_a_checkpoint_all_begins_anew(mode: Mode) -> None:
    cluster, client = trained(mode, saves=False)
    cluster.restart("server-0")
    with pytest.raises(RolledBack, match="goes on with step 0"):
        client.pull("item", IDS)
    client.disconnect()
    with captured(cluster.connect(0, 1, mode, PATIENT, resume=True)) as resumed:
        assert (resumed.clock, resumed.is_resumed, resumed.resume) == (0, False, b"")
        assert rows(resumed) == {0}
        step(resumed)
        assert rows(resumed) == {-1}


@pytest.mark.parametrize("saves_before", [True, False])
def test_who_has_joined_by_name_finds_its_rank_again_or_joins_anew(saves_before: bool) -> None:
    """Its rank was another worker's until that had left, which the cluster goes back behind, or not."""
    cluster, first = trained(Async(), saves=False, lease_s=60.0)
    leaver = cluster.connect(patience=PATIENT, join="leaver")
    assert (leaver.rank, leaver.clock) == (1, 4)
    if saves_before:
        first.checkpoint("/kept")
    leaver.close()
    spare = cluster.connect(patience=PATIENT, join="spare")
    assert spare.rank == 1
    step(captured(spare), 2)
    if not saves_before:
        first.checkpoint("/kept")
    cluster.restart("server-1")
    with pytest.raises(RolledBack):
        spare.pull("item", IDS)
    again = captured(cluster.connect(patience=PATIENT, join="spare", resume=True))
    leaver = cluster.connect(patience=PATIENT, join="leaver", resume=True)
    if saves_before:
        assert (again.rank, again.is_resumed, again.resume) == (2, False, b"")
        assert (leaver.rank, leaver.clock, leaver.is_resumed) == (1, 4, False)
    else:
        assert (again.rank, again.is_resumed, again.resume) == (1, True, b"clock %d" % again.clock)
        assert leaver.rank == 2
    for client in (first, spare, again, leaver):
        client.disconnect()


def test_who_joined_after_the_checkpoint_is_told_so() -> None:
    cluster, first = trained(Async())
    spare = cluster.connect(patience=PATIENT, join="spare")
    cluster.restart("server-1")
    for call in ("pull", "push"):
        with pytest.raises(RolledBack, match=r"which is of before rank 1 joined. Start this worker again to join anew"):
            CALLS[call](spare)
    for client in (first, spare):
        client.disconnect()


def test_a_worker_that_asks_nobody_learns_of_it_from_its_lease() -> None:
    cluster, client = trained(Sync(), lease_s=0.3)
    cluster.restart("server-1")
    poll_until(lambda: client.connection.worker._view.over is not None)
    with pytest.raises(RolledBack):
        client.end_step()  # which asks nobody
    client.disconnect()


@each_mode
def test_an_observer_goes_on_looking(mode: Mode) -> None:
    cluster, client = trained(mode)
    with cluster.connect(patience=PATIENT) as observer:
        assert rows(observer) == {-4}
        cluster.restart("server-1")
        assert rows(observer) == {-2}
        assert set(observer.export("item")[0].tolist()) == set(IDS)
        assert len(observer.stats()) == 2
    client.disconnect()

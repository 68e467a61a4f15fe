"""Which server hears of a pull or an export, and as of which step."""

from typing import Any

import pytest

from peers import NAMES, Peers, at_steps, kinds, observer, shard_map
from ps_proto.errors import NotOwner, StalenessTimeout
from ps_proto.requests import Cluster, Fence, GetCluster, GetStats, OpenExport, Pull
from ps_proto.values import Sync
from ps_worker.protocol import COORDINATOR
from scripted import After


@pytest.fixture
def peers() -> Peers:
    return Peers(Sync()).joined()


def test_only_owners_hear_of_a_pull_and_rows_come_in_the_callers_order(peers: Peers) -> None:
    assert peers.pull(2, 0, 2) == [[20], [0], [20]]
    heard = peers.heard()
    assert kinds(heard) == [("server-0", "Pull"), ("server-2", "Pull")]
    for _, body in heard:
        assert body.fence == Fence(1, 0, 4, 0, 0)
        assert (body.finished, body.wait_s, body.at_step) == (None, 10.0, -1)
    assert [body.tables[0].ids.tolist() for _, body in heard] == [[0], [2]]


def test_a_pull_of_nothing_asks_nobody(peers: Peers) -> None:
    assert peers.pull() == []
    assert peers.heard() == []


def test_a_pull_after_not_owner_is_split_under_the_newer_map(peers: Peers) -> None:
    peers.map = shard_map(2, id_1=2)
    peers.on(Pull, NotOwner("server-1", 2), peer="server-1")
    assert peers.pull(0, 1) == [[0], [10]]
    heard = peers.heard()
    assert kinds(heard) == [
        ("server-0", "Pull"),
        ("server-1", "Pull"),
        (COORDINATOR, "GetCluster"),
        ("server-0", "Pull"),
        ("server-2", "Pull"),
    ]
    assert [body.fence.map_version for peer, body in heard if peer != COORDINATOR] == [1, 1, 2, 2]


def test_a_newer_map_that_the_coordinator_does_not_have_yet_is_waited_for(peers: Peers) -> None:
    peers.on(Pull, NotOwner("server-0", 2))
    peers.on(GetCluster, Cluster(3, None), Cluster(3, shard_map(1)), Cluster(3, shard_map(2)))
    assert peers.pull(0) == [[0]]
    assert len(peers.script.pauses) == 2


def test_a_newer_map_that_never_comes_is_an_error(peers: Peers) -> None:
    peers.on(Pull, NotOwner("server-0", 2))
    with pytest.raises(NotOwner):
        peers.pull(0)
    assert 5.0 <= peers.script.now_s < 7.0


def test_a_long_wait_says_whom_it_waits_for_and_ends(peers: Peers) -> None:
    peers.on(Pull, *[After(10.0, StalenessTimeout(3, 1, 0, 1, 10.0))] * 9)
    with pytest.raises(StalenessTimeout, match=r"waited 30\.0 s for rank 1"):
        peers.pull(0)
    assert [error.after_s for error in peers.script.told] == [10.0, 20.0]  # type: ignore[attr-defined]


def test_exports_of_a_synchronous_table_are_of_one_step() -> None:
    peers = observer()
    at_steps(peers, {"server-0": [4, 5], "server-1": [5], "server-2": [5]})
    opened = peers.run(peers.worker.open_exports("dense"))
    assert {server: answer.step for server, answer in opened.items()} == dict.fromkeys(NAMES, 5)


def test_a_workers_export_comes_after_its_finished_step(peers: Peers) -> None:
    peers.run(peers.worker.end_step())
    peers.run(peers.worker.open_exports("dense"))
    assert kinds(peers.heard()) == [*[(name, "Finish") for name in NAMES], *[(name, "OpenExport") for name in NAMES]]


@pytest.mark.parametrize("kind", [GetStats, OpenExport])
def test_looking_goes_on_under_a_newer_map(peers: Peers, kind: Any) -> None:
    peers.map = shard_map(2)
    peers.on(kind, NotOwner("server-0", 2), peer="server-0")
    answers = peers.run(peers.worker.stats() if kind is GetStats else peers.worker.open_exports("dense"))
    assert sorted(answers) == list(NAMES)
    assert [body.fence.map_version for _, body in peers.heard() if isinstance(body, kind)] == [1] * 3 + [2] * 3

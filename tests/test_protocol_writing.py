"""The names of pushes, and what may follow one that was not acknowledged."""

import numpy as np
import pytest

from peers import Peers, ids_of, rows_of, shard_map
from ps_proto.errors import InvalidRequest, NotOwner, PushPartlyTaken, TableFull, UnfinishedPush, Unreachable
from ps_proto.requests import UNNAMED, Assign, Push
from ps_proto.values import Sync
from scripted import silence


@pytest.fixture
def peers() -> Peers:
    return Peers(Sync()).joined()


def test_pushes_of_a_step_are_numbered_and_each_step_counts_anew(peers: Peers) -> None:
    names = []
    for _ in range(2):
        peers.push(0)
        peers.push(0, 1)
        peers.run(peers.worker.end_step())
        names += [(body.fence.clock, body.seq) for _, body in peers.heard() if isinstance(body, Push)]
    assert names == [(0, 1), (0, 2), (0, 2), (1, 1), (1, 2), (1, 2)]


def test_assignments_are_named_like_pushes(peers: Peers) -> None:
    peers.run(peers.worker.assign([("dense", ids_of(0), rows_of(3.0))], only_absent=False))
    peers.push(0)
    first, second = (body for _, body in peers.heard())
    assert isinstance(first, Assign)
    assert (first.seq, first.only_absent, second.seq) == (1, False, 2)


def test_start_values_take_no_name_so_that_who_redoes_the_step_may_put_them_or_not(peers: Peers) -> None:
    peers.run(peers.worker.assign([("dense", ids_of(0), rows_of(3.0))], only_absent=True))
    peers.push(0)
    first, second = (body for _, body in peers.heard())
    assert isinstance(first, Assign)
    assert (first.fence.clock, first.seq, first.only_absent, second.seq) == (0, UNNAMED, True, 1)


def test_a_push_is_split_by_owner_and_its_repeats_are_summed_in_the_callers_order(peers: Peers) -> None:
    big, small = 2.0**24, 1.0  # in float32, big + small + small is not big + (small + small)
    peers.run(peers.worker.push([("dense", ids_of(2, 1, 2, 2), rows_of(big, 5.0, small, small))]))
    heard = {peer: body.tables[0] for peer, body in peers.heard()}
    assert {peer: (part.ids.tolist(), part.rows.tolist()) for peer, part in heard.items()} == {
        "server-1": ([1], [[5.0]]),
        "server-2": ([2], [[big]]),
    }


def test_a_push_that_was_refused_has_used_no_name(peers: Peers) -> None:
    with pytest.raises(InvalidRequest, match="not finite"):
        peers.run(peers.worker.push([("dense", ids_of(0), rows_of(np.inf))]))
    peers.push(0)
    assert [body.seq for _, body in peers.heard()] == [1]


def test_a_name_is_given_when_the_operation_is_made(peers: Peers) -> None:
    first = peers.worker.push([("sparse", ids_of(0), rows_of(1.0))])
    second = peers.worker.push([("sparse", ids_of(0), rows_of(1.0))])
    peers.run(first)
    peers.run(second)
    assert [body.seq for _, body in peers.heard()] == [1, 2]


def test_a_push_is_sent_again_under_its_name_until_all_have_acknowledged(peers: Peers) -> None:
    peers.on(Push, silence, silence, peer="server-1")
    peers.push(0, 1)
    pushes = [(peer, body) for peer, body in peers.heard() if isinstance(body, Push)]  # beside looks at what became of the server
    assert [peer for peer, _ in pushes] == ["server-0", "server-1", "server-1", "server-1"]
    assert {(body.fence.clock, body.seq) for _, body in pushes} == {(0, 1)}


def test_after_not_owner_the_whole_push_is_split_again_under_the_same_name(peers: Peers) -> None:
    peers.map = shard_map(2, id_1=2)
    peers.on(Push, NotOwner("server-1", 2), peer="server-1")
    peers.push(0, 1)
    heard = [(peer, body) for peer, body in peers.heard() if isinstance(body, Push)]
    assert [(peer, body.fence.map_version, body.tables[0].ids.tolist()) for peer, body in heard] == [
        ("server-0", 1, [0]),
        ("server-1", 1, [1]),
        ("server-0", 2, [0]),  # acknowledged once already: its window knows the name
        ("server-2", 2, [1]),
    ]
    assert {(body.fence.clock, body.seq) for _, body in heard} == {(0, 1)}


def test_nothing_follows_a_push_that_was_not_acknowledged_but_itself(peers: Peers) -> None:
    peers.on(Push, *[silence] * 4, peer="server-1")
    with pytest.raises(Unreachable, match="server-1"):
        peers.push(0, 1)
    peers.heard()
    for attempt in (
        lambda: peers.push(0),
        lambda: peers.run(peers.worker.assign([("dense", ids_of(0), rows_of(1.0))], False)),
        lambda: peers.run(peers.worker.end_step()),
        lambda: peers.run(peers.worker.flush()),
        lambda: peers.run(peers.worker.leave()),
    ):
        with pytest.raises(UnfinishedPush, match="Push 1 of step 0"):
            attempt()
    assert peers.heard() == []
    peers.pull(0)  # reading is fine
    peers.heard()
    peers.run(peers.worker.retry_push())
    assert [(peer, body.seq) for peer, body in peers.heard()] == [("server-0", 1), ("server-1", 1)]
    peers.run(peers.worker.retry_push())
    assert peers.heard() == []
    peers.push(0)


def test_a_push_that_is_kept_has_arrays_of_its_own(peers: Peers) -> None:
    ids, rows = ids_of(0, 1), rows_of(1.0, 2.0)
    peers.on(Push, *[silence] * 4, peer="server-1")
    with pytest.raises(Unreachable):
        peers.run(peers.worker.push([("dense", ids, rows)]))
    rows[:] = 99.0
    ids[:] = 5
    peers.heard()
    peers.run(peers.worker.retry_push())
    assert [(peer, body.tables[0].ids.tolist(), body.tables[0].rows.tolist()) for peer, body in peers.heard()] == [
        ("server-0", [0], [[1.0]]),
        ("server-1", [1], [[2.0]]),
    ]


def test_a_push_that_every_owner_refused_is_no_unfinished_business(peers: Peers) -> None:
    peers.on(Push, TableFull("dense", 5), TableFull("dense", 5))
    with pytest.raises(TableFull):
        peers.push(0, 1)
    peers.push(0)
    assert [body.seq for _, body in peers.heard()] == [1, 1, 2]


def test_a_push_that_some_owner_took_stays_unfinished_when_another_refuses(peers: Peers) -> None:
    peers.on(Push, TableFull("dense", 5), peer="server-1")
    with pytest.raises(PushPartlyTaken):
        peers.push(0, 1)
    with pytest.raises(UnfinishedPush):
        peers.push(0)


def test_a_push_that_some_owner_may_have_taken_under_an_older_map_stays_unfinished(peers: Peers) -> None:
    peers.map = shard_map(2, id_0=1)
    peers.on(Push, NotOwner("server-1", 2), TableFull("dense", 5), peer="server-1")
    with pytest.raises(PushPartlyTaken):
        peers.push(0, 1)  # server-0 acknowledged id 0, then server-1 owns both and refuses
    with pytest.raises(UnfinishedPush):
        peers.push(0)

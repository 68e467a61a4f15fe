"""Which pulls a worker has remembered, and which pushes name one (R19)."""

from dataclasses import replace

import numpy as np
import pytest

from peers import ASYNC, SYNC, Peers, ids_of, rows_of, shard_map
from ps_proto.errors import InvalidRequest, NotOwner, PushPartlyTaken, TableFull, UnknownKeyList, Unreachable
from ps_proto.requests import Pull, Push
from ps_proto.values import Async, Sync
from ps_worker.protocol import key_lists
from ps_worker.protocol.key_lists import KeyLists
from ps_worker.router import Wanted
from scripted import silence

Named = dict[str, list[tuple[str, list[int], int]]]  # server -> of each table its name, the ids, and the number of the pull


@pytest.fixture
def peers() -> Peers:
    """A worker that has pushed to "sparse", so that its pulls of two ids and more are remembered."""
    peers = Peers(Async(), list_ids_min=2).joined()
    peers.push(0, table="sparse")
    peers.heard()
    return peers


def sent(peers: Peers, kind: type) -> list[Named]:
    """Return what of this kind was sent since the last time; requests to several servers at once are one."""
    found: list[Named] = []
    for peer, body in peers.heard():
        if isinstance(body, kind):
            tables = [(part.table, part.ids.tolist(), part.pull) for part in body.tables]  # type: ignore[attr-defined]
            if not found or peer in found[-1]:
                found.append({})
            found[-1][peer] = tables
    return found


def push(peers: Peers, *ids: int, table: str = "sparse") -> list[Named]:
    peers.heard()
    peers.push(*ids, table=table)
    return sent(peers, Push)


def pull(peers: Peers, *ids: int, table: str = "sparse") -> list[Named]:
    peers.heard()
    peers.pull(*ids, table=table)
    return sent(peers, Pull)


def numbers(requests: list[Named]) -> list[int]:
    return [number for request in requests for tables in request.values() for _, _, number in tables]


def test_a_push_of_what_was_pulled_names_the_pull_at_each_server(peers: Peers) -> None:
    assert pull(peers, 2, 1, 4) == [{"server-0": [("sparse", [4], 1)], "server-1": [("sparse", [1], 1)], "server-2": [("sparse", [2], 1)]}]
    peers.run(peers.worker.push([("sparse", ids_of(2, 1, 4), rows_of(20.0, 10.0, 40.0))]))
    bodies = {peer: body.tables[0] for peer, body in peers.heard()}
    assert {peer: (part.ids.size, part.pull, part.rows.tolist()) for peer, part in bodies.items()} == {
        "server-0": (0, 1, [[40.0]]),
        "server-1": (0, 1, [[10.0]]),
        "server-2": (0, 1, [[20.0]]),
    }


@pytest.mark.parametrize(
    "ids",
    [(1, 2, 4), (2, 1), (2, 1, 5), (2, 1, 4, 5), (2, 5, 4)],
    ids=["another order", "fewer", "another last one", "more", "another one"],
)
def test_other_ids_are_brought_along(peers: Peers, ids: tuple[int, ...]) -> None:
    pull(peers, 2, 1, 4)
    assert set(numbers(push(peers, *ids))) == {0}
    assert set(numbers(push(peers, 2, 1, 4))) == {1}


def test_an_array_that_was_changed_since_is_not_what_was_pulled(peers: Peers) -> None:
    ids = ids_of(2, 1, 4)
    peers.run(peers.worker.pull([("sparse", ids)]))
    ids[1] = 5
    assert set(numbers(push(peers, *ids.tolist()))) == {0}
    assert set(numbers(push(peers, 2, 1, 4))) == {1}


def test_what_is_pushed_by_name_stays_what_it_is_when_the_caller_changes_its_ids(peers: Peers) -> None:
    pull(peers, 2, 1, 4)
    ids = ids_of(2, 1, 4)
    operation = peers.worker.push([("sparse", ids, rows_of(1.0, 1.0, 1.0))])
    ids[:] = 9
    peers.on(Push, UnknownKeyList("server-0", "sparse", 1), peer="server-0")
    peers.run(operation)
    assert sent(peers, Push)[-1] == {"server-0": [("sparse", [4], 0)]}


def test_repeats_that_were_taken_once_to_read_are_so_to_write(peers: Peers) -> None:
    assert sorted(numbers(pull(peers, 2, 1, 2, 4))) == [1, 1, 1]
    assert set(numbers(push(peers, 2, 1, 2, 4))) == {1}


def test_only_tables_that_are_pushed_to_are_remembered_and_only_from_so_many_ids_on(peers: Peers) -> None:
    assert set(numbers(pull(peers, 1, 2, table="dense"))) == {0}
    assert set(numbers(pull(peers, 1))) == {0}
    peers.run(peers.worker.assign([("dense", ids_of(1, 2), rows_of(1.0, 2.0))], only_absent=False))
    assert set(numbers(pull(peers, 1, 2, table="dense"))) == {0}
    push(peers, 1, 2, table="dense")
    assert set(numbers(pull(peers, 1, 2, table="dense"))) == {1}


def test_an_observer_has_nothing_remembered() -> None:
    peers = Peers(Async(), list_ids_min=1)
    peers.run(peers.worker.observe())
    peers.pull(1, 2, table="sparse")
    assert set(numbers(sent(peers, Pull))) == {0}


def test_a_table_that_is_only_read_is_not_remembered_for_ever(peers: Peers) -> None:
    """Such as in an evaluation after some training."""
    asked = [set(numbers(pull(peers, 1, 2))) for _ in range(key_lists.READS_MAX + 2)]
    assert asked == [*[{number} for number in range(1, key_lists.READS_MAX + 1)], {0}, {0}]
    push(peers, 1)
    assert set(numbers(pull(peers, 1, 2))) == {key_lists.READS_MAX + 1}


def test_a_push_names_the_pull_of_each_table_that_has_one(peers: Peers) -> None:
    push(peers, 0, table="dense")
    peers.run(peers.worker.pull([("dense", ids_of(1, 2)), ("sparse", ids_of(2, 1))]))
    pull(peers, 1, 4)
    peers.heard()
    given = [("sparse", ids_of(2, 1), rows_of(1.0, 1.0)), ("dense", ids_of(2, 1), rows_of(1.0, 1.0))]
    peers.run(peers.worker.push(given))
    assert sent(peers, Push) == [{"server-1": [("sparse", [], 1), ("dense", [1], 0)], "server-2": [("sparse", [], 1), ("dense", [2], 0)]}]


def test_pulls_ahead_of_their_pushes_are_each_known(peers: Peers) -> None:
    for batch in range(3):
        pull(peers, batch, batch + 1)
    assert [set(numbers(push(peers, batch, batch + 1))) for batch in range(3)] == [{1}, {2}, {3}]
    assert set(numbers(push(peers, 0, 1))) == {0}, "pushes come in the order of the pulls: what is before the last one is forgotten"
    assert set(numbers(push(peers, 2, 3))) == {3}


def test_of_two_pulls_of_the_same_ids_the_newest_is_named(peers: Peers) -> None:
    """With it, servers drop what they keep of the older."""
    pull(peers, 2, 1)
    pull(peers, 2, 1)
    assert set(numbers(push(peers, 2, 1))) == {2}


def test_a_server_that_has_forgotten_gets_the_ids_and_the_others_are_not_asked_again(peers: Peers) -> None:
    pull(peers, 2, 1)
    peers.on(Push, UnknownKeyList("server-1", "sparse", 1), peer="server-1")
    peers.push(2, 1, table="sparse")
    heard = peers.heard()
    assert [peer for peer, _ in heard] == ["server-1", "server-2", "server-1"]
    first, _, again = [body for _, body in heard]
    assert (first.fence, first.seq) == (again.fence, again.seq)
    assert [(part.ids.tolist(), part.pull, part.rows.tolist()) for part in again.tables] == [([1], 0, [[1.0]])]
    assert set(numbers(push(peers, 2, 1))) == {0}, "that list is gone, here too"


def test_a_push_that_was_not_acknowledged_names_its_pull_when_it_is_repeated(peers: Peers) -> None:
    pull(peers, 2, 1)
    peers.on(Push, *[silence] * 10, peer="server-1")
    with pytest.raises(Unreachable):
        peers.push(2, 1, table="sparse")
    peers.hooks.clear()
    peers.heard()
    peers.on(Push, UnknownKeyList("server-1", "sparse", 1), peer="server-1")
    peers.run(peers.worker.retry_push())
    named, again = sent(peers, Push)
    assert set(numbers([named])) == {1}
    assert again == {"server-1": [("sparse", [1], 0)]}


def test_under_another_map_ids_are_split_and_brought_along(peers: Peers) -> None:
    pull(peers, 2, 1)
    peers.map = replace(shard_map(), version=2)
    peers.on(Push, NotOwner("server-1", 2), peer="server-1")
    assert push(peers, 2, 1)[-1] == {"server-1": [("sparse", [1], 0)], "server-2": [("sparse", [2], 0)]}
    assert set(numbers(push(peers, 2, 1))) == {0}


def test_a_pull_that_moves_to_another_map_is_remembered_there(peers: Peers) -> None:
    peers.map = replace(shard_map(), version=2)
    peers.on(Pull, NotOwner("server-1", 2), peer="server-1")
    assert [set(numbers([request])) for request in pull(peers, 2, 1)] == [{1}, {2}]
    assert set(numbers(push(peers, 2, 1))) == {2}


def test_a_pull_that_failed_names_nothing(peers: Peers) -> None:
    peers.on(Pull, *[silence] * 10, peer="server-1")
    with pytest.raises(Unreachable):
        pull(peers, 2, 1)
    assert set(numbers(push(peers, 2, 1))) == {0}


def test_a_refusal_by_a_server_that_has_forgotten_leaves_what_others_took(peers: Peers) -> None:
    pull(peers, 1, 4)
    peers.on(Push, UnknownKeyList("server-1", "sparse", 1), TableFull("sparse", 1), peer="server-1")
    with pytest.raises(PushPartlyTaken):  # server-0 has its part
        peers.push(1, 4, table="sparse")


def test_one_server_that_has_forgotten_and_then_refuses_has_taken_nothing() -> None:
    peers = Peers(Async(), list_ids_min=1)
    peers.map = shard_map(servers=1)
    peers.joined()
    push(peers, 1)
    pull(peers, 1)
    peers.on(Push, UnknownKeyList("server-0", "sparse", 1), TableFull("sparse", 1))
    with pytest.raises(TableFull):
        peers.push(1, table="sparse")
    peers.run(peers.worker.end_step())  # its name stays unused


def test_rows_that_are_not_finite_are_refused_as_ever(peers: Peers) -> None:
    pull(peers, 2, 1)
    with pytest.raises(InvalidRequest, match="not finite"):
        peers.run(peers.worker.push([("sparse", ids_of(2, 1), rows_of(1.0, np.inf))]))


def test_a_compressed_table_names_its_pulls_too() -> None:
    peers = Peers(Sync(), tables=(replace(SYNC, wire="bfloat16"), ASYNC), list_ids_min=1).joined()
    push(peers, 1, table="dense")
    pull(peers, 1, 2, table="dense")
    (request,) = push(peers, 1, 2, table="dense")
    assert set(numbers([request])) == {1}


# --- what is kept ------------------------------------------------------------------------------------------------------------


class Lock:
    """No lock; says where one would hang."""

    def __init__(self) -> None:
        self.is_held = False

    def __enter__(self) -> None:
        assert not self.is_held, "taken twice"
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False


def test_the_newest_pulls_of_a_table_are_kept_within_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = KeyLists(Lock(), ids_min=1)
    for table in ("sparse", "dense"):
        lists.find(Wanted(table, ids_of(0), None), 1)

    def asked(*ids: int) -> None:
        lists.answered(lists.route_pull([Wanted("sparse", ids_of(*ids), None), Wanted("dense", ids_of(*ids), None)], shard_map(servers=1)))

    def known(*ids: int) -> list[str]:
        found = {table: lists.find(Wanted(table, ids_of(*ids), None), 1) for table in ("sparse", "dense")}
        return [table for table, known in found.items() if known is not None]

    for first in range(key_lists.LISTS_MAX):
        asked(first, 7)
    assert known(100, 7) == []
    asked(100, 7)
    assert known(0, 7) == []  # one too many
    assert known(1, 7) == ["sparse", "dense"]
    monkeypatch.setattr(key_lists, "LISTS_BYTES_MAX", 3 * BYTES_OF_TWO)
    asked(200, 7)
    assert known(100, 7) == ["dense"]
    assert known(200, 7) == ["sparse", "dense"]


def test_a_list_is_of_the_map_under_which_its_parts_were_made() -> None:
    lists = KeyLists(Lock(), ids_min=1)
    wanted = Wanted("sparse", ids_of(1, 2), None)
    lists.find(wanted, 1)
    lists.answered(lists.route_pull([wanted], shard_map(version=1)))
    assert lists.find(wanted, 2) is None
    assert lists.find(wanted, 1) is not None


BYTES_OF_TWO = 1_024 + 2 * 24  # what a list of two ids counts for


@pytest.mark.parametrize(
    ("bytes_max", "remembered"),
    [(2 * BYTES_OF_TWO, [1, 1]), (2 * BYTES_OF_TWO - 1, [1, 0]), (BYTES_OF_TWO, [1, 0]), (BYTES_OF_TWO - 1, [0, 0])],
    ids=["both fit", "one fits", "just one", "none fits"],
)
def test_of_what_one_pull_asks_for_only_that_is_remembered_which_can_be_kept(
    bytes_max: int, remembered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_lists, "LISTS_BYTES_MAX", bytes_max)
    lists = KeyLists(Lock(), ids_min=1)
    wanted = [Wanted(table, ids_of(1, 2), None) for table in ("sparse", "dense")]
    for item in wanted:
        lists.find(item, 1)
    pulling = lists.route_pull(wanted, shard_map(servers=1))
    assert [part.pull for part in pulling.parts["server-0"]] == remembered
    lists.answered(pulling)
    assert [lists.find(item, 1) is not None for item in wanted] == [number > 0 for number in remembered]


def test_a_list_keeps_no_more_alive_than_its_own_ids() -> None:
    lists = KeyLists(Lock(), ids_min=1)
    wanted = Wanted.to_read("sparse", np.repeat(ids_of(3, 1), 1_000))
    assert wanted.ids.base is not None  # the beginning of an array as long as what was given
    lists.find(wanted, 1)
    lists.answered(lists.route_pull([wanted], shard_map(servers=1)))
    known = lists.find(wanted, 1)
    assert known is not None
    assert known.ids.base is None
    assert known.ids.tolist() == [3, 1]

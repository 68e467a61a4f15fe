"""Pushes in memory that is lent: laid as a frame has them, checked on the way, and refused before anything leaves."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from peers import ASYNC, SYNC, Peers, ids_of, rows_of, shard_map
from ps_proto.errors import InvalidRequest, NotOwner
from ps_proto.frames import filled
from ps_proto.requests import Push
from ps_proto.values import Async, Sync
from ps_worker.asking import Call
from ps_worker.protocol.key_lists import KeyList
from ps_worker.protocol.merged import Merged, lay
from ps_worker.rooms import Size, lends_nothing, rooms
from sharding.arrays import empty_aligned

FLOAT = np.dtype(np.float32)


class Lender:
    """Lends memory, and keeps it to look at."""

    def __init__(self) -> None:
        self.lent: list[NDArray[np.uint8]] = []

    def __call__(self, nbytes: int) -> NDArray[np.uint8]:
        self.lent.append(empty_aligned((nbytes,), np.dtype(np.uint8)))
        return self.lent[-1]


def begin_of(array: NDArray[np.generic], memory: NDArray[np.uint8]) -> int:
    return int(array.ctypes.data - memory.ctypes.data)


def test_ids_and_rows_lie_one_behind_another_each_filled_up() -> None:
    lender = Lender()
    room = rooms([Size(3, 5, FLOAT), Size(0, 5, FLOAT), Size(9, 1, np.dtype(np.uint16))], lender)
    assert room is not None
    arrays = [array for pair in room for array in pair]
    assert [(array.shape, array.dtype.name) for array in arrays] == [
        ((3,), "uint64"),
        ((3, 5), "float32"),
        ((0,), "uint64"),
        ((0, 5), "float32"),
        ((9,), "uint64"),
        ((9, 1), "uint16"),
    ]
    ends = np.cumsum([filled(array.nbytes) for array in arrays])
    assert [begin_of(array, lender.lent[0]) for array in arrays] == [0, *ends[:-1]]
    assert lender.lent[0].nbytes == ends[-1]


def test_where_nothing_is_lent_there_is_no_room_and_rows_stay_where_they_are() -> None:
    assert rooms([Size(3, 5, FLOAT)], lends_nothing) is None
    ids, rows = ids_of(1, 2), rows_of(1.0, 2.0)
    (item,) = lay([Merged.of("user", ids, rows, repeats=True)], lends_nothing)
    assert item.rows is rows


def test_what_is_laid_is_a_copy_with_repeats_summed() -> None:
    lender, ids, rows = Lender(), ids_of(7, 2, 7), rows_of(1.0, 5.0, 2.0)
    first, second = lay([Merged.of(name, ids, rows, repeats=True) for name in ("user", "item")], lender)
    ids[:], rows[:] = 0, 0.0
    assert [item.wanted.ids.tolist() for item in (first, second)] == [[7, 2]] * 2
    assert [item.rows.tolist() for item in (first, second)] == [[[3.0], [5.0]]] * 2
    assert begin_of(second.rows, lender.lent[0]) == 192


def test_rows_for_the_ids_of_a_list_lie_without_ids() -> None:
    lender, known = Lender(), KeyList(7, 1, ids_of(3, 9), {})
    given = [Merged.of(name, ids_of(3, 9), rows_of(1.0, 2.0), repeats=True) for name in ("user", "item", "other")]
    laid = lay([given[0].of_list(known), given[1].of_list(None), given[2].of_list(known)], lender)
    assert [begin_of(item.rows, lender.lent[0]) for item in laid] == [0, 128, 192]
    assert [item.wanted.ids.tolist() for item in laid] == [[3, 9]] * 3
    assert laid[0].wanted.ids is laid[2].wanted.ids is known.ids
    assert [item.rows.tolist() for item in laid] == [[[1.0], [2.0]]] * 3


@pytest.mark.parametrize("lend", [lends_nothing, Lender()], ids=["where it is", "laid"])
@pytest.mark.parametrize(("ids", "problem"), [((7, 2), "not finite (inf or nan)"), ((7, 7), "once repeats are summed")])
def test_what_is_not_finite_is_refused_by_the_name_of_its_table(lend: Lender, ids: tuple[int, int], problem: str) -> None:
    fine = Merged.of("user", ids_of(1), rows_of(1.0), repeats=True)
    with pytest.raises(InvalidRequest) as caught:
        lay([fine, Merged.of("item", ids_of(*ids), rows_of(1.0, np.nan), repeats=True)], lend)
    assert caught.value.field == "rows of table 'item'"
    assert problem in caught.value.got


# --- where a worker's pushes lie -------------------------------------------------------------------------------------------------


def joined(servers: int, wire: str = "float32", list_ids_min: int = 4_096) -> tuple[Lender, Peers]:
    lender = Lender()
    tables = (SYNC, replace(ASYNC, wire=wire))
    return lender, Peers(Async(), tables, servers=servers, lend=lender, list_ids_min=list_ids_min).joined()


def lies_in(array: NDArray[np.generic], lent: Sequence[NDArray[np.uint8]]) -> bool:
    return any([np.shares_memory(array, memory) for memory in lent])


def given(peers: Peers) -> dict[str, Push]:
    """Return the pushes that servers were sent since the last time."""
    return {peer: body for peer, body in peers.heard() if isinstance(body, Push)}


def arrays_of(pushes: dict[str, Push]) -> list[NDArray[np.generic]]:
    return [array for body in pushes.values() for part in body.tables for array in (part.ids, part.rows)]


def test_one_server_is_sent_what_was_laid_when_push_was_called() -> None:
    lender, peers = joined(servers=1)
    ids, rows = ids_of(3, 4), rows_of(1.0, 2.0)
    push = peers.worker.push([("dense", ids, rows), ("sparse", ids, rows)])
    assert len(lender.lent) == 1
    ids[:], rows[:] = 0, 0.0
    peers.run(push)
    pushes = given(peers)
    assert [(part.ids.tolist(), part.rows.tolist()) for part in pushes["server-0"].tables] == [([3, 4], [[1.0], [2.0]])] * 2
    assert all([lies_in(array, lender.lent) for array in arrays_of(pushes)])
    assert len(lender.lent) == 1


def test_several_servers_are_each_sent_what_was_gathered_for_them_tables_that_one_of_them_owns_alone_too() -> None:
    lender, peers = joined(servers=2)
    push = peers.worker.push([("dense", ids_of(0, 1), rows_of(1.0, 2.0)), ("sparse", ids_of(0), rows_of(3.0))])
    assert lender.lent == [], "who gets what is not known before it is sent"
    peers.run(push)
    pushes = given(peers)
    heard = {peer: [(part.table, part.rows.tolist()) for part in body.tables] for peer, body in pushes.items()}
    assert heard == {"server-0": [("dense", [[1.0]]), ("sparse", [[3.0]])], "server-1": [("dense", [[2.0]])]}
    assert len(lender.lent) == 2
    assert all([lies_in(array, lender.lent) for array in arrays_of(pushes)])


@pytest.mark.parametrize("servers", [1, 2])
def test_what_is_pushed_by_name_is_laid_without_its_ids(servers: int) -> None:
    lender, peers = joined(servers, list_ids_min=1)
    for _ in range(2):  # the first one shows that these tables are pushed to
        peers.run(peers.worker.pull([("dense", ids_of(0, 1)), ("sparse", ids_of(1, 0))]))
        peers.run(peers.worker.push([("dense", ids_of(0, 1), rows_of(1.0, 2.0)), ("sparse", ids_of(1, 0), rows_of(3.0, 4.0))]))
        lent = lender.lent[-servers:]
    second = [body for _, body in peers.heard() if isinstance(body, Push)][-servers:]
    assert [memory.nbytes for memory in lent] == [2 * 64] * servers
    for body, memory in zip(second, lent, strict=True):
        assert [part.ids.size for part in body.tables] == [0, 0]
        assert [begin_of(part.rows, memory) for part in body.tables] == [0, 64]
    assert sorted([row for body in second for part in body.tables for row in part.rows.ravel().tolist()]) == [1.0, 2.0, 3.0, 4.0]


def test_a_server_that_is_sent_all_of_it_needs_no_copy() -> None:
    lender, peers = joined(servers=2)
    peers.run(peers.worker.push([("dense", ids_of(1), rows_of(2.0))]))
    assert lender.lent == []


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_what_is_compressed_is_laid_once_it_is(wire: str) -> None:
    lender, peers = joined(1, wire)
    push = peers.worker.push([("sparse", ids_of(0, 1), rows_of(1.0, 2.0))])
    assert lender.lent == []
    peers.run(push)
    assert lender.lent == [], "one server: the lane copies it"
    peers.run(peers.worker.assign([("sparse", ids_of(0, 1), rows_of(1.0, 2.0))], only_absent=False))
    assert len(lender.lent) == 1, "assigned rows travel as they are"
    lender, peers = joined(2, wire)
    peers.run(peers.worker.push([("sparse", ids_of(0, 1), rows_of(1.0, 2.0))]))
    assert len(lender.lent) == 2
    assert all([lies_in(array, lender.lent) for array in arrays_of(given(peers))])


def test_a_table_whose_spec_is_not_known_yet_is_laid_by_the_lane() -> None:
    lender = Lender()
    peers = Peers(Sync(), (SYNC,), servers=1, lend=lender).joined()
    peers.tables = (SYNC, ASYNC)
    push = peers.worker.push([("sparse", ids_of(0), rows_of(1.0))])
    assert lender.lent == []
    peers.run(push)
    assert given(peers)["server-0"].tables[0].rows.tolist() == [[1.0]]


@pytest.mark.parametrize("servers", [1, 2])
def test_nothing_is_sent_anywhere_of_what_is_not_finite(servers: int) -> None:
    _, peers = joined(servers)
    with pytest.raises(InvalidRequest, match="not finite"):
        peers.worker.push([("dense", ids_of(0), rows_of(1.0)), ("sparse", ids_of(1), rows_of(np.inf))])
    assert given(peers) == {}


def test_a_map_that_changes_between_laying_and_sending_is_followed() -> None:
    lender, peers = joined(servers=1)
    push = peers.worker.push([("dense", ids_of(0, 1), rows_of(1.0, 2.0))])
    refused: list[str] = []

    def move(call: Call) -> NotOwner | None:
        if isinstance(call.body, Push) and call.body.fence.map_version == 1:
            refused.append(call.peer)
            peers.map = shard_map(2, servers=2)
            return NotOwner(call.peer, 2)
        return None

    peers.hooks.append(move)
    peers.run(push)
    assert refused == ["server-0"]
    rows = {peer: body.tables[0].rows.tolist() for peer, body in given(peers).items() if body.fence.map_version == 2}
    assert rows == {"server-0": [[1.0]], "server-1": [[2.0]]}
    assert len(lender.lent) == 3

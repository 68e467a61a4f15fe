"""The router by example; any ids and owners are properties/test_router_properties.py's."""

import numpy as np
import pytest

from ps_worker.router import Part, Wanted, join, route
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sharding.shard_map import Server, ShardMap

SERVERS = (Server("server-0", "host-0"), Server("server-1", "host-1"), Server("server-2", "host-2"))


def ids(*given: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(given, np.uint64)


def map_where(table: str, owners: dict[int, int], otherwise: int = 0) -> ShardMap:
    """The map in which these ids of the table have these owners."""
    of = np.full(NUM_BUCKETS, otherwise)
    for id, owner in owners.items():
        of[buckets_of(table_salt(table), ids(id))] = owner
    return ShardMap(1, SERVERS, of)


def test_repeats_are_asked_once_and_given_back_as_often_as_asked() -> None:
    wanted = Wanted.to_read("user", ids(7, 3, 7, 9))
    assert wanted.ids.tolist() == [7, 3, 9]
    assert wanted.inverse is not None
    assert wanted.inverse.tolist() == [0, 1, 0, 2]
    assert wanted.expand(np.array([[7.0], [3.0], [9.0]], np.float32)).tolist() == [[7], [3], [7], [9]]


def test_without_repeats_rows_are_given_back_as_they_came() -> None:
    wanted = Wanted.to_read("user", ids(7, 3))
    rows = np.ones((2, 1), np.float32)
    assert wanted.inverse is None
    assert wanted.expand(rows) is rows


MANY = 4_096  # ids: enough to look for repeats first


@pytest.mark.parametrize("repeats", [0, 1, MANY // 8, MANY // 8 + 1, MANY - 1])
def test_few_repeats_are_asked_as_given_to_read_and_once_to_write(repeats: int) -> None:
    given = np.arange(MANY, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    given[MANY - repeats :] = given[:repeats] if repeats < MANY - 1 else given[0]
    once = np.unique(given).size
    written = Wanted.to_write("user", given)
    assert written.ids.size == once == MANY - repeats
    assert (written.ids is given) == (repeats == 0)
    read = Wanted.to_read("user", given)
    assert (read.ids is given) == (repeats <= MANY // 8)
    rows = np.array([[id % 1009] for id in given.tolist()], np.float32)
    for wanted in (written, read):
        asked = np.array([[id % 1009] for id in wanted.ids.tolist()], np.float32)
        assert wanted.expand(asked).tolist() == rows.tolist()


def test_each_owner_gets_its_ids_in_the_callers_order() -> None:
    routed = route([Wanted.to_read("user", ids(7, 3, 9, 4))], map_where("user", {7: 2, 3: 0, 9: 2, 4: 0}))
    assert list(routed) == ["server-0", "server-2"]  # who owns nothing is not asked
    (first,), (second,) = routed["server-0"], routed["server-2"]
    assert (first.position, first.ids.tolist(), first.order.tolist() if first.order is not None else None) == (0, [3, 4], [1, 3])
    assert (second.position, second.ids.tolist(), second.order.tolist() if second.order is not None else None) == (0, [7, 9], [0, 2])


def test_who_owns_all_gets_the_ids_themselves() -> None:
    wanted = Wanted.to_read("user", ids(7, 3))
    for shard_map in (map_where("user", {7: 1, 3: 1}), ShardMap(1, SERVERS[:1], np.zeros(NUM_BUCKETS, np.int32))):
        ((part,),) = route([wanted], shard_map).values()
        assert part.ids is wanted.ids
        assert part.order is None


def test_a_table_without_ids_asks_nobody() -> None:
    for servers in (1, 3):
        shard_map = ShardMap(1, SERVERS[:servers], np.zeros(NUM_BUCKETS, np.int32))
        assert route([Wanted.to_read("user", ids())], shard_map) == {}
        assert route([], shard_map) == {}
    (rows,) = join([4], [0], [])
    assert (rows.shape, rows.dtype.name) == ((0, 4), "float32")


def test_tables_of_different_dims_come_back_each_to_its_place() -> None:
    first, second = np.array([[1], [2]], np.float32), np.array([[3, 3]], np.float32)
    answers = [
        (Part(1, ids(5), None), second),
        (Part(0, ids(9), np.array([1])), first[:1]),
        (Part(0, ids(8), np.array([0])), first[1:]),
    ]
    joined = join([1, 2, 3], [2, 1, 0], answers)
    assert [rows.tolist() for rows in joined] == [[[2], [1]], [[3, 3]], []]


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_rows_start_at_a_multiple_of_64_bytes(count: int) -> None:
    """R16, wherever the router makes the array."""
    (joined,) = join([5], [count], [(Part(0, ids(*range(count)), np.arange(count)), np.ones((count, 5), np.float32))])
    expanded = Wanted.to_read("user", ids(*[0] * (count + 1))).expand(joined)
    for rows in (joined, expanded):
        assert rows.__array_interface__["data"][0] % 64 == 0
        assert rows.flags.c_contiguous


def test_rows_of_another_shape_than_asked_are_refused() -> None:
    with pytest.raises(ValueError, match="The part is"):
        join([2], [2], [(Part(0, ids(1), np.array([0])), np.ones((1, 3), np.float32))])

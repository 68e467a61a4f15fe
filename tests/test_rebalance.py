"""Plans small enough to count by hand, and the ones at the edges."""

import dataclasses

import numpy as np
import pytest

from naive import sharding as naive
from sharding.hashing import NUM_BUCKETS
from sharding.rebalance import Move, moves, plan, quotas
from sharding.ring import Ring
from sharding.shard_map import Server, ShardMap


def servers_of(names: str, weight: float = 1.0) -> list[Server]:
    return [Server(name, f"{name}:1", weight=weight) for name in names]


def test_a_first_plan_has_version_1_and_fair_shares() -> None:
    first = plan(None, servers_of("abc"))
    assert first.version == 1
    assert sorted(first.counts().tolist()) == [5461, 5461, 5462]
    assert plan(first, servers_of("abc")).version == 2


def test_one_server_owns_everything() -> None:
    assert plan(None, servers_of("a")).counts().tolist() == [NUM_BUCKETS]


def test_as_many_servers_as_buckets_own_one_each() -> None:
    assert plan(None, [Server(f"s{i}", "") for i in range(NUM_BUCKETS)]).counts().tolist() == [1] * NUM_BUCKETS


def test_a_weight_of_three_is_a_share_of_three() -> None:
    light, heavy = Server("light", "", weight=0.5), Server("heavy", "", weight=1.5)
    assert plan(None, [light, heavy]).counts().tolist() == [4096, 12288]


def test_weights_at_the_ends_of_floating_point_are_no_trouble() -> None:
    tiny, huge = Server("tiny", "", weight=5e-324), Server("huge", "", weight=1.7e308)
    assert plan(None, [tiny, huge]).counts().tolist() == [0, NUM_BUCKETS]
    assert plan(None, [tiny, dataclasses.replace(tiny, name="twin")]).counts().tolist() == [8192, 8192]


@pytest.mark.parametrize("names", ["ab", "abc", "abcdefghijkl"])
def test_a_first_plan_walks_the_ring_past_full_servers(names: str) -> None:
    servers = [dataclasses.replace(server, weight=1.0 + i) for i, server in enumerate(servers_of(names))]
    first = plan(None, servers)
    assert [names[owner] for owner in first.owners] == naive.first_owners(names, naive.held(first))


def test_the_plan_depends_on_names_and_not_on_the_list() -> None:
    one, other = plan(None, servers_of("abcd")), plan(None, servers_of("dbca"))
    assert moves(one, other) == []


def test_an_unchanged_cluster_moves_nothing() -> None:
    first = plan(None, servers_of("abc"))
    second = plan(first, servers_of("cab"))
    assert moves(first, second) == []
    assert second.servers == tuple(servers_of("cab"))


def test_a_restarted_server_moves_nothing() -> None:
    a, b, c = servers_of("abc")
    first = plan(None, [a, b, c])
    restarted = dataclasses.replace(b, address="b:2", incarnation=2)
    second = plan(first, [a, restarted, c])
    assert moves(first, second) == []
    assert second.servers[1] == restarted


def test_a_fourth_server_receives_a_quarter_and_nothing_else_moves() -> None:
    first = plan(None, servers_of("abc"))
    moved = moves(first, plan(first, servers_of("abcd")))
    assert len(moved) == 4096
    assert {move.target for move in moved} == {"d"}


def test_a_surplus_server_gives_the_buckets_nearest_to_the_newcomer() -> None:
    first = plan(None, servers_of("abc"))
    second = plan(first, servers_of("abcd"))
    distances = Ring.of(["d"]).distances()
    for name in "abc":
        old = first.owners == first.index_of(name)
        given = old & (second.owners == second.index_of("d"))
        assert distances[given].max() < distances[old & ~given].min()


def test_a_leaver_gives_everything_and_nobody_else_moves() -> None:
    first = plan(None, servers_of("abcd"))
    moved = moves(first, plan(first, servers_of("abc")))
    assert len(moved) == 4096
    assert {move.source for move in moved} == {"d"}


def test_a_replaced_server_gives_its_buckets_to_its_replacement() -> None:
    first = plan(None, servers_of("abcd"))
    moved = moves(first, plan(first, servers_of("abce")))
    assert {(move.source, move.target) for move in moved} == {("d", "e")}


def test_a_cluster_replaced_as_a_whole_moves_every_bucket() -> None:
    first = plan(None, servers_of("abc"))
    second = plan(first, servers_of("xyz"))
    assert len(moves(first, second)) == NUM_BUCKETS
    assert sorted(second.counts().tolist()) == [5461, 5461, 5462]


def test_a_lopsided_map_is_levelled() -> None:
    lopsided = ShardMap(7, tuple(servers_of("ab")), np.zeros(NUM_BUCKETS, dtype=np.int32))
    level = plan(lopsided, servers_of("ab"))
    assert level.version == 8
    assert level.counts().tolist() == [8192, 8192]
    assert len(moves(lopsided, level)) == 8192


def test_moves_name_bucket_source_and_target() -> None:
    a, b = servers_of("ab")
    before, after = np.zeros(NUM_BUCKETS, dtype=np.int32), np.zeros(NUM_BUCKETS, dtype=np.int32)
    after[[3, 5]] = 1
    assert moves(ShardMap(1, (a, b), before), ShardMap(2, (a, b), after)) == [Move(3, "a", "b"), Move(5, "a", "b")]
    assert moves(ShardMap(1, (a, b), before), ShardMap(2, (b, a), 1 - before)) == []  # other indexes, same names


def test_seats_left_over_go_to_those_that_hold_them_then_receivers_then_by_name() -> None:
    abc = servers_of("abc")  # 5461 1/3 each: one seat is left over
    assert quotas(abc, np.array([5461, 5461, 5462])).tolist() == [5461, 5461, 5462]  # c holds it
    assert quotas(abc, np.array([5461, 5460, 5461])).tolist() == [5461, 5462, 5461]  # b receives anyway
    assert quotas(abc, np.array([0, 0, 0])).tolist() == [5462, 5461, 5461]  # the first name
    assert quotas(abc[::-1], np.array([0, 0, 0])).tolist() == [5461, 5461, 5462]


def test_a_newcomer_whose_floor_is_nothing_comes_before_an_old_server_that_owns_nothing() -> None:
    big, old, new = Server("big", "", weight=16384.0), Server("old", "", weight=0.9), Server("new", "", weight=0.6)
    held = np.array([16383, 0, 0])  # shares 16382.5, 0.9, 0.6: two seats, one of them big's already
    assert quotas([big, old, new], held).tolist() == [16383, 1, 0]
    assert quotas([big, old, new], held, newcomers={"new"}).tolist() == [16383, 0, 1]


def test_an_exchange_between_old_servers_happens_only_where_it_must() -> None:
    # Shares 4096.1 of the as and 4095.9 of the bs; a history left each a its ceiling and each b its floor.
    a1, a2 = servers_of("AB", weight=40961.0)
    b1, b2 = servers_of("CD", weight=40959.0)
    history = np.repeat(np.array([0, 1, 2, 3], dtype=np.int32), [4097, 4097, 4095, 4095])
    previous = ShardMap(1, (a1, a2, b1, b2), history)
    # Then 4095.925, 4095.725 and 0.7: each a must give one up, the newcomer can take no more than one, so the other goes to a b.
    joined = [a1, a2, b1, b2, Server("new", "", weight=7.0)]
    after = plan(previous, joined)
    assert naive.held(after) == {"A": 4096, "B": 4096, "C": 4096, "D": 4095, "new": 1}
    assert len(moves(previous, after)) == naive.moves_min(previous, joined) == 2


@pytest.mark.parametrize("names", ["", "aba"])
def test_no_servers_or_doubled_names_are_refused(names: str) -> None:
    with pytest.raises(ValueError, match=r"0 servers|named 'a'"):
        plan(None, servers_of(names))


def test_more_servers_than_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match="16385 servers"):
        plan(None, [Server(f"s{i}", "") for i in range(NUM_BUCKETS + 1)])


def test_buckets_of_one_server_lie_together() -> None:
    owners = plan(None, servers_of("abc")).owners
    assert np.count_nonzero(np.diff(owners)) < 3 * 64  # runs: about one a virtual node

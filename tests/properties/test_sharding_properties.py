"""What the sharding promises, over many clusters: one owner each, fair quotas, the fewest moves, the caller's order."""

import random
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from naive import sharding as naive
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sharding.partition import deduplicate, gather_ids, gather_rows, scatter_rows, split, sum_repeats
from sharding.rebalance import moves, plan
from sharding.shard_map import Server, ShardMap

IDS = st.one_of(st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
WEIGHTS = st.sampled_from([0.1, 0.3, 0.7, 1.0, 1.3, 2.0, 3.0])


def cluster(weights: list[float]) -> list[Server]:
    return [Server(f"server-{i}", f"127.0.0.1:{i}", weight=weight) for i, weight in enumerate(weights)]


def check_fair(shard_map: ShardMap) -> None:
    held = naive.held(shard_map)
    assert sum(held.values()) == NUM_BUCKETS
    for name, share in naive.shares(shard_map.servers).items():
        assert floor(share) <= held[name] <= ceil(share), name


def a_join_can_be_exact(previous: ShardMap, servers: list[Server], newcomer: str) -> bool:
    """Return whether floors and ceilings can be chosen so that no old server gets more than it holds."""
    held, share = naive.held(previous), naive.shares(servers)
    most = sum(min(ceil(part), max(floor(part), held[name])) for name, part in share.items() if name != newcomer)
    return most + ceil(share[newcomer]) >= NUM_BUCKETS


@pytest.mark.parametrize("servers_count", range(1, 257))
def test_each_of_1_to_256_servers_owns_its_share_weights_included(servers_count: int) -> None:
    rng = random.Random(servers_count)
    check_fair(plan(None, cluster([1.0] * servers_count)))
    check_fair(plan(None, cluster([rng.choice([0.1, 0.3, 0.7, 1.3]) for _ in range(servers_count)])))


def test_joins_one_by_one_to_256_servers_move_exactly_the_newcomer_s_quota() -> None:
    servers = cluster([1.0] * 256)
    shard_map = plan(None, servers[:1])
    for count in range(2, 257):
        before, shard_map = shard_map, plan(shard_map, servers[:count])
        moved = moves(before, shard_map)
        assert {move.target for move in moved} == {servers[count - 1].name}
        assert len(moved) == naive.held(shard_map)[servers[count - 1].name] == len({move.bucket for move in moved})
        check_fair(shard_map)


@given(ids=st.lists(IDS, max_size=50), weights=st.lists(WEIGHTS, min_size=1, max_size=12), name=st.text(max_size=8))
def test_every_id_has_exactly_one_owner(ids: list[int], weights: list[float], name: str) -> None:
    ids = [*ids, 0, 2**64 - 1]
    shard_map = plan(None, cluster(weights))
    parts = split(table_salt(name), np.array(ids, dtype=np.uint64), shard_map.owners, len(weights))
    assert sorted(parts.order.tolist()) == list(range(len(ids)))  # each in one part
    for server in range(len(weights)):
        assert all(shard_map.owners[naive.bucket_of(name, ids[position])] == server for position in parts.part(server))


@given(weights=st.lists(WEIGHTS, min_size=1, max_size=30), new_weight=WEIGHTS)
def test_a_join_moves_exactly_the_newcomer_s_quota(weights: list[float], new_weight: float) -> None:
    """From a first plan it always does, also with odd weights; after a history see the state machine."""
    old, newcomer = cluster(weights), Server("newcomer", "", weight=new_weight)
    before = plan(None, old)
    after = plan(before, [*old, newcomer])
    moved = moves(before, after)
    assert {move.target for move in moved} == {"newcomer"}
    assert len(moved) == naive.held(after)["newcomer"]


@pytest.mark.parametrize(
    ("seed", "weights"),
    [pytest.param(1, [1.0], marks=pytest.mark.deep), pytest.param(2, [1.0, 2.0, 3.0], marks=pytest.mark.deep), (3, [0.1, 0.3, 0.7, 1.3])],
)
def test_300_random_joins_and_leaves_make_no_move_beyond_the_least_possible(seed: int, weights: list[float]) -> None:
    rng = random.Random(seed)
    servers = cluster([rng.choice(weights) for _ in range(8)])
    shard_map = plan(None, servers)
    for step in range(300):
        joins = len(servers) == 1 or (len(servers) < 40 and rng.random() < 0.5)
        if joins:
            servers = [*servers, Server(f"late-{step}", "", weight=rng.choice(weights))]
        else:
            servers.remove(rng.choice(servers))
        rng.shuffle(servers)
        before, shard_map = shard_map, plan(shard_map, servers)
        moved = moves(before, shard_map)
        assert len(moved) == naive.moves_min(before, servers), f"seed {seed}, step {step}"
        if joins and a_join_can_be_exact(before, servers, f"late-{step}"):
            assert {move.target for move in moved} == {f"late-{step}"}, f"seed {seed}, step {step}"
        check_fair(shard_map)


class ChangingCluster(RuleBasedStateMachine):
    """Joins, leaves, restarts and new weights, several at once too; each plan is fair and moves as little as it can."""

    @initialize(weights=st.lists(WEIGHTS, min_size=1, max_size=6))
    def start(self, weights: list[float]) -> None:
        self.servers = cluster(weights)
        self.names = len(weights)
        self.shard_map = plan(None, self.servers)

    def change(self, servers: list[Server]) -> None:
        before, self.servers = self.shard_map, servers
        self.shard_map = plan(before, servers)
        moved = moves(before, self.shard_map)
        assert len(moved) == naive.moves_min(before, servers)
        assert not {move.source for move in moved} & {move.target for move in moved}  # nobody gives and takes
        assert self.shard_map.version == before.version + 1

    def newcomer(self, weight: float) -> Server:
        self.names += 1
        return Server(f"server-{self.names}", "", weight=weight)

    @rule(weight=WEIGHTS)
    def join(self, weight: float) -> None:
        before, newcomer = self.shard_map, self.newcomer(weight)
        self.change([*self.servers, newcomer])
        if a_join_can_be_exact(before, self.servers, newcomer.name):
            assert {move.target for move in moves(before, self.shard_map)} == {newcomer.name}

    @precondition(lambda self: len(self.servers) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        leaver = data.draw(st.sampled_from(self.servers))
        before = self.shard_map
        self.change([server for server in self.servers if server is not leaver])
        gone = naive.held(before)[leaver.name]
        assert sum(move.source == leaver.name for move in moves(before, self.shard_map)) == gone

    @rule(data=st.data(), weight=WEIGHTS)
    def replace(self, data: st.DataObject, weight: float) -> None:
        leaver = data.draw(st.sampled_from(self.servers))
        self.change([*(server for server in self.servers if server is not leaver), self.newcomer(weight)])

    @rule(data=st.data(), weight=WEIGHTS)
    def reweigh(self, data: st.DataObject, weight: float) -> None:
        index = data.draw(st.integers(0, len(self.servers) - 1))
        changed = Server(self.servers[index].name, "", weight=weight)
        self.change([*self.servers[:index], changed, *self.servers[index + 1 :]])

    @rule()
    def restart_all(self) -> None:
        before = self.shard_map
        self.change([Server(s.name, f"elsewhere:{i}", s.incarnation + 1, s.weight) for i, s in enumerate(self.servers)])
        assert moves(before, self.shard_map) == []

    @invariant()
    def is_fair(self) -> None:
        check_fair(self.shard_map)


ChangingCluster.TestCase.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestChangingCluster = ChangingCluster.TestCase


@given(ids=st.lists(st.one_of(IDS, st.integers(0, 5)), max_size=60), servers_count=st.integers(1, 7), dim=st.integers(1, 5))
def test_rows_come_back_in_the_caller_s_order(ids: list[int], servers_count: int, dim: int) -> None:
    """A pull: dedup, split, each server answers with rows that say their id's bucket, join, and spread over the repeats."""
    asked = np.array(ids, dtype=np.uint64)
    asked.setflags(write=False)
    salt, shard_map = table_salt("user"), plan(None, cluster([1.0] * servers_count))
    unique, inverse = deduplicate(asked)
    assert (unique.tolist(), inverse.tolist()) == naive.deduplicate(ids)
    parts = split(salt, unique, shard_map.owners, servers_count)
    rows = np.full((len(unique), dim), np.nan, dtype=np.float32)
    for server in range(servers_count):
        order = parts.part(server)
        answered = buckets_of(salt, gather_ids(unique, order)).astype(np.float32)
        scatter_rows(np.repeat(answered[:, None], dim, axis=1), order, rows)
    assert gather_rows(rows, inverse)[:, 0].tolist() == [naive.bucket_of("user", id) for id in ids]


@given(ids=st.lists(st.integers(0, 9), max_size=60), seed=st.integers(0, 2**32 - 1))
def test_sums_of_repeats_do_not_depend_on_the_servers(ids: list[int], seed: int) -> None:
    rows = (np.random.default_rng(seed).standard_normal((len(ids), 3)) * 1e3).astype(np.float32)
    unique, inverse = deduplicate(np.array(ids, dtype=np.uint64))
    sums = sum_repeats(rows, inverse, len(unique))
    expected = np.array(naive.sum_repeats(rows, inverse.tolist()), dtype=np.float32).reshape(len(unique), 3)
    assert sums.tobytes() == expected.tobytes()
    for servers_count in (1, 2, 5):
        parts = split(table_salt("user"), unique, plan(None, cluster([1.0] * servers_count)).owners, servers_count)
        sent = {
            int(id): row.tobytes()
            for server in range(servers_count)
            for id, row in zip(gather_ids(unique, parts.part(server)), gather_rows(sums, parts.part(server)), strict=True)
        }
        assert sent == {int(id): row.tobytes() for id, row in zip(unique, sums, strict=True)}

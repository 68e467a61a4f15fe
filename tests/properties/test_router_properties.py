"""The router against its slow twin: any ids, any owners, any number of servers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from naive import router as naive
from ps_worker.router import Wanted, join, route
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap

IDS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 9), st.sampled_from([0, 2**63 - 1, 2**63, 2**64 - 1]))
TABLES = st.lists(st.tuples(st.sampled_from(["user", "item", "größe"]), st.lists(IDS, max_size=40)), max_size=4)


def any_map(servers: int, seed: int, owning: int) -> ShardMap:
    """A map under which the first `owning` servers own buckets at random and the others none."""
    owners = np.random.default_rng(seed).integers(0, owning, NUM_BUCKETS, dtype=np.int32)
    return ShardMap(1, tuple(Server(f"server-{k}", f"host-{k}") for k in range(servers)), owners)


def row_of(table: str, id: int) -> list[float]:
    return [float(len(table)), float(id % 1009), float(id >> 32)]


@given(tables=TABLES, servers=st.integers(1, 6), seed=st.integers(0, 9), data=st.data())
def test_each_owner_is_asked_for_its_ids_and_rows_come_back_in_the_callers_order(
    tables: list[tuple[str, list[int]]], servers: int, seed: int, data: st.DataObject
) -> None:
    shard_map = any_map(servers, seed, data.draw(st.integers(1, servers)))
    wanted = [Wanted.to_read(table, np.array(ids, np.uint64)) for table, ids in tables]
    routed = route(wanted, shard_map)
    asked = {server: {part.position: part.ids.tolist() for part in parts} for server, parts in routed.items()}
    assert asked == naive.route(tables, shard_map)

    answers = []
    for server in data.draw(st.permutations(sorted(routed))):
        for part in routed[server]:
            rows = [row_of(tables[part.position][0], id) for id in part.ids.tolist()]
            answers.append((part, np.array(rows, np.float32).reshape(-1, 3)))
    joined = join([3] * len(wanted), [item.ids.size for item in wanted], answers)
    pulled = [item.expand(rows) for item, rows in zip(wanted, joined, strict=True)]
    assert [rows.tobytes() for rows in pulled] == [rows.tobytes() for rows in naive.pulled(tables, row_of)]


@given(tables=TABLES, servers=st.integers(1, 6), seed=st.integers(0, 9))
def test_what_is_deduplicated_does_not_depend_on_owners(tables: list[tuple[str, list[int]]], servers: int, seed: int) -> None:
    """R17: so sums of repeats do not either."""
    for table, ids in tables:
        wanted = Wanted.to_read(table, np.array(ids, np.uint64))
        parts = [part for parts in route([wanted], any_map(servers, seed, servers)).values() for part in parts]
        assert wanted.ids.tolist() == list(dict.fromkeys(ids))
        assert sorted(id for part in parts for id in part.ids.tolist()) == sorted(set(ids))
        assert (wanted.inverse is None) == (len(set(ids)) == len(ids))

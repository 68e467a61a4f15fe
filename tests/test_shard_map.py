"""The shard map as a value: it compares by content, cannot be changed, and refuses what is no map."""

import dataclasses

import numpy as np
import pytest

from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap

A, B = Server("a", "127.0.0.1:1"), Server("b", "127.0.0.1:2")
ODD_EVEN = np.arange(NUM_BUCKETS, dtype=np.int32) % 2


def test_it_tells_indexes_and_counts() -> None:
    owners = np.zeros(NUM_BUCKETS, dtype=np.int32)
    owners[:3] = 1
    shard_map = ShardMap(1, (A, B), owners)
    assert shard_map.index_of("b") == 1
    assert shard_map.counts().tolist() == [NUM_BUCKETS - 3, 3]
    with pytest.raises(ValueError, match="no server named 'c'"):
        shard_map.index_of("c")


def test_a_server_may_own_nothing() -> None:
    assert ShardMap(1, (A, B), np.zeros(NUM_BUCKETS, dtype=np.int32)).counts().tolist() == [NUM_BUCKETS, 0]


def test_equality_and_hash_go_by_value() -> None:
    one, same = ShardMap(1, (A, B), ODD_EVEN), ShardMap(1, (A, B), ODD_EVEN.copy())
    assert one == same
    assert hash(one) == hash(same)
    assert one != ShardMap(2, (A, B), ODD_EVEN)
    assert one != ShardMap(1, (B, A), ODD_EVEN)
    assert one != ShardMap(1, (A, B), 1 - ODD_EVEN)
    assert one != ShardMap(1, (A, dataclasses.replace(B, incarnation=2)), ODD_EVEN)
    assert one != "a map"


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_it_cannot_be_changed_from_inside_or_outside(dtype: type[np.int32]) -> None:
    owners = ODD_EVEN.astype(dtype)
    shard_map = ShardMap(1, (A, B), owners)
    owners[:] = 0
    assert shard_map.owners.dtype == np.int32
    assert shard_map.owners.tolist() == ODD_EVEN.tolist()
    with pytest.raises(ValueError, match="read-only"):
        shard_map.owners[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        shard_map.version = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("version", "servers", "owners", "sentence"),
    [
        (0, (A, B), ODD_EVEN, "version"),
        (1, (), ODD_EVEN, "0 servers"),
        (1, (A,), ODD_EVEN, "indexes of 1 servers"),
        (1, (A, B), ODD_EVEN - 1, "indexes of 2 servers"),
        (1, (A, B), ODD_EVEN[1:], "int32"),
        (1, (A, B), ODD_EVEN.astype(np.float32), "float32"),
        (1, (A, dataclasses.replace(A, address="elsewhere")), ODD_EVEN, "named 'a'"),
    ],
)
def test_what_is_no_map_is_refused(version: int, servers: tuple[Server, ...], owners: np.ndarray, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ShardMap(version, servers, owners)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_is_finite_and_above_zero(weight: float) -> None:
    with pytest.raises(ValueError, match="weight of server 'a'"):
        Server("a", "127.0.0.1:1", weight=weight)


def test_a_server_has_a_name() -> None:
    with pytest.raises(ValueError, match="name"):
        Server("", "127.0.0.1:1")

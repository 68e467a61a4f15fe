"""Slow twins of `sharding`: Python integers, dicts, lists and a linear scan of the ring; no numba."""

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor

import numpy as np
import numpy.typing as npt
import xxhash

from sharding.ring import VIRTUAL_NODES
from sharding.shard_map import Server, ShardMap

RING = 2**64
BUCKETS = 16_384


def mix64(x: int) -> int:
    """MurmurHash3's fmix64."""
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD % RING
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 % RING
    return x ^ (x >> 33)


def hash_id(name: str, id: int) -> int:
    """The hash of an id in the table, or of a virtual node of the server, with that name."""
    return mix64(xxhash.xxh64_intdigest(name.encode()) ^ id)


def bucket_of(name: str, id: int) -> int:
    return hash_id(name, id) * BUCKETS // RING


def deduplicate(ids: Sequence[int]) -> tuple[list[int], list[int]]:
    position: dict[int, int] = {}
    inverse = [position.setdefault(id, len(position)) for id in ids]
    return list(position), inverse


def sum_repeats(rows: npt.NDArray[np.float32], inverse: Sequence[int]) -> list[list[np.float32]]:
    """A left fold in the caller's order, from the first row of each."""
    sums: dict[int, list[np.float32]] = {}
    for row, position in zip(rows, inverse, strict=True):
        if position in sums:
            sums[position] = [a + b for a, b in zip(sums[position], row, strict=True)]
        else:
            sums[position] = list(row)
    return [sums[position] for position in sorted(sums)]


def split(name: str, ids: Sequence[int], owners: Sequence[int], servers_count: int) -> list[list[int]]:
    """The positions of each server's ids."""
    parts: list[list[int]] = [[] for _ in range(servers_count)]
    for position, id in enumerate(ids):
        parts[owners[bucket_of(name, id)]].append(position)
    return parts


def ring_order(names: Sequence[str], bucket: int) -> list[str]:
    """The servers by the clockwise distance of their nearest virtual node from the bucket's point: looks at all of them."""
    point = bucket * (RING // BUCKETS)
    nearest = {name: min((hash_id(name, node) - point) % RING for node in range(VIRTUAL_NODES)) for name in names}
    return sorted(names, key=lambda name: (nearest[name], name))


def first_owners(names: Sequence[str], quota: dict[str, int]) -> list[str]:
    """The owner of each bucket under a first plan: each walks clockwise, node by node, to the first server that is not full.

    Those nearest to their first virtual node walk first.
    """
    nodes = sorted((hash_id(name, node), name) for name in names for node in range(VIRTUAL_NODES))
    points = [point for point, _ in nodes]
    starts = [bisect_left(points, bucket * (RING // BUCKETS)) % len(nodes) for bucket in range(BUCKETS)]
    order = sorted(range(BUCKETS), key=lambda bucket: ((points[starts[bucket]] - bucket * (RING // BUCKETS)) % RING, bucket))
    room, owners = dict(quota), [""] * BUCKETS
    for bucket in order:
        node = starts[bucket]
        while room[nodes[node][1]] == 0:
            node = (node + 1) % len(nodes)
        owners[bucket] = nodes[node][1]
        room[owners[bucket]] -= 1
    return owners


def shares(servers: Sequence[Server]) -> dict[str, Fraction]:
    """Each server's fair share of the buckets, exactly."""
    total = sum(Fraction(server.weight) for server in servers)
    return {server.name: BUCKETS * Fraction(server.weight) / total for server in servers}


def held(shard_map: ShardMap) -> dict[str, int]:
    """How many buckets each server owns, by name."""
    counts = {server.name: 0 for server in shard_map.servers}
    for owner in shard_map.owners.tolist():
        counts[shard_map.servers[owner].name] += 1
    return counts


def moves_min(previous: ShardMap, servers: Sequence[Server]) -> int:
    """The fewest moves to any map in which each server owns the floor or the ceiling of its share.

    A map with quotas q costs Σ max(0, held - q) over the old servers. Tries every choice of floors and ceilings that sums to 16384, server
    by server: `least[extra]` is the fewest moves so far with that many ceilings above the floors.
    """
    before, share = held(previous), shares(servers)
    left_over = BUCKETS - sum(floor(part) for part in share.values())
    least = {0: sum(count for name, count in before.items() if name not in share)}
    for name, part in share.items():
        longer: dict[int, int] = {}
        for extra, moves in least.items():
            for quota in {floor(part), ceil(part)}:
                more = extra + quota - floor(part)
                longer[more] = min(longer.get(more, BUCKETS), moves + max(0, before.get(name, 0) - quota))
        least = longer
    return least[left_over]

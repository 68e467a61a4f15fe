"""The next shard map from the previous one: fair quotas, the fewest moves they allow, and a ring that says which buckets move where.

After Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads, SODA 2018: a bucket goes to the first server clockwise
that is not full. We differ in two ways. Full is an exact quota (there: 1 + ε times the mean), so that shares are fair to a bucket.
And a map is planned from the previous one, not from the list of servers alone: a bucket whose owner is not over its quota stays, even
where a walk on today's ring would send it elsewhere. Computed from nothing each time, a join would also move buckets between old
servers.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharding.hashing import NUM_BUCKETS
from sharding.kernel import kernel
from sharding.ring import Ring
from sharding.shard_map import Server, ShardMap, check_names

Counts = npt.NDArray[np.int64]  # [n], one for each server
Owners = npt.NDArray[np.int32]  # [16384], indexes into the servers; _FREE for a bucket that has to move

_FREE = -1


class Move(NamedTuple):
    """One bucket that changes its server."""

    bucket: int
    source: str
    target: str


def plan(previous: ShardMap | None, servers: Sequence[Server]) -> ShardMap:
    """Return the map that follows `previous` (None: there is none yet) when these are the servers.

    Each server's quota is the floor or the ceiling of its fair share, 16384 · weight / sum of weights. The moves are exactly
    Σ max(0, held - quota) over the servers held before (a leaver's quota is 0), the fewest that such quotas allow: no bucket moves
    unless its owner has left or holds too many, and nobody gives and takes in one plan. A server is its name: started again,
    with another address or incarnation, it moves nothing.

    A joining server therefore receives exactly its quota and nothing else moves, wherever floors and ceilings can be had so. With equal
    weights they always can. With odd ones, after a history, an old server may hold the floor of its share although only its ceiling can
    fill the sum, while another must give up the ceiling it held: then one bucket moves between them, because it must. (In a search over
    80,000 joins each: never with equal weights nor with 1, 2, 3; 13 times with 0.1, 0.3, 0.7, 1.3; 244 times with 0.0001 to 10.)

    ValueError for no servers, more than 16384, or two of one name. The order of `servers` decides indexes, not places.
    """
    servers = tuple(servers)
    check_names(servers)
    owners = _held_by(previous, servers)
    held = np.bincount(owners[owners != _FREE], minlength=len(servers)).astype(np.int64)
    old = {server.name for server in previous.servers} if previous else set()
    quota = quotas(servers, held, newcomers={server.name for server in servers} - old)
    if np.any(quota > held):
        needy = Ring.of([server.name for server in servers]).restricted_to(quota > held)
        nearest = np.argsort(needy.distances(), kind="stable")
        _free_surplus(owners, held - quota, nearest)
        free = nearest[owners[nearest] == _FREE]
        owners[free] = _walk(needy.starts()[free], needy.owners, quota - held)
    return ShardMap(1 if previous is None else previous.version + 1, servers, owners)


def moves(previous: ShardMap, new: ShardMap) -> list[Move]:
    """Return the buckets whose server's name differs between the two maps, ascending by bucket."""
    sources = [server.name for server in previous.servers]
    targets = [server.name for server in new.servers]
    pairs = zip(previous.owners.tolist(), new.owners.tolist(), strict=True)
    return [
        Move(bucket, sources[source], targets[target])
        for bucket, (source, target) in enumerate(pairs)
        if sources[source] != targets[target]
    ]


def quotas(servers: Sequence[Server], held: Counts, newcomers: Container[str] = ()) -> Counts:
    """Return how many buckets each server is to own, int64[n], summing to 16384: the floor or the ceiling of its fair share.

    held  int64[n], how many it owns now.     Shares are computed in whole numbers, so no rounding decides.
    The seats left over by the floors go first to servers that hold more than their floor (each saves a move), then to those that receive
    anyway (a newcomer, by name, even where its floor is 0), last to those that hold just their floor; within each, by largest remainder,
    then by name.
    """
    ratios = [server.weight.as_integer_ratio() for server in servers]
    denominator = max(below for _, below in ratios)  # all are powers of two
    weights = [above * (denominator // below) for above, below in ratios]
    total = sum(weights)
    shares = [divmod(NUM_BUCKETS * weight, total) for weight in weights]
    quota = np.array([floor for floor, _ in shares], dtype=np.int64)

    def precedence(index: int) -> tuple[bool, bool, int, str]:
        floor, remainder = shares[index]
        name = servers[index].name
        return bool(held[index] <= floor), bool(held[index] == floor) and name not in newcomers, -remainder, name

    takers = sorted((index for index, (_, remainder) in enumerate(shares) if remainder), key=precedence)
    quota[takers[: NUM_BUCKETS - int(quota.sum())]] += 1
    return quota


def _held_by(previous: ShardMap | None, servers: tuple[Server, ...]) -> Owners:
    """Return the owners under the previous map as indexes into the new servers; a leaver's buckets are free."""
    if previous is None:
        return np.full(NUM_BUCKETS, _FREE, dtype=np.int32)
    index_of = {server.name: index for index, server in enumerate(servers)}
    renumbered = np.array([index_of.get(server.name, _FREE) for server in previous.servers], dtype=np.int32)
    return renumbered[previous.owners]


def _free_surplus(owners: Owners, surplus: Counts, nearest: npt.NDArray[np.int64]) -> None:
    """Free as many buckets of each server as it has too many: those that come first in `nearest`, int64[16384]."""
    for server in np.flatnonzero(surplus > 0):
        owned = nearest[owners[nearest] == server]
        owners[owned[: surplus[server]]] = _FREE


@kernel
def _walk(starts: npt.NDArray[np.int64], node_owners: npt.NDArray[np.int32], need: Counts) -> npt.NDArray[np.int32]:
    """Return the target of each bucket, int32[m]: from its start clockwise to a server that needs one, whose `need` int64[n] goes down.

    `following` leads from a virtual node whose server is full to a later one, and is shortened on the way (Tarjan's path halving), so
    that the last buckets do not walk around a ring of full servers each time.
    """
    nodes = node_owners.size
    following = np.arange(nodes)
    targets = np.empty(starts.size, dtype=np.int32)
    for i in range(starts.size):
        node = starts[i]
        while need[node_owners[node]] == 0:
            if following[node] == node:
                following[node] = (node + 1) % nodes
            else:
                following[node] = following[following[node]]
            node = following[node]
        targets[i] = node_owners[node]
        need[node_owners[node]] -= 1
    return targets

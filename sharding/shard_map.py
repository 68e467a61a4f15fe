"""Which server owns which bucket: one immutable value that the coordinator plans and stores and everybody else reads."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharding.hashing import NUM_BUCKETS


@dataclass(frozen=True, slots=True)
class Server:
    """A server as the map knows it. Its name is its identity; address and incarnation change when it is started again.

    `weight` is its share of the buckets relative to the others': a finite number above 0.
    """

    name: str
    address: str
    incarnation: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("A server needs a name.")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"The weight of server {self.name!r} is {self.weight}, but must be a finite number above 0.")


@dataclass(frozen=True, eq=False, slots=True)
class ShardMap:
    """The owner of each bucket under map version `version` (1, 2, …).

    `owners` int32[16384] holds indexes into `servers`; it is copied and made read-only. A server may own nothing.
    Equality and hash go by value.
    """

    version: int
    servers: tuple[Server, ...]
    owners: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        if self.version < 1:
            raise ValueError(f"The version of a shard map is {self.version}, but must be at least 1.")
        servers = tuple(self.servers)
        check_names(servers)
        given = np.asarray(self.owners)
        if given.shape != (NUM_BUCKETS,) or given.dtype.kind not in "iu":
            raise ValueError(f"The owners are {given.dtype}{list(given.shape)}, but must be int32[{NUM_BUCKETS}].")
        if given.min() < 0 or given.max() >= len(servers):
            raise ValueError(f"The owners lie in {given.min()}..{given.max()}, but must be indexes of {len(servers)} servers.")
        owners = given.astype(np.int32)
        owners.setflags(write=False)
        object.__setattr__(self, "servers", servers)
        object.__setattr__(self, "owners", owners)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardMap):
            return NotImplemented
        return self.version == other.version and self.servers == other.servers and np.array_equal(self.owners, other.owners)

    def __hash__(self) -> int:
        return hash((self.version, self.servers, self.owners.tobytes()))

    def index_of(self, name: str) -> int:
        """Return the index of the server called `name`; ValueError if the map has none."""
        for index, server in enumerate(self.servers):
            if server.name == name:
                return index
        raise ValueError(f"Shard map {self.version} has no server named {name!r}.")

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how many buckets each server owns, int64[len(servers)]."""
        return np.bincount(self.owners, minlength=len(self.servers)).astype(np.int64)


def check_names(servers: tuple[Server, ...]) -> None:
    """Raise ValueError where two servers have one name, or where there is none, or more than there are buckets."""
    if not 1 <= len(servers) <= NUM_BUCKETS:
        raise ValueError(f"There are {len(servers)} servers, but a shard map has 1 to {NUM_BUCKETS}.")
    names = [server.name for server in servers]
    doubled = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if doubled:
        raise ValueError(f"Two servers are named {doubled[0]!r}; a server's name is its identity.")

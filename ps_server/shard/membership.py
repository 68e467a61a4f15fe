"""Whom a server listens to: the shard map, the timeline, the incarnation of each rank and the coordinator's term (R1, R12, R13)."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ps_proto.errors import InvalidRequest, MapBehind, NotOwner, Recovering, RolledBack, StaleIncarnation, StaleOrder, StaleTimeline
from ps_proto.requests import NEVER, OBSERVER, Fence, Ids
from sharding.hashing import table_salt
from sharding.partition import all_owned
from sharding.shard_map import ShardMap

CLOCK_MAX = 2**32 - 1  # clock and seq share a push's 64-bit name


class Membership:
    """The numbers below which requests and orders are refused. None of them ever goes down."""

    def __init__(self, server: str, awaits_registration: bool = False) -> None:
        """`awaits_registration`: this server may have run before; it serves nothing until `register` says as what it was taken in."""
        self.server = server
        self.awaits_registration = awaits_registration
        self.shard_map: ShardMap | None = None
        self.timeline = 0
        self.world_size = 0
        self._me = -1  # this server's index in the map; -1: it is not in it
        self._owns_all = False
        self._term = 0
        self._cluster = 0  # whose orders this server follows; 0: it does not know yet
        self._incarnations: dict[int, int] = {}
        self._settled: dict[int, int] = {}  # rank -> the incarnation whose start is settled, in this timeline
        self._registered = 0  # the incarnation of this server; 0: nobody has told it
        self._recovering = "it has not been taken in by the coordinator yet" if awaits_registration else ""  # why it serves nothing
        self._clocks: dict[int, int] = {}  # rank -> the step with which it went on after the last rollback

    def check(self, fence: Fence) -> None:
        """Raise where the sender is behind, or where this server cannot follow it yet."""
        if fence.timeline < self.timeline and fence.rank != OBSERVER:
            raise RolledBack(fence.rank, self._clocks.get(fence.rank, NEVER), self.timeline)
        self.check_timeline(fence.timeline)
        shard_map = self.check_ready()
        if fence.map_version != shard_map.version:
            if fence.map_version < shard_map.version:
                raise NotOwner(self.server, shard_map.version)
            raise MapBehind(self.server, shard_map.version, fence.map_version)
        if fence.rank != OBSERVER:
            self._check_rank(fence)

    def check_ready(self) -> ShardMap:
        """Return the map by which this server serves; Recovering before there is one, and before there are its rows."""
        self.check_recovered()
        if self.shard_map is None:
            raise Recovering(self.server, "it has no shard map yet")
        return self.shard_map

    def check_recovered(self) -> None:
        """Raise Recovering where this server has yet to get back what it held: what it would say of it is not so."""
        if self._recovering:
            raise Recovering(self.server, self._recovering)

    def _check_rank(self, fence: Fence) -> None:
        self.check_incarnation(fence.rank, fence.incarnation)
        if fence.incarnation > self._incarnations.get(fence.rank, 0):
            raise Recovering(self.server, f"it has not heard of incarnation {fence.incarnation} of rank {fence.rank}")
        if not 0 <= fence.rank < self.world_size:
            raise InvalidRequest("rank", str(fence.rank), f"from 0 to {self.world_size - 1}, as the job's world_size says")
        if not 0 <= fence.clock <= CLOCK_MAX:
            raise InvalidRequest("clock", str(fence.clock), f"from 0 to {CLOCK_MAX}")

    def check_incarnation(self, rank: int, incarnation: int) -> None:
        """Raise StaleIncarnation where a newer one is known."""
        have = self._incarnations.get(rank, 0)
        if incarnation < have:
            raise StaleIncarnation(rank, have, incarnation)

    def check_owned(self, table: str, ids: Ids) -> None:
        """Raise NotOwner unless this server owns every id."""
        assert self.shard_map is not None, "the fence was checked"
        if not self.owns(table, ids):
            raise NotOwner(self.server, self.shard_map.version)

    def owns(self, table: str, ids: Ids) -> bool:
        """Return whether the map gives every id to this server."""
        if self.shard_map is None:
            return False
        return self._owns_all or all_owned(table_salt(table), ids, self.shard_map.owners, self._me)

    def owned_buckets(self) -> NDArray[np.int32]:
        """Return the buckets that the map gives to this server, ascending."""
        assert self.shard_map is not None, "the fence was checked"
        return np.flatnonzero(self.shard_map.owners == self._me).astype(np.int32)

    @property
    def incarnation(self) -> int:
        """This server's incarnation, as the map has it; 0 where the map does not name this server."""
        return self.shard_map.servers[self._me].incarnation if self.shard_map is not None and self._me >= 0 else 0

    @property
    def is_first_owner(self) -> bool:
        """Whether this server owns bucket 0: with backup workers, it decides for all (R9)."""
        return self.shard_map is not None and int(self.shard_map.owners[0]) == self._me

    @property
    def others(self) -> dict[str, str]:
        """The address of every other server in the map, by name."""
        servers = self.shard_map.servers if self.shard_map is not None else ()
        return {server.name: server.address for server in servers if server.name != self.server}

    def take_map(self, shard_map: ShardMap) -> bool:
        """Follow this map if it is newer; return whether it is.

        One that means an earlier start of this server is refused with Recovering as its first: whoever holds that map would read initial
        rows here (R12). A later one that means another start says that this one owns nothing any more.
        """
        is_newer = self.shard_map is None or shard_map.version > self.shard_map.version
        if self.shard_map is None:
            self.check_meant(shard_map)
        if is_newer:
            self._follow(shard_map)
        return is_newer

    def check_meant(self, shard_map: ShardMap) -> None:
        """Raise Recovering unless the map names this server as it was started last."""
        if self._registered and self._place_in(shard_map) < 0:
            raise Recovering(self.server, f"shard map {shard_map.version} does not name its start {self._registered}")

    def _place_in(self, shard_map: ShardMap) -> int:
        """Return this server's index in the map; -1 where it is not in it, or another start of it is."""
        for place, server in enumerate(shard_map.servers):
            if server.name == self.server and self._registered in (0, server.incarnation):
                return place
        return -1

    def _follow(self, shard_map: ShardMap) -> None:
        self._me = self._place_in(shard_map)
        self.shard_map = shard_map
        self._owns_all = bool(np.all(shard_map.owners == self._me))

    def register(self, incarnation: int, must_recover: bool, cluster: int) -> None:
        """Hear as what the coordinator has taken this server in; with `must_recover` it waits for a rollback. Again changes nothing."""
        if incarnation == self._registered:
            return
        self._registered, self.awaits_registration = incarnation, False
        self._cluster = cluster or self._cluster
        self._recovering = "it was started again, and has to load the last checkpoint first" if must_recover else ""

    # --- rollback ------------------------------------------------------------------------------------------------------------

    def roll_back(self, timeline: int, shard_map: ShardMap, clocks: Mapping[int, int], why: str) -> None:
        """Begin a timeline under this map, and serve nothing, because of `why`, until `recovered`.

        clocks  rank -> the step with which it goes on: what is told to those of the timeline before.
        """
        self.timeline = timeline
        self._follow(shard_map)
        self._clocks = dict(clocks)
        self._settled.clear()  # orders of the timeline before are told by that
        self._recovering = why

    def recovered(self) -> None:
        """Serve again."""
        self._recovering = ""

    def cannot_recover(self, why: str) -> None:
        """Serve nothing, because of `why`, until another rollback."""
        self._recovering = why

    # --- the coordinator and the ranks -----------------------------------------------------------------------------------------

    def check_order(self, term: int, cluster: int) -> None:
        """Raise StaleOrder for an order from a coordinator that was replaced, or of another cluster; follow a newer one.

        `cluster`: 0 where the order does not say.
        """
        if cluster and self._cluster and cluster != self._cluster:
            raise StaleOrder(self.server, self._cluster, cluster, "cluster")
        if term < self._term:
            raise StaleOrder(self.server, self._term, term)
        self._term = term
        self._cluster = self._cluster or cluster

    def check_timeline(self, timeline: int) -> None:
        """Raise unless an order is of this timeline: what moves a rank's clock must not outlive a rollback, nor come before it."""
        if timeline < self.timeline:
            raise StaleTimeline(self.timeline, timeline)
        if timeline > self.timeline:
            raise Recovering(self.server, f"it has not reached timeline {timeline} yet")

    def fence_rank(self, rank: int, incarnation: int) -> None:
        """Refuse lower incarnations of the rank from now on."""
        self.check_incarnation(rank, incarnation)
        self._incarnations[rank] = incarnation

    def retire(self) -> None:
        """Refuse every incarnation whose start was settled: its job is over, and what it said must not reach the next one's roster."""
        for rank, incarnation in self._settled.items():
            self._incarnations[rank] = max(self._incarnations.get(rank, 0), incarnation + 1)

    def settle(self, rank: int, incarnation: int) -> bool:
        """Return whether the start of this incarnation is settled now, and was not before."""
        self.check_incarnation(rank, incarnation)
        is_news = incarnation > self._settled.get(rank, 0)
        self._settled[rank] = max(incarnation, self._settled.get(rank, 0))
        return is_news

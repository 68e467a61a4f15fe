"""A step played to a shard that is thrown away, so that every kernel is compiled before the first real request."""

import numpy as np

from ps_proto.requests import (
    Fence,
    FenceRank,
    Finish,
    Finished,
    InstallMap,
    InstallTable,
    Pull,
    Push,
    ResolveRank,
    StartJob,
    TableIds,
    TableRows,
)
from ps_proto.values import Async, Mode, Sync, TableSpec
from ps_server.events import Asked, Body, Refuse
from ps_server.shard.shard import Shard
from ps_server.shard.warm_up import warm_up_tables
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap

_IDS = np.arange(4, dtype=np.uint64)
_GRADIENTS = np.ones((4, 1), dtype=np.float32)


def warm_up() -> None:
    """Run every kernel of a server once; numba keeps the results on disk for the next process. An answer that is an error is our bug."""
    warm_up_tables()
    for mode in (Sync(), Async()):
        _play(mode)


def _play(mode: Mode) -> None:
    shard = Shard("rehearsal")
    now, later = Fence(1, rank=0, incarnation=1), Fence(1, rank=0, incarnation=1, clock=1)
    step: tuple[Body, ...] = (
        InstallMap(ShardMap(1, (Server("rehearsal", "nowhere:1"),), np.zeros(NUM_BUCKETS, dtype=np.int32))),
        InstallTable(1, TableSpec("warm up", 1)),
        StartJob(1, job=1, world_size=1, mode=mode, first_clock=0),
        FenceRank(1, rank=0, incarnation=1),
        ResolveRank(1, rank=0, incarnation=1, fact=None, start=0),
        Pull(now, (TableIds("warm up", _IDS),)),
        Push(now, 1, (TableRows("warm up", _IDS, _GRADIENTS),)),
        Push(now, 2, (TableRows("warm up", _IDS, _GRADIENTS),)),
        Finish(now, Finished(0)),
        Pull(later, (TableIds("warm up", _IDS),)),
    )
    for request, body in enumerate(step):
        refused = [effect for effect in shard.handle(Asked(request, body), now_s=0.0) if isinstance(effect, Refuse)]
        assert not refused, refused

"""A step played to a shard that is thrown away, so that every kernel is compiled before the first real request.

Numba keeps what it compiles on disk, so all of this is quick for the next process. At its start a server compiles what nearly every table
needs; what else one needs, a rarer optimizer, a decorator, a user's own, when it is made.
"""

from dataclasses import replace

import numpy as np

from ps_proto.orders import FenceRank, InstallMap, InstallTable, ResolveRank, StartJob
from ps_proto.requests import Assign, Fence, Finish, Finished, Pull, Push, TableIds, TableRows
from ps_proto.values import Async, Mode, Sync, TableSpec
from ps_server.events import Asked, Body, Refuse
from ps_server.shard.shard import Shard
from ps_server.shard.warm_up import exercise, warm_up_tables
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap
from sharding.wire_rows import encode_rows

_SPEC = TableSpec("warm up", 1)
_IDS = np.arange(4, dtype=np.uint64)


def warm_up() -> None:
    """Run every kernel that each server needs once. An answer that is an error is our bug."""
    warm_up_tables()
    for mode in (Sync(), Async()):
        _play(mode, _SPEC)


def warm_up_for(spec: TableSpec) -> None:
    """Run every kernel that a table like `spec` needs once, in any thread.

    Raises InvalidRequest where this server cannot run its optimizer or compute its initial values, and what a user's own kernel raises.
    """
    spec = replace(spec, name=_SPEC.name, mode=None)
    exercise(spec, _IDS.size)
    for mode in (Sync(), Async()):
        _play(mode, spec)


def _play(mode: Mode, spec: TableSpec) -> None:
    shard = Shard("rehearsal")
    now, later = Fence(1, rank=0, incarnation=1), Fence(1, rank=0, incarnation=1, clock=1)
    ids = TableIds(spec.name, _IDS)
    rows = TableRows(spec.name, _IDS, np.ones((_IDS.size, spec.dim), dtype=np.float32))
    gradients = replace(rows, rows=encode_rows(rows.rows, spec.wire))
    step: tuple[Body, ...] = (
        InstallMap(ShardMap(1, (Server("rehearsal", "nowhere:1"),), np.zeros(NUM_BUCKETS, dtype=np.int32))),
        InstallTable(1, spec),
        StartJob(1, job=1, world_size=1, mode=mode, first_clock=0),
        FenceRank(1, rank=0, incarnation=1),
        ResolveRank(1, rank=0, incarnation=1, fact=None, start=0),
        Assign(now, 1, (rows,)),
        Pull(now, (ids,)),
        Push(now, 2, (gradients,)),
        Push(now, 3, (gradients,)),
        Finish(now, Finished(0)),
        Pull(later, (ids,)),
    )
    for request, body in enumerate(step):
        refused = [effect for effect in shard.handle(Asked(request, body), now_s=0.0) if isinstance(effect, Refuse)]
        assert not refused, refused

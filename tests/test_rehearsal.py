"""A server that says it serves has its kernels compiled."""

import sys

import numpy as np
from numba.core.dispatcher import Dispatcher

from ps_proto.requests import (
    Fence,
    FenceRank,
    Finish,
    Finished,
    InstallMap,
    InstallTable,
    Pull,
    Pulled,
    Push,
    ResolveRank,
    StartJob,
    TableIds,
    TableRows,
)
from ps_proto.values import Adam, Normal, Sync, TableSpec
from ps_server.events import Asked, Effect, Reply
from ps_server.shard.rehearsal import warm_up
from ps_server.shard.shard import Shard
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap


def compiled() -> dict[str, int]:
    """Return how many signatures each kernel has that a shard uses."""
    modules = [module for name, module in sys.modules.items() if name.startswith(("ps_server.", "sharding."))]
    kernels = {name: value for module in modules for name, value in vars(module).items() if isinstance(value, Dispatcher)}
    return {name: len(kernel.signatures) for name, kernel in kernels.items()}


def test_after_the_warm_up_a_real_step_compiles_nothing() -> None:
    warm_up()
    before = compiled()
    assert sum(before.values()) > 10

    shard = Shard("server-0")
    ids = np.arange(1_000, dtype=np.uint64)
    fences = [Fence(1, rank=rank, incarnation=1) for rank in range(2)]
    rows = TableRows("user", ids, np.ones((1_000, 16), dtype=np.float32))
    conversation = [
        InstallMap(ShardMap(1, (Server("server-0", "127.0.0.1:1"),), np.zeros(NUM_BUCKETS, dtype=np.int32))),
        InstallTable(1, TableSpec("user", 16, optimizer=Adam(), initializer=Normal())),
        StartJob(1, job=1, world_size=2, mode=Sync(), first_clock=0),
        *[FenceRank(1, rank, incarnation=1) for rank in range(2)],
        *[ResolveRank(1, rank, incarnation=1, fact=None, start=0) for rank in range(2)],
        *[Push(fence, 1, (rows,)) for fence in fences],
        *[Finish(fence, Finished(0)) for fence in fences],
        Pull(Fence(1, rank=0, incarnation=1, clock=1), (TableIds("user", ids),)),
    ]
    effects: list[Effect] = []
    for request, body in enumerate(conversation):
        effects = shard.handle(Asked(request, body), now_s=0.0)

    (answer,) = effects
    assert isinstance(answer, Reply)
    assert isinstance(answer.body, Pulled)
    assert answer.body.rows[0].shape == (1_000, 16)
    assert compiled() == before

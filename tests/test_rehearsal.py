"""A server that says it serves has its kernels compiled, and one that opens a table those of the table."""

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from ps_proto.errors import InvalidRequest
from ps_proto.orders import FenceRank, InstallMap, InstallTable, ResolveRank, StartJob
from ps_proto.requests import Assign, Fence, Finish, Finished, Pull, Pulled, Push, TableIds, TableRows
from ps_proto.values import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Assigned,
    Async,
    ClippedByRowNorm,
    ClippedByValue,
    DecoupledWeightDecay,
    DelayCompensated,
    HeNormal,
    Lion,
    Mode,
    Normal,
    Optimizer,
    RMSprop,
    RowWiseAdagrad,
    StalenessScaled,
    Sync,
    TableSpec,
    TruncatedNormal,
    Uniform,
    XavierUniform,
    Zeros,
)
from ps_server.events import Asked, Effect, Refuse, Reply
from ps_server.shard.rehearsal import warm_up, warm_up_for
from ps_server.shard.shard import Shard
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap
from sharding.wire_format import FORMATS
from sharding.wire_rows import encode_rows


def compiled() -> dict[str, int]:
    """Return how many signatures each kernel has that a shard uses."""
    modules = [module for name, module in sys.modules.items() if name.startswith(("ps_server.", "sharding."))]
    kernels = {name: value for module in modules for name, value in vars(module).items() if isinstance(value, Dispatcher)}
    return {name: len(kernel.signatures) for name, kernel in kernels.items()}


SPECS = [
    TableSpec("user", 16, Adam(), Normal()),
    TableSpec("user", 16, SGD(momentum=0.9, nesterov=True), XavierUniform(fan_out=100)),
    TableSpec("user", 16, RowWiseAdagrad(), TruncatedNormal(), max_norm=0.5),
    TableSpec("user", 16, RMSprop(centered=True, momentum=0.5), HeNormal()),
    TableSpec("user", 16, FTRL(l1=0.1), Zeros(), dtype="bfloat16"),
    TableSpec("user", 16, ClippedByValue(ClippedByRowNorm(Lion())), dtype="bfloat16", max_norm=0.5),
    TableSpec("user", 16, DelayCompensated(StalenessScaled(DecoupledWeightDecay(AdamW()))), Uniform(-1.0, 1.0)),
    TableSpec("user", 16, Adagrad(), Assigned(), wire="bfloat16"),
    TableSpec("user", 16, DelayCompensated(SGD()), Normal(), wire="int8"),
]


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=lambda mode: mode.kind)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.optimizer.label} {spec.initializer.kind} {spec.dtype} {spec.wire}")
def test_after_the_warm_up_a_real_step_compiles_nothing(spec: TableSpec, mode: Mode) -> None:
    warm_up()
    warm_up_for(spec)
    before = compiled()
    assert sum(before.values()) > 10

    shard = Shard("server-0")
    ids = np.arange(1_000, dtype=np.uint64)
    fences = [Fence(1, rank=rank, incarnation=1) for rank in range(2)]
    rows = TableRows("user", ids, np.ones((1_000, 16), dtype=np.float32))
    conversation = [
        InstallMap(ShardMap(1, (Server("server-0", "127.0.0.1:1"),), np.zeros(NUM_BUCKETS, dtype=np.int32))),
        InstallTable(1, spec),
        StartJob(1, job=1, world_size=2, mode=mode, first_clock=0),
        *[FenceRank(1, rank, incarnation=1) for rank in range(2)],
        *[ResolveRank(1, rank, incarnation=1, fact=None, start=0) for rank in range(2)],
        Assign(fences[0], 1, (rows,)),
        *[Pull(fence, (TableIds("user", ids),)) for fence in fences],
        *[Push(fence, 2, (replace(rows, rows=encode_rows(rows.rows, spec.wire)),)) for fence in fences],
        *[Finish(fence, Finished(0)) for fence in fences],
        Pull(Fence(1, rank=0, incarnation=1, clock=1), (TableIds("user", ids),)),
    ]
    effects: list[Effect] = []
    for request, body in enumerate(conversation):
        effects = shard.handle(Asked(request, body), now_s=0.0)
        assert not [effect for effect in effects if isinstance(effect, Refuse)]

    (answer,) = effects
    assert isinstance(answer, Reply)
    assert isinstance(answer.body, Pulled)
    assert answer.body.rows[0].shape == FORMATS[spec.wire].shape(1_000, 16)
    assert compiled() == before


def test_a_table_that_this_server_cannot_run_is_refused_by_its_warm_up() -> None:
    @dataclass(frozen=True)
    class Half(Optimizer):
        kind = "half"

    with pytest.raises(InvalidRequest, match="optimizer is 'half', but must be one that this server can run"):
        warm_up_for(TableSpec("user", 16, Half()))

"""A table's kernels are compiled before the core opens it: once, in a thread, and whoever gives up harms nobody."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

from ps_proto.orders import InstallTable, RollBack
from ps_proto.requests import Fence, GetStats
from ps_proto.values import SGD, Adagrad, TableSpec, Uniform
from ps_server.edge.table_warm_up import TableWarmUp
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap

USER = TableSpec("user", 4, optimizer=SGD(lr=0.5), initializer=Uniform(-1.0, 1.0))
TIMEOUT_S = 10.0


class Compiler:
    """Stands for the compiler: works until it is let go, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[TableSpec] = []
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def __call__(self, spec: TableSpec) -> None:
        self.asked.append(spec)
        self.has_begun.set()
        assert self.may_end.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error


async def test_an_order_waits_for_the_compiler_and_other_requests_do_not() -> None:
    compiler = Compiler()
    warm_up = TableWarmUp(compiler)
    order = asyncio.create_task(warm_up.prepare(InstallTable(1, USER)))
    assert await asyncio.to_thread(compiler.has_begun.wait, TIMEOUT_S)
    await warm_up.prepare(GetStats(Fence(1)))
    assert not order.done()
    compiler.may_end.set()
    await asyncio.wait_for(order, TIMEOUT_S)
    assert compiler.asked == [USER]


async def test_an_order_that_is_given_up_and_comes_again_waits_for_the_same_work() -> None:
    compiler = Compiler()
    warm_up = TableWarmUp(compiler)
    first = asyncio.create_task(warm_up.prepare(InstallTable(1, USER)))
    assert await asyncio.to_thread(compiler.has_begun.wait, TIMEOUT_S)
    first.cancel()
    await asyncio.wait([first])
    again = asyncio.create_task(warm_up.prepare(InstallTable(1, USER)))
    await asyncio.sleep(0)
    assert not again.done()
    compiler.may_end.set()
    await asyncio.wait_for(again, TIMEOUT_S)
    assert compiler.asked == [USER]


async def test_tables_with_the_same_needs_are_warmed_up_for_once() -> None:
    compiler = Compiler()
    compiler.may_end.set()
    warm_up = TableWarmUp(compiler)
    for spec in (USER, replace(USER, name="item", dim=9, seed=3), replace(USER, max_norm=1.0), replace(USER, max_norm=2.0)):
        await warm_up.prepare(InstallTable(1, spec))
    assert compiler.asked == [USER, replace(USER, max_norm=1.0)]
    for spec in (
        replace(USER, optimizer=Adagrad()),
        replace(USER, optimizer=SGD(lr=0.5, momentum=0.9)),
        replace(USER, dtype="bfloat16"),
        replace(USER, wire="int8"),
    ):
        await warm_up.prepare(InstallTable(1, spec))
    assert len(compiler.asked) == 6


async def test_a_rollback_waits_for_the_kernels_of_its_tables() -> None:
    compiler = Compiler()
    compiler.may_end.set()
    item = replace(USER, name="item", optimizer=Adagrad())
    shard_map = ShardMap(1, (Server("server-0", "server-0"),), np.zeros(NUM_BUCKETS, np.int32))
    await TableWarmUp(compiler).prepare(RollBack(1, 0, 1, shard_map, (USER, item), None, None))
    assert compiler.asked == [USER, item]


async def test_what_the_compiler_raises_ends_the_order_and_the_next_tries_anew() -> None:
    compiler = Compiler()
    compiler.may_end.set()
    compiler.error = ZeroDivisionError("a user's kernel")
    warm_up = TableWarmUp(compiler)
    with pytest.raises(ZeroDivisionError):
        await warm_up.prepare(InstallTable(1, USER))
    compiler.error = None
    await warm_up.prepare(InstallTable(1, USER))
    await warm_up.prepare(InstallTable(1, USER))
    assert compiler.asked == [USER, USER]

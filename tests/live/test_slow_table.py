"""A table whose kernels take longer to compile than an order waits for its answer is created all the same, and others are answered."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
import pytest
from structlog.testing import capture_logs

from ps_proto.channel import SERVER_OPTIONS
from ps_proto.errors import InternalError, InvalidRequest
from ps_proto.methods import COORDINATOR, PARAMETER_SERVER
from ps_proto.orders import InstallTable
from ps_proto.requests import CreateTable, Fence, GetCluster, GetStats, RegisterServer, Stats, TableCreated
from ps_proto.values import TableSpec
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.edge.loop import CoreLoop
from ps_server.edge.sender import Sender
from ps_server.edge.servicer import add_servicer
from ps_server.edge.table_warm_up import TableWarmUp
from ps_server.events import Body
from ps_server.shard.shard import Shard

TIMEOUT_S = 20.0
ORDER_TIMEOUT_S = 0.2
USER = TableSpec("user", 4)


class Compiler:
    """Works until it is let go; then refuses tables of the name "refused", and fails for "buggy" as a user's own kernel may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_end = threading.Event()

    def __call__(self, spec: TableSpec) -> None:
        self.asked += 1
        assert self.may_end.wait(TIMEOUT_S)
        if spec.name == "refused":
            raise InvalidRequest("optimizer", "'half'", "one that this server can run")
        if spec.name == "buggy":
            raise ZeroDivisionError("in my kernel")


@dataclass
class Pair:
    """A coordinator and a server behind real gRPC; `orders` counts what it was told of tables."""

    coordinator: CoreLoop
    server: CoreLoop
    compiler: Compiler
    orders: list[Body]


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    compiler, orders = Compiler(), list[Body]()
    warm_up = TableWarmUp(compiler)

    async def prepare(body: Body) -> None:
        if isinstance(body, InstallTable):
            orders.append(body)
        await warm_up.prepare(body)

    sender = Sender(ORDER_TIMEOUT_S)
    coordinator = CoreLoop(CoordinatorCore(CoreSettings(1)), sender.send, store=lambda persist: None)
    server = CoreLoop(Shard("server-0"), sender.send, prepare=prepare)
    served = grpc.aio.server(options=SERVER_OPTIONS)
    add_servicer(served, PARAMETER_SERVER, server)
    add_servicer(served, COORDINATOR, coordinator)
    port = served.add_insecure_port("127.0.0.1:0")
    await served.start()
    try:
        await coordinator.submit(RegisterServer("server-0", f"127.0.0.1:{port}", 1.0, 1))
        await coordinator.submit(GetCluster(wait_s=TIMEOUT_S))
        yield Pair(coordinator, server, compiler, orders)
    finally:
        compiler.may_end.set()
        await coordinator.close()
        await server.close()
        await served.stop(0)
        await sender.close()


async def test_a_table_that_takes_longer_than_its_order_is_created_once_it_is_ready() -> None:
    async with pair() as it, asyncio.timeout(TIMEOUT_S):
        creating = asyncio.create_task(it.coordinator.submit(CreateTable(USER, wait_s=TIMEOUT_S)))
        while len(it.orders) < 3:  # given up twice, and told again
            assert isinstance(await it.server.submit(GetStats(Fence(0))), Stats)  # it answers others meanwhile
            await asyncio.sleep(0)
        assert not creating.done()
        it.compiler.may_end.set()
        assert await creating == TableCreated(USER)
        assert it.compiler.asked == 1


async def test_a_table_that_the_server_cannot_run_is_refused_and_others_are_made() -> None:
    async with pair() as it, asyncio.timeout(TIMEOUT_S):
        it.compiler.may_end.set()
        with pytest.raises(InvalidRequest, match="one that this server can run"):
            await it.coordinator.submit(CreateTable(TableSpec("refused", 4), wait_s=TIMEOUT_S))
        assert await it.coordinator.submit(CreateTable(USER, wait_s=TIMEOUT_S)) == TableCreated(USER)


async def test_a_bug_in_a_users_kernel_fails_its_table_and_is_logged() -> None:
    async with pair() as it, asyncio.timeout(TIMEOUT_S):
        it.compiler.may_end.set()
        with capture_logs() as logs, pytest.raises(InternalError) as caught:
            await it.coordinator.submit(CreateTable(TableSpec("buggy", 4), wait_s=TIMEOUT_S))
        assert caught.value.summary == "ZeroDivisionError: in my kernel"
        assert (logs[0]["incident"], logs[0]["doing"]) == (caught.value.incident, "InstallTable")
        assert await it.coordinator.submit(CreateTable(USER, wait_s=TIMEOUT_S)) == TableCreated(USER)

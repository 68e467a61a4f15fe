"""A coordinator and one server in this process, behind real gRPC and real lanes, reached through proxies."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import grpc.aio

from cut_proxy import CutProxy
from ps_proto.channel import SERVER_OPTIONS
from ps_proto.methods import COORDINATOR
from ps_proto.requests import RegisterServer
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.edge.loop import CoreLoop
from ps_server.edge.sender import Sender
from ps_server.edge.servicer import add_servicer
from ps_server.edge.timed_core import TimedCore
from ps_server.shard.shard import Shard
from served_lanes import HOST, TIMEOUT_S, served_lanes


@contextmanager
def proxied_cluster(by_grpc: CutProxy, by_lane: CutProxy) -> Iterator[str]:
    """Serve for the length of the block; yield the coordinator's address, which no proxy stands before.

    `by_grpc`, `by_lane`: stand before the server's ports, also for the coordinator's orders.
    """
    with ExitStack() as stack:
        served = stack.enter_context(served_lanes(TimedCore(Shard("server-0"))))
        by_grpc.target, by_lane.target = served.address, f"{HOST}:{served.listener.port}"
        served.offer = replace(served.offer, unix_path="", port=by_lane.port)
        yield stack.enter_context(_coordinator(by_grpc.address))


@contextmanager
def _coordinator(server_address: str) -> Iterator[str]:
    """Serve a coordinator that knows this server."""
    started = threading.Event()
    found: list[str] = []
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(stopped.set))
        sender = Sender()
        core = CoreLoop(CoordinatorCore(CoreSettings(1)), sender.send, name="The coordinator", store=lambda persist: None)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        add_servicer(server, COORDINATOR, core)
        found.append(f"{HOST}:{server.add_insecure_port(f'{HOST}:0')}")
        await server.start()
        await core.submit(RegisterServer("server-0", server_address, nonce=1))
        started.set()
        await stopped.wait()
        await core.close()
        await server.stop(0)
        await sender.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(TIMEOUT_S)
        yield found[0]
    finally:
        stop[0]()
        thread.join(TIMEOUT_S)

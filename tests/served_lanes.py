"""A core behind real gRPC and real lanes, served by an event loop in another thread, as a server process has them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import uvloop

from ps_proto.channel import SERVER_OPTIONS
from ps_proto.errors import ParameterServerError
from ps_proto.methods import PARAMETER_SERVER
from ps_proto.requests import LaneOffered, OpenLane
from ps_server.edge.lane.listener import LaneListener, LaneSettings
from ps_server.edge.loop import CoreLoop
from ps_server.edge.sender import Sender
from ps_server.edge.servicer import add_servicer
from ps_server.events import Core

HOST = "127.0.0.1"
TIMEOUT_S = 20.0
BYTES_MAX = 64 << 20


@dataclass
class ServedLanes:
    """`offer` is the answer to a worker that asks for lanes; a test may set another, or an error."""

    core: Any
    address: str
    listener: LaneListener
    offer: Any
    loop: asyncio.AbstractEventLoop
    offers_asked: int = field(default=0)

    def in_loop(self, work: Callable[[], Any]) -> Any:
        """Run `work` in the event loop's thread; return what it returns."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(TIMEOUT_S)


async def _serve(core: Core, bytes_max: int, ready: Callable[[ServedLanes], None], stop: asyncio.Event) -> None:
    core_loop = CoreLoop(core, Sender().send, name="server-0")
    listener = LaneListener(core_loop, LaneSettings(HOST, max_request_bytes=bytes_max))
    server = grpc.aio.server(options=SERVER_OPTIONS)

    def offer(asked: OpenLane) -> LaneOffered:
        served.offers_asked += 1
        if isinstance(served.offer, ParameterServerError):
            raise served.offer
        offered: LaneOffered = served.offer
        return offered

    add_servicer(server, PARAMETER_SERVER, core_loop, bytes_max, answers={OpenLane: offer})
    port = server.add_insecure_port(f"{HOST}:0")
    served = ServedLanes(core, f"{HOST}:{port}", listener, listener.offer(OpenLane(1)), asyncio.get_running_loop())
    await server.start()
    ready(served)
    await stop.wait()
    await core_loop.close()
    await listener.close()
    await server.stop(0)


@contextmanager
def served_lanes(core: Core, bytes_max: int = BYTES_MAX) -> Iterator[ServedLanes]:
    """Serve for the length of the block."""
    started = threading.Event()
    found: list[ServedLanes] = []
    stop = asyncio.Event()

    def ready(it: ServedLanes) -> None:
        found.append(it)
        started.set()

    thread = threading.Thread(target=lambda: uvloop.run(_serve(core, bytes_max, ready, stop)))
    thread.start()
    assert started.wait(TIMEOUT_S)
    try:
        yield found[0]
    finally:
        found[0].loop.call_soon_threadsafe(stop.set)
        thread.join(TIMEOUT_S)

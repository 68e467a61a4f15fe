"""A scripted core behind real gRPC on a free port, in one process: what the client sends is what the core gets, and back."""

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs

from polling import poll_until
from ps_proto.channel import SERVER_OPTIONS
from ps_proto.errors import (
    ClientClosed,
    InternalError,
    InvalidRequest,
    NotOwner,
    ParameterServerError,
    RequestTooLarge,
    StalenessTimeout,
    Unreachable,
)
from ps_proto.methods import COORDINATOR, METHODS, PARAMETER_SERVER
from ps_proto.orders import InstallMap
from ps_proto.requests import Done, Fence, GetStats, OpenExport, Pull, Pulled, Push, Stats, TableIds, TableRows
from ps_proto.status import from_call
from ps_server.edge.loop import CoreLoop
from ps_server.edge.sender import Sender
from ps_server.edge.servicer import add_servicer
from ps_server.events import Dropped, Refuse, Reply
from ps_worker.transport.grpc import GrpcTransport
from samples import FENCE, IDS, REPLIES, REQUESTS, ROWS, same
from scripted_core import ScriptedCore

TIMEOUT_S = 20.0
PART_SIZE_BYTES = 4_096
REPLY_OF = {method.reply: next(reply for reply in REPLIES if type(reply) is method.reply) for method in METHODS.values()}


@dataclass
class Served:
    """A core that is served at `address` by an event loop in another thread."""

    core: ScriptedCore
    address: str
    loop: asyncio.AbstractEventLoop

    def in_loop(self, work: Callable[[], Any]) -> Any:
        """Run `work` in the event loop's thread; return what it returns."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(TIMEOUT_S)


async def _serve(core: ScriptedCore, ready: Callable[[Served], None], stop: asyncio.Event) -> None:
    core_loop = CoreLoop(core, Sender().send, name="server-0")
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_servicer(server, PARAMETER_SERVER, core_loop, max_request_bytes=1 << 20, part_size_bytes=PART_SIZE_BYTES)
    add_servicer(server, COORDINATOR, core_loop)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready(Served(core, f"127.0.0.1:{port}", asyncio.get_running_loop()))
    await stop.wait()
    await server.stop(0)
    await core_loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    started = threading.Event()
    found: list[Served] = []
    stop = asyncio.Event()

    def ready(it: Served) -> None:
        found.append(it)
        started.set()

    thread = threading.Thread(target=lambda: asyncio.run(_serve(ScriptedCore(), ready, stop)))
    thread.start()
    assert started.wait(TIMEOUT_S)
    yield found[0]
    found[0].loop.call_soon_threadsafe(stop.set)
    thread.join(TIMEOUT_S)


@pytest.fixture
def transport() -> Iterator[GrpcTransport]:
    it = GrpcTransport(PART_SIZE_BYTES)
    yield it
    it.close()


@pytest.mark.parametrize("request_body", REQUESTS, ids=lambda body: type(body).__name__)
def test_each_request_reaches_the_core_and_its_reply_comes_back(served: Served, transport: GrpcTransport, request_body: object) -> None:
    reply = REPLY_OF[METHODS[type(request_body)].reply]
    served.core.reply(type(request_body), reply)
    assert same(transport.call(served.address, request_body, TIMEOUT_S), reply)
    (asked,) = served.core.asked()
    assert same(asked.body, request_body)


def test_large_requests_and_replies_travel_in_many_parts(served: Served, transport: GrpcTransport) -> None:
    ids = np.arange(3_000, dtype=np.uint64)
    rows = np.random.default_rng(5).random((3_000, 33), dtype=np.float32)  # 97 parts of at most 4 KiB
    served.core.reply(Push, Done(1))
    served.core.reply(Pull, Pulled((rows, rows[:1]), 4))
    push = Push(FENCE, 1, (TableRows("user", ids, rows), TableRows("item", ids, rows)))
    assert transport.call(served.address, push, TIMEOUT_S) == Done(1)
    pull = Pull(FENCE, (TableIds("user", ids), TableIds("item", ids[:1])))
    assert same(transport.call(served.address, pull, TIMEOUT_S), Pulled((rows, rows[:1]), 4))
    assert [same(asked.body, body) for asked, body in zip(served.core.asked(), (push, pull), strict=True)] == [True, True]


@pytest.mark.parametrize(
    "refusal", [NotOwner("server-0", 4), StalenessTimeout(5, 2, 1, 3, 0.5), InvalidRequest("rows of 'größe'", "3", "4")]
)
@pytest.mark.parametrize("request_body", [REQUESTS[0], REQUESTS[1], REQUESTS[5], GetStats(FENCE)], ids=lambda body: type(body).__name__)
def test_a_refusal_arrives_as_the_same_error(
    served: Served, transport: GrpcTransport, request_body: object, refusal: ParameterServerError
) -> None:
    served.core.scripts[type(request_body)] = lambda asked: [Refuse(asked.request, refusal)]
    with pytest.raises(type(refusal)) as caught:
        transport.call(served.address, request_body, TIMEOUT_S)
    assert caught.value.values() == refusal.values()


def test_a_bug_arrives_as_an_internal_error_and_the_server_lives_on(served: Served, transport: GrpcTransport) -> None:
    served.core.reply(GetStats, Pulled)  # a class, which no codec can encode
    with capture_logs() as logs, pytest.raises(InternalError) as caught:
        transport.call(served.address, GetStats(FENCE), TIMEOUT_S)
    assert caught.value.peer == "server-0"
    assert logs[0]["incident"] == caught.value.incident
    served.core.reply(GetStats, Stats({}, {}))
    assert transport.call(served.address, GetStats(FENCE), TIMEOUT_S) == Stats({}, {})


def test_a_waiting_pull_is_answered_later(served: Served, transport: GrpcTransport) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(transport.call, served.address, Pull(FENCE, (TableIds("user", IDS),)), TIMEOUT_S)
        poll_until(lambda: len(served.core.asked()) == 1, TIMEOUT_S)
        assert not waiting.done()
        (parked,) = served.core.asked()
        served.core.scripts[InstallMap] = lambda asked: [Reply(parked.request, Pulled((ROWS,), 7)), Reply(asked.request, Done())]
        transport.call(served.address, next(body for body in REQUESTS if isinstance(body, InstallMap)), TIMEOUT_S)
        assert same(waiting.result(TIMEOUT_S), Pulled((ROWS,), 7))


@pytest.mark.parametrize("body", [Pull(FENCE), OpenExport(FENCE, "user")], ids=lambda body: type(body).__name__)
def test_a_call_past_its_deadline_is_unreachable_and_dropped(served: Served, transport: GrpcTransport, body: object) -> None:
    with pytest.raises(Unreachable) as caught:
        transport.call(served.address, body, 0.2, peer="server-0")
    assert (caught.value.peer, caught.value.address) == ("server-0", served.address)
    assert caught.value.after_s >= 0.2
    assert caught.value.cause.startswith("DEADLINE_EXCEEDED")
    poll_until(lambda: Dropped(served.core.asked()[0].request) in served.core.events, TIMEOUT_S)


def test_a_caller_that_cancels_is_dropped(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        ask: Any = channel.unary_unary(METHODS[GetStats].path)
        call = ask.future(b"\x0a\x02\x08\x01")
        poll_until(lambda: len(served.core.asked()) == 1, TIMEOUT_S)
        call.cancel()
        poll_until(lambda: Dropped(served.core.asked()[0].request) in served.core.events, TIMEOUT_S)


def test_closing_the_transport_ends_what_waits(served: Served) -> None:
    transport = GrpcTransport()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(transport.call, served.address, body, TIMEOUT_S) for body in (Pull(FENCE), GetStats(FENCE))]
        poll_until(lambda: len(served.core.asked()) == 2, TIMEOUT_S)
        transport.close()
        for call in waiting:
            with pytest.raises(ClientClosed):
                call.result(TIMEOUT_S)
    with pytest.raises(ClientClosed):
        transport.call(served.address, GetStats(FENCE), TIMEOUT_S)


def _refusal_of(served: Served, kind: type, messages: list[bytes]) -> ParameterServerError:
    """Send bytes as they are; return the error that comes back."""
    method = METHODS[kind]
    with grpc.insecure_channel(served.address) as channel:
        try:
            ask: Any = channel.stream_stream(method.path)  # a single message is the same on the wire as a stream of one
            list(ask(iter(messages), timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            return from_call(error, peer="server-0", address=served.address, after_s=0.0)
    raise AssertionError("The call was not refused.")


@pytest.mark.parametrize(
    ("kind", "messages"),
    [
        (GetStats, [b"\xff\xff\xff"]),  # not protobuf
        (GetStats, [b""]),  # no fence
        (Push, [b"\xff\xff\xff"]),
        (Push, []),
        (Pull, [b"\x12\x02\x08\x01"]),  # a slice without a header
    ],
)
def test_malformed_bytes_are_an_invalid_request_and_the_server_lives_on(
    served: Served, transport: GrpcTransport, kind: type, messages: list[bytes]
) -> None:
    assert isinstance(_refusal_of(served, kind, messages), InvalidRequest)
    assert served.core.asked() == []
    served.core.reply(GetStats, Stats({}, {}))
    assert transport.call(served.address, GetStats(FENCE), TIMEOUT_S) == Stats({}, {})


def test_an_oversized_request_is_refused_by_what_it_announces(served: Served, transport: GrpcTransport) -> None:
    ids = np.zeros(4_096, dtype=np.uint64)
    with pytest.raises(RequestTooLarge) as caught:
        transport.call(served.address, Push(FENCE, 0, (TableRows("user", ids, np.zeros((4_096, 64), dtype=np.float32)),)), TIMEOUT_S)
    assert caught.value.values() == {"server": "server-0", "bytes_announced": 4_096 * 264, "bytes_max": 1 << 20}
    assert served.core.asked() == []


def test_what_fits_no_message_never_leaves(served: Served, transport: GrpcTransport) -> None:
    with pytest.raises(InvalidRequest, match=r"Fence\.clock"):
        transport.call(served.address, Push(Fence(0, clock=-1), 0, ()), TIMEOUT_S)
    assert served.core.events == []


def test_nobody_at_an_address_is_unreachable(transport: GrpcTransport) -> None:
    with pytest.raises(Unreachable) as caught:
        transport.call("127.0.0.1:1", GetStats(FENCE), TIMEOUT_S, peer="server-7")
    assert caught.value.peer == "server-7"
    assert caught.value.cause.startswith("UNAVAILABLE")
    assert caught.value.after_s < TIMEOUT_S


def test_threads_call_at_once(served: Served, transport: GrpcTransport) -> None:
    def echo(number: int) -> bool:
        rows = np.full((200, 9), number, dtype=np.float32)
        body = Push(FENCE, number, (TableRows("user", np.arange(200, dtype=np.uint64), rows),))
        reply: Done = transport.call(served.address, body, TIMEOUT_S)
        return reply == Done(number)

    served.core.scripts[Push] = lambda asked: [Reply(asked.request, Done(asked.body.seq))]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(echo, range(64)))


FORKING = """
import os, sys
from ps_worker.transport.grpc import GrpcTransport
from ps_proto.errors import InvalidRequest
from ps_proto.requests import Fence, GetStats

transport, address, ask = GrpcTransport(), sys.argv[1], GetStats(Fence(1))
transport.call(address, ask, 20)
child = os.fork()
if child == 0:
    try:
        transport.call(address, ask, 20)
    except InvalidRequest as error:
        os._exit(7 if error.field == "this process" else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
transport.call(address, ask, 20)
transport.close()
"""


def test_a_call_in_a_forked_child_is_an_error_and_does_not_hang(served: Served) -> None:
    served.core.reply(GetStats, Stats({}, {}))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", FORKING, served.address], check=True, timeout=TIMEOUT_S, env=environment)
    assert len(served.core.asked()) == 2


async def test_the_sender_calls_like_the_transport(served: Served) -> None:
    sender = Sender(TIMEOUT_S)
    numbers = itertools.count(1)
    served.core.scripts[InstallMap] = lambda asked: [Reply(asked.request, Done(next(numbers)))]
    order = next(body for body in REQUESTS if isinstance(body, InstallMap))
    assert await sender.send("server-0", served.address, order) == Done(1)
    assert await sender.send("server-0", served.address, order) == Done(2)
    refusal = NotOwner("server-0", 4)
    served.core.scripts[InstallMap] = lambda asked: [Refuse(asked.request, refusal)]
    with pytest.raises(NotOwner) as caught:
        await sender.send("server-0", served.address, order)
    assert caught.value.values() == refusal.values()
    with pytest.raises(Unreachable) as gone:
        await sender.send("server-7", "127.0.0.1:1", order)
    assert gone.value.peer == "server-7"
    await sender.close()

"""Frames that are none, nearly none, or whole but lie, at a real shard: connections end, the server goes on, and its rows stay right."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import structlog

from conversation import Conversation
from ps_proto.frames import ERROR, HEAD_BYTES, IN_ARENA, METHOD_NUMBERS, REPLY, REQUEST, Array, Head, begin_of, filled_bytes, message_of
from ps_proto.requests import (
    OBSERVER,
    Assign,
    CloseExport,
    Fence,
    Finish,
    Finished,
    GetStats,
    OpenExport,
    Pull,
    Push,
    ReadExport,
    TableIds,
    TableRows,
)
from ps_proto.values import Async
from ps_server.edge.lane.arena import MappedArena
from ps_server.edge.lane.connection import LaneConnection
from ps_server.edge.loop import CoreLoop
from ps_worker.transport.arena import Arena

BYTES_MAX = 1 << 20
ARENA_BYTES = 1 << 18
FRAMES_A_WORKER = 8
KNOWN_ID = 7


class Wire:
    """What a connection writes to."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closed = False

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Worker:
    """One connection, fed by hand."""

    def __init__(self, loop: CoreLoop, arena: MappedArena | None) -> None:
        self.wire = Wire()
        self.ended = False
        self._connection = LaneConnection(loop, BYTES_MAX, arena, self._end)
        self._connection.connection_made(self.wire)

    def _end(self, connection: LaneConnection) -> None:
        self.ended = True

    def send(self, data: bytes, piece: int = 1 << 20) -> None:
        rest = memoryview(data)
        while rest and not self.wire.closed:
            buffer = self._connection.get_buffer(-1)
            assert len(buffer) > 0, "there is always place for more"
            taken = min(len(rest), len(buffer), piece)
            buffer[:taken] = rest[:taken]
            self._connection.buffer_updated(taken)
            rest = rest[taken:]

    def leave(self) -> None:
        self._connection.connection_lost(None)
        assert self.ended


def frame(body: object, call: int, arena: Arena | None = None) -> bytes:
    """Return a whole request, with its arrays in the arena where there is one."""
    message, arrays = message_of(body)
    method = METHOD_NUMBERS[type(body)]
    if arena is None:
        head = Head(REQUEST, method, call, len(message), arrays_bytes=filled_bytes(arrays))
        return begin_of(head, message) + b"".join([array.tobytes().ljust(-(-array.nbytes // 64) * 64, b"\0") for array in arrays])
    block = arena.allocate(filled_bytes(arrays))
    assert block is not None
    lay(arrays, block.begin, arena)
    return begin_of(Head(REQUEST, method, call, len(message), IN_ARENA, filled_bytes(arrays), block.begin, 1 << 17, 1 << 16), message)


def lay(arrays: list[Array], begin: int, arena: Arena) -> None:
    for array in arrays:
        place = arena._mapping
        place[begin : begin + array.nbytes] = array.tobytes()
        begin += -(-array.nbytes // 64) * 64


def bodies() -> list[object]:
    """Return requests that a shard of tables "user" and "item" of dim 1 takes, and some that it refuses."""
    fence = Fence(1, 0, 1, 0)
    ids = np.array([KNOWN_ID, 1, 2**64 - 1, 9], np.uint64)
    rows = np.ones((4, 1), np.float32)
    return [
        Pull(fence, (TableIds("user", ids), TableIds("item", ids[:1]))),
        Pull(Fence(1, OBSERVER), (TableIds("user", ids[:0]),)),
        Push(fence, 1, (TableRows("item", ids[1:], rows[1:]),)),
        Push(fence, 2, (TableRows("user", ids, rows.repeat(3, axis=1)),)),
        Assign(fence, 3, (TableRows("item", ids[1:], rows[1:]),), True),
        Finish(fence, None, False, 0.0),
        Finish(fence, Finished(0), False, 0.01),
        OpenExport(fence, "user"),
        ReadExport(fence, 1, 0, 10),
        CloseExport(fence, 1),
        GetStats(fence),
    ]


def garbled(rng: random.Random, data: bytes) -> bytes:
    """Return the frame with something wrong, or nothing."""
    frame = bytearray(data)
    match rng.randrange(8):
        case 0:  # garbage
            return rng.randbytes(rng.randrange(1, 300))
        case 1:  # a head of any kind
            return bytes(frame[:5] + rng.randbytes(59) + frame[64:])
        case 2:  # a field that lies
            begin = rng.choice([6, 8, 16, 20, 24, 32, 40, 48])
            frame[begin : begin + 4] = rng.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x40\0\0\0", rng.randbytes(4)])
        case 3:  # some bytes of the message
            for _ in range(rng.randrange(1, 6)):
                frame[rng.randrange(HEAD_BYTES, len(frame))] = rng.randrange(256)
        case 4:  # cut short
            del frame[rng.randrange(len(frame)) :]
        case 5:  # a piece too much, or twice
            begin = rng.randrange(len(frame))
            frame[begin:begin] = frame[begin : begin + rng.randrange(200)]
        case 6:  # any bytes anywhere
            for _ in range(rng.randrange(1, 6)):
                frame[rng.randrange(len(frame))] = rng.randrange(256)
    return bytes(frame)


async def nobody(server: str, address: str, body: object) -> object:
    raise AssertionError("a shard without backup workers tells nobody anything")


async def fuzz(seed: int, frames: int, check_every: int) -> dict[str, int]:
    """Send so many frames; return how many connections ended, and what was answered."""
    rng = random.Random(seed)
    talk = Conversation(Async(), world_size=1)
    loop = CoreLoop(talk.shard, nobody, name="server-0")
    shared = Arena(ARENA_BYTES)
    mapped = MappedArena(shared.descriptor)
    good = [frame(body, call) for call, body in enumerate(bodies(), 1)]
    good += [frame(body, call, shared) for call, body in enumerate(bodies(), 1)]
    counts = {"ended": 0, "replies": 0, "errors": 0}
    sent = 0
    while sent < frames:
        worker = Worker(loop, rng.choice([None, mapped]))
        for _ in range(rng.randrange(1, FRAMES_A_WORKER)):
            sent += 1
            worker.send(garbled(rng, rng.choice(good)), rng.choice([1 << 20, 1 << 20, 100]))
            if worker.wire.closed:
                break
        counts["ended"] += worker.wire.closed
        if worker.wire.sent:
            kind = Head.unpack(worker.wire.sent).kind
            counts["replies"] += kind == REPLY
            counts["errors"] += kind == ERROR
        worker.leave()
        if sent % check_every < FRAMES_A_WORKER:
            asker = Worker(loop, None)
            asker.send(frame(GetStats(Fence(1)), 5))
            assert Head.unpack(asker.wire.sent).kind == REPLY
            asker.leave()
            await asyncio.sleep(0)
    assert not loop._answers, "nobody who has gone is waited for"
    talk.shard.check_invariants()
    await loop.close()
    return counts


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Log nothing: a million reasons are too many."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def _run(seed: int, frames: int, bugs: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    report: Callable[..., Any] = CoreLoop.report

    def noted(self: CoreLoop, bug: BaseException, doing: str) -> Any:
        bugs.append(f"{doing}: {bug!r}")
        return report(self, bug, doing)

    monkeypatch.setattr(CoreLoop, "report", noted)
    return asyncio.run(fuzz(seed, frames, check_every=100))


@pytest.mark.parametrize("seed", range(3))
def test_the_server_goes_on_whatever_comes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bugs: list[str] = []
    counts = _run(seed, 3_000, bugs, monkeypatch)
    assert bugs == [], "what a worker sends is its own fault, never a bug of ours"
    assert all(counts.values()), counts


@pytest.mark.deep
def test_a_million_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs: list[str] = []
    counts = _run(99, 1_000_000, bugs, monkeypatch)
    assert bugs == []
    assert all(counts.values()), counts

"""One lane against a server that a test plays by hand: what is no answer breaks it, and it never waits longer than it was told."""

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ps_proto.errors import InvalidRequest, NotOwner
from ps_proto.frames import (
    ERROR,
    HEAD_BYTES,
    HELLO,
    IN_ARENA,
    IN_FRAME,
    METHOD_NUMBERS,
    REPLY,
    REQUEST,
    Head,
    begin_of,
    filled_bytes,
    message_of,
    pieces_of,
)
from ps_proto.requests import GetStats, Pull, Pulled, Push, TableIds, TableRows
from ps_proto.status import to_detail
from ps_worker.rooms import Size, rooms
from ps_worker.transport.arena import Arena, Block
from ps_worker.transport.lane import Lane, LaneBroken, LaneRefused, LaneTimedOut
from samples import FENCE

ARENA_BYTES = 1 << 20
TOKEN = b"t" * 32
TIMEOUT_S = 10.0
ROWS = np.arange(700 * 16, dtype=np.float32).reshape(700, 16)  # 44,800 bytes, of 64 each
PULL = Pull(FENCE, (TableIds("user", np.arange(700, dtype=np.uint64)),))
PUSH = Push(FENCE, 1, (TableRows("user", PULL.tables[0].ids, ROWS),))
PULLED, ARRAYS = message_of(Pulled((ROWS,), 4))

Play = Callable[[socket.socket, Head], None]  # with the head of the request


def head(**fields: Any) -> Head:
    """Return the head of the right answer to the first pull, or one of which some fields lie."""
    right = {"method": METHOD_NUMBERS[Pull], "call": 1, "message_bytes": len(PULLED), "arrays_bytes": filled_bytes(ARRAYS)}
    return Head(**{"kind": REPLY, **right, **fields})


def answer(**fields: Any) -> bytes:
    """Return the frame of that answer."""
    return begin_of(head(**fields), PULLED) + b"".join(pieces_of(ARRAYS))


def _receive(it: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        more = it.recv(nbytes - len(data))
        if not more:
            raise ConnectionResetError("the worker closed the connection")
        data += more
    return data


@contextmanager
def lane_to(play: Play, arena: Arena | None = None, hello: bytes = Head(HELLO).pack()) -> Iterator[Lane]:
    """Open a lane to a server that answers the hello, takes one request, and then does as the test says."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            _receive(theirs, HEAD_BYTES + 64)
            theirs.sendall(hello)
            try:
                request = Head.unpack(_receive(theirs, HEAD_BYTES))
                _receive(theirs, request.begin_bytes - HEAD_BYTES + (request.arrays_bytes if request.place == IN_FRAME else 0))
                play(theirs, request)
            except OSError:
                pass  # the worker has gone first

    server = threading.Thread(target=serve)
    server.start()
    try:
        lane = Lane(ours, TOKEN, arena, TIMEOUT_S)
        yield lane
        lane.close()
    finally:
        ours.close()
        server.join(TIMEOUT_S)


def sending(data: bytes) -> Play:
    return lambda it, request: it.sendall(data)


def test_an_answer_is_the_reply() -> None:
    with lane_to(sending(answer())) as lane:
        pulled = lane.call(PULL, TIMEOUT_S, "server-0", 0)
    assert pulled.step == 4
    assert pulled.rows[0].tobytes() == ROWS.tobytes()


NO_ANSWERS = {
    "the answer to another call": answer(call=2),
    "a request": answer(kind=REQUEST),
    "a hello": Head(HELLO).pack(),
    "garbage": b"\xde\xad\xbe\xef" * 32,
    "another version": b"ROWS\x02" + answer()[5:],
    "a message that does not parse": begin_of(Head(REPLY, 0, 1, 3), b"\xff\xff\xff"),
    "fewer array bytes than the message says": answer(arrays_bytes=64),
    "more array bytes than the message says": answer(arrays_bytes=1 << 40),
    "an unknown place": answer(place=2),
    "rows in a room that it was not given": answer(place=IN_ARENA),
    "more than its reply": answer() + b"x",
    "the begin of a head": answer()[:63],
    "the begin of a message": answer()[:70],
    "the begin of its arrays": answer()[:5_000],
    "nothing": b"",
}


@pytest.mark.parametrize("case", NO_ANSWERS)
def test_what_is_no_answer_breaks_the_lane(case: str) -> None:
    with lane_to(sending(NO_ANSWERS[case])) as lane, pytest.raises(LaneBroken) as caught:
        lane.call(PULL, TIMEOUT_S, "server-0", 0)
    assert not isinstance(caught.value, LaneTimedOut)
    assert str(caught.value)


@pytest.mark.parametrize("lie", ["before", "behind", "too long"])
def test_rows_beside_their_room_break_the_lane_and_are_not_looked_at(lie: str) -> None:
    arena = Arena(ARENA_BYTES)
    room_bytes = filled_bytes(ARRAYS) - (64 if lie == "too long" else 0)
    held = arena.allocate(64)  # so that there is something before the room

    def play(it: socket.socket, request: Head) -> None:
        begin = request.room_begin + {"before": -64, "behind": 64, "too long": 0}[lie]
        it.sendall(begin_of(head(place=IN_ARENA, arrays_begin=begin), PULLED))

    with lane_to(play, arena) as lane, pytest.raises(LaneBroken, match="the place of its arrays"):
        lane.call(PULL, TIMEOUT_S, "server-0", room_bytes)
    assert held is not None


def test_rows_in_their_room_are_the_reply() -> None:
    arena = Arena(ARENA_BYTES)

    def play(it: socket.socket, request: Head) -> None:
        arena._mapping[request.room_begin : request.room_begin + ROWS.nbytes] = ROWS.tobytes()
        it.sendall(begin_of(head(place=IN_ARENA, arrays_begin=request.room_begin), PULLED))

    with lane_to(play, arena) as lane:
        (rows,) = lane.call(PULL, TIMEOUT_S, "server-0", filled_bytes(ARRAYS)).rows
    assert rows.tobytes() == ROWS.tobytes()
    assert arena.free_bytes() == ARENA_BYTES - filled_bytes(ARRAYS), "it is not copied"


def test_a_refusal_gives_back_what_was_lent() -> None:
    arena, refusal = Arena(ARENA_BYTES), NotOwner("server-0", 4)
    detail = to_detail(refusal)
    with lane_to(sending(begin_of(Head(ERROR, 1, 1, len(detail)), detail)), arena) as lane:
        with pytest.raises(NotOwner):
            lane.call(PUSH, TIMEOUT_S, "server-0", 1 << 16)
        assert not lane.has_lent
        assert arena.free_bytes() == ARENA_BYTES


def test_a_lane_that_was_refused_in_the_middle_of_its_request_serves_no_other() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        detail = to_detail(NotOwner("server-0", 4))
        theirs.sendall(Head(HELLO).pack())
        lane = Lane(ours, TOKEN, None, TIMEOUT_S)
        _receive(theirs, HEAD_BYTES + 64)
        theirs.sendall(begin_of(Head(ERROR, 1, 1, len(detail)), detail))
        theirs.close()
        with pytest.raises(NotOwner):
            lane.call(PUSH, TIMEOUT_S, "server-0", 0)
        assert not lane.is_sound


def test_a_refusal_that_nobody_knows_is_one_all_the_same() -> None:
    with lane_to(sending(begin_of(Head(ERROR, 0, 1, 3), b"\xff\xff\xff"))) as lane, pytest.raises(InvalidRequest, match="does not know"):
        lane.call(GetStats(FENCE), TIMEOUT_S, "server-0", 0)


def laid(body: Push, arena: Arena) -> Push:
    """Return a push that lies in the arena, and that nobody else holds."""
    room = rooms([Size.of(part.ids.size, part.rows) for part in body.tables], lambda nbytes: as_array(arena.allocate(nbytes)))
    assert room is not None
    for (ids, rows), part in zip(room, body.tables, strict=True):
        ids[:], rows[:] = part.ids, part.rows
    return replace(body, tables=tuple([TableRows(part.table, *its) for its, part in zip(room, body.tables, strict=True)]))


def as_array(block: Block | None) -> NDArray[np.uint8]:
    assert block is not None
    return block.array(0, (block.nbytes,), np.dtype(np.uint8))


@pytest.mark.parametrize(
    "body_of", [lambda arena: PULL, lambda arena: PUSH, lambda arena: laid(PUSH, arena)], ids=["room", "block", "as it lies"]
)
def test_what_a_call_without_an_answer_has_lent_stays_lent_until_the_server_ends(body_of: Callable[[Arena], Any]) -> None:
    arena, may_end = Arena(ARENA_BYTES), threading.Event()
    body = body_of(arena)

    def say_nothing(it: socket.socket, request: Head) -> None:
        may_end.wait(TIMEOUT_S)

    with lane_to(say_nothing, arena) as lane:
        with pytest.raises(LaneTimedOut):
            lane.call(body, 0.2, "server-0", 1 << 16 if body is PULL else 0)
        lane.give_up()
        body = None
        gc.collect()
        assert lane.has_lent
        assert not lane.has_ended()
        assert arena.free_bytes() <= ARENA_BYTES - ROWS.nbytes
        may_end.set()
        while not lane.has_ended():
            pass
        assert arena.free_bytes() == ARENA_BYTES


def test_an_answer_that_comes_byte_by_byte_for_ever_is_not_waited_for() -> None:
    ended = threading.Event()

    def trickle(it: socket.socket, request: Head) -> None:
        rest = iter(answer())
        while not ended.wait(0.05):
            it.sendall(bytes([next(rest)]))

    began_s = time.monotonic()
    with lane_to(trickle) as lane:
        try:
            with pytest.raises(LaneTimedOut):
                lane.call(PULL, 0.5, "server-0", 0)
            assert 0.5 <= time.monotonic() - began_s < TIMEOUT_S
        finally:
            ended.set()


def test_a_server_that_takes_nothing_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(Head(HELLO).pack())
        lane = Lane(ours, TOKEN, None, TIMEOUT_S)
        rows = np.zeros((1 << 18, 16), np.float32)  # 16 MiB: more than any socket keeps
        with pytest.raises(LaneTimedOut, match="did not take the whole request"):
            lane.call(Push(FENCE, 1, (TableRows("user", np.arange(1 << 18, dtype=np.uint64), rows),)), 0.3, "server-0", 0)


HELLOS = {
    "an error": (begin_of(Head(ERROR, message_bytes=len(to_detail(NotOwner("a", 1)))), to_detail(NotOwner("a", 1))), LaneRefused),
    "an error that nobody knows": (begin_of(Head(ERROR, message_bytes=3), b"\xff\xff\xff"), LaneRefused),
    "a reply": (answer(), LaneBroken),
    "garbage": (bytes(64), LaneBroken),
}


@pytest.mark.parametrize("case", HELLOS)
def test_a_hello_that_is_answered_otherwise_opens_no_lane(case: str) -> None:
    said, error = HELLOS[case]
    with pytest.raises(error) as caught, lane_to(sending(b""), hello=said):
        pass
    assert str(caught.value)

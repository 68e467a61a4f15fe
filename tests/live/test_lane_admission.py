"""A scripted core behind real lanes: who is let in, and what ends a connection."""

import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from lane_calls import PUSH
from polling import poll_until
from ps_proto.errors import InvalidRequest, ParameterServerError, RequestTooLarge
from ps_proto.frames import ERROR, HEAD_BYTES, HELLO, IN_ARENA, LANE_METHODS, METHOD_NUMBERS, REPLY, REQUEST, Head, begin_of, message_of
from ps_proto.requests import Done, GetStats, Pull, Pulled, Push, Stats, TableIds
from ps_proto.status import from_detail
from ps_server.events import Dropped, Reply
from ps_worker.transport.choice import TCP, UNIX
from samples import FENCE, IDS, same
from scripted_core import ScriptedCore
from served_lanes import HOST, TIMEOUT_S, ServedLanes, served_lanes
from test_frames import framed


def connected(served: ServedLanes, kind: str) -> socket.socket:
    if kind == TCP:
        it = socket.create_connection((HOST, served.offer.port), TIMEOUT_S)
    else:
        it = socket.socket(socket.AF_UNIX)
        it.settimeout(TIMEOUT_S)
        it.connect(served.offer.unix_path)
    return it


def hello(token: bytes) -> bytes:
    return begin_of(Head(HELLO, message_bytes=len(token)), token)


def received_until_closed(it: socket.socket) -> bytes:
    data = b""
    try:
        while more := it.recv(1 << 16):
            data += more
    except ConnectionResetError:
        pass
    return data


def error_in(frame: bytes) -> ParameterServerError | None:
    head = Head.unpack(frame)
    assert head.kind == ERROR
    return from_detail(frame[HEAD_BYTES : HEAD_BYTES + head.message_bytes])


BAD_HELLOS: dict[str, Callable[[bytes], bytes]] = {
    "another token": lambda token: hello(bytes(len(token))),
    "a shorter token": lambda token: hello(token[:-1]),
    "no token": lambda token: hello(b""),
    "a token too long": lambda token: hello(token * 3),
    "a request first": lambda token: begin_of(Head(REQUEST, message_bytes=len(token)), token),
    "another version": lambda token: b"ROWS\x63" + hello(token)[5:],
    "http": lambda token: b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".ljust(64, b" "),
    "arrays": lambda token: begin_of(Head(HELLO, message_bytes=len(token), arrays_bytes=64), token),
}


@pytest.mark.parametrize("kind", [UNIX, TCP])
@pytest.mark.parametrize("case", BAD_HELLOS)
def test_a_bad_hello_is_not_let_in_and_the_reason_is_logged(served: ServedLanes, kind: str, case: str) -> None:
    with capture_logs() as logs, connected(served, kind) as it:
        it.sendall(BAD_HELLOS[case](served.offer.token))
        assert isinstance(error_in(received_until_closed(it)), InvalidRequest)
        poll_until(lambda: len(logs) == 1, TIMEOUT_S)
    assert logs[0]["event"] == "a lane was not let in"
    assert logs[0]["cause"]
    assert served.core.events == []


@pytest.mark.parametrize("length", [0, 1, 63, 64, 100])
def test_a_hello_that_ends_too_soon_is_logged(served: ServedLanes, length: int) -> None:
    with capture_logs() as logs:
        with connected(served, UNIX) as it:
            it.sendall(hello(served.offer.token)[:length])
        poll_until(lambda: len(logs) == 1, TIMEOUT_S)
    assert "ended before its hello" in logs[0]["cause"]


def test_a_hello_may_come_byte_by_byte(served: ServedLanes) -> None:
    with connected(served, TCP) as it:
        it.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in hello(served.offer.token):
            it.sendall(bytes([byte]))
        assert Head.unpack(it.recv(64)).kind == HELLO


def test_an_arena_that_could_be_cut_short_is_refused(served: ServedLanes) -> None:
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 1 << 16)
    with capture_logs() as logs, connected(served, UNIX) as it:
        socket.send_fds(it, [hello(served.offer.token)], [descriptor])
        error = error_in(received_until_closed(it))
        poll_until(lambda: len(logs) == 1, TIMEOUT_S)
    os.close(descriptor)
    assert isinstance(error, InvalidRequest)
    assert error.field == "the arena"
    assert len(os.listdir("/proc/self/fd")) < 200


def greeted(served: ServedLanes, kind: str) -> socket.socket:
    it = connected(served, kind)
    it.sendall(hello(served.offer.token))
    assert Head.unpack(it.recv(64)).kind == HELLO
    return it


MESSAGE, ARRAYS = message_of(PUSH)
PUSHED = METHOD_NUMBERS[Push]
GOOD = framed(GetStats(FENCE))


def request(**fields: Any) -> bytes:
    """Return a head of a push, and its message, of which some fields lie."""
    head = Head(REQUEST, **{"method": PUSHED, "call": 1, "message_bytes": len(MESSAGE), "arrays_bytes": 1 << 20, **fields})
    return begin_of(head, MESSAGE)


BAD_FRAMES = {
    "garbage": b"\xde\xad\xbe\xef" * 32,
    "zeros": bytes(128),
    "another version": b"ROWS\x02" + GOOD[5:],
    "a second hello": hello(b"x" * 32),
    "a reply": begin_of(Head(REPLY, message_bytes=len(MESSAGE)), MESSAGE),
    "an unknown method": request(method=len(LANE_METHODS)),
    "a message too long": Head(REQUEST, message_bytes=2**32 - 1).pack(),
    "a message that does not parse": begin_of(Head(REQUEST, PUSHED, 1, 3), b"\xff\xff\xff"),
    "fewer array bytes than the message says": request(arrays_bytes=64),
    "more array bytes than the message says": request(arrays_bytes=2**40),
    "an unknown place": request(place=2, arrays_bytes=sum([-(-array.nbytes // 64) * 64 for array in ARRAYS])),
    "arrays in no arena": request(place=IN_ARENA),
}


@pytest.mark.parametrize("kind", [UNIX, TCP])
@pytest.mark.parametrize("case", BAD_FRAMES)
def test_a_frame_that_is_none_ends_its_connection_with_one_logged_reason_and_no_other(served: ServedLanes, kind: str, case: str) -> None:
    with capture_logs() as logs, greeted(served, kind) as it, greeted(served, kind) as other:
        it.sendall(BAD_FRAMES[case])
        assert isinstance(error_in(received_until_closed(it)), InvalidRequest)
        assert [log["event"] for log in logs] == ["a lane ends: its worker sent what cannot be taken"]
        assert logs[0]["cause"]
        served.core.reply(GetStats, Stats({}, {}))
        other.sendall(
            begin_of(Head(REQUEST, METHOD_NUMBERS[GetStats], 9, len(message_of(GetStats(FENCE))[0])), message_of(GetStats(FENCE))[0])
        )
        answer = Head.unpack(other.recv(1 << 12))
        assert (answer.kind, answer.call) == (REPLY, 9)
    assert [type(asked.body) for asked in served.core.asked()] == [GetStats]


def test_a_request_over_the_limit_ends_its_connection_before_there_is_room_for_it() -> None:
    with served_lanes(ScriptedCore(), bytes_max=1 << 19) as served, capture_logs(), greeted(served, UNIX) as it:
        it.sendall(request(arrays_bytes=sum([-(-array.nbytes // 64) * 64 for array in ARRAYS])))
        assert isinstance(error_in(received_until_closed(it)), RequestTooLarge)


@pytest.mark.parametrize("length", [1, 64, 100, 5_000, 500_000])
def test_a_worker_that_dies_in_the_middle_of_a_frame_leaves_nothing(served: ServedLanes, length: int) -> None:
    head = Head(REQUEST, PUSHED, 1, len(MESSAGE), arrays_bytes=sum([-(-array.nbytes // 64) * 64 for array in ARRAYS]))
    frame = begin_of(head, MESSAGE) + framed(PUSH)[head.begin_bytes :]
    assert length < len(frame)
    with greeted(served, UNIX) as it:
        it.sendall(frame[:length])
        poll_until(lambda: len(served.in_loop(lambda: served.listener._connections)) == 1, TIMEOUT_S)
    poll_until(lambda: not served.in_loop(lambda: served.listener._connections), TIMEOUT_S)
    assert served.core.events == []


def test_frames_may_come_in_pieces_and_several_at_once(served: ServedLanes) -> None:
    served.core.scripts[Push] = lambda asked: [Reply(asked.request, Done(asked.body.seq))]
    frames = b""
    for call in range(1, 4):
        message, arrays = message_of(Push(FENCE, call, PUSH.tables))
        head = Head(REQUEST, PUSHED, call, len(message), arrays_bytes=sum([-(-array.nbytes // 64) * 64 for array in arrays]))
        frames += begin_of(head, message) + framed(Push(FENCE, call, PUSH.tables))[head.begin_bytes :]
    with greeted(served, TCP) as it:
        for begin in range(0, len(frames), 77_777):
            it.sendall(frames[begin : begin + 77_777])
        answers = b""
        while len(answers) < 3 * 128:
            answers += it.recv(1 << 12)
    assert [Head.unpack(answers[begin : begin + 64]).call for begin in range(0, 384, 128)] == [1, 2, 3]
    assert [same(asked.body.tables, PUSH.tables) for asked in served.core.asked()] == [True] * 3


def test_a_call_number_that_is_in_use_ends_the_connection(served: ServedLanes) -> None:
    message, _ = message_of(GetStats(FENCE))
    frame = begin_of(Head(REQUEST, METHOD_NUMBERS[GetStats], 5, len(message)), message)
    with capture_logs(), greeted(served, UNIX) as it:
        it.sendall(frame * 2)  # the first waits
        assert isinstance(error_in(received_until_closed(it)), InvalidRequest)
        poll_until(lambda: Dropped(served.core.asked()[0].request) in served.core.events, TIMEOUT_S)


def test_a_worker_that_does_not_read_is_not_read_from(served: ServedLanes) -> None:
    served.core.reply(Pull, Pulled((np.zeros((1 << 18, 64), np.float32),), 1))  # 64 MiB: one answer is as much as may wait
    with greeted(served, UNIX) as it:
        it.settimeout(None)
        for call, ids in enumerate((IDS, IDS, np.arange(10_000, dtype=np.uint64), IDS, IDS), 1):  # the third is more than a scratch
            message, _ = message_of(pull := Pull(FENCE, (TableIds("user", ids),)))
            head = Head(REQUEST, METHOD_NUMBERS[Pull], call, len(message), arrays_bytes=-(-ids.nbytes // 64) * 64)
            it.sendall(begin_of(head, message) + framed(pull)[head.begin_bytes :])
            poll_until(lambda call=call: len(served.core.asked()) == min(call, 2), TIMEOUT_S)  # type: ignore[misc]  # mypy infers no lambda with a default
        for _ in range(20):
            assert served.in_loop(lambda: len(served.core.asked())) == 2
        left = 5 * (128 + (64 << 20))
        scratch = bytearray(1 << 20)
        while left:
            left -= it.recv_into(scratch)
    assert [asked.body.tables[0].ids.size for asked in served.core.asked()] == [IDS.size, IDS.size, 10_000, IDS.size, IDS.size]


def test_what_a_worker_that_does_not_read_has_sent_already_waits_too(served: ServedLanes) -> None:
    served.core.reply(Pull, Pulled((np.zeros((1 << 18, 64), np.float32),), 1))  # 64 MiB: one answer is as much as may wait
    message, arrays = message_of(Pull(FENCE, (TableIds("user", IDS),)))
    heads = [Head(REQUEST, METHOD_NUMBERS[Pull], call, len(message), arrays_bytes=64) for call in range(1, 9)]
    with greeted(served, UNIX) as it:
        it.sendall(b"".join([begin_of(head, message) + arrays[0].tobytes().ljust(64, b"\0") for head in heads]))
        left = len(heads) * (128 + (64 << 20))
        scratch = bytearray(1 << 20)
        while left:
            taken = len(heads) - left // (128 + (64 << 20))  # answers of which something has come
            assert served.in_loop(lambda: len(served.core.asked())) <= taken + 2
            left -= it.recv_into(scratch)
    assert len(served.core.asked()) == len(heads)

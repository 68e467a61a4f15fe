"""A scripted core behind real lanes: what the worker sends is what the core gets, and back; and what becomes of calls that do not end."""

import gc
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from polling import poll_until
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
from ps_proto.frames import ERROR, HEAD_BYTES, HELLO, IN_ARENA, LANE_METHODS, METHOD_NUMBERS, REPLY, REQUEST, Head, begin_of, message_of
from ps_proto.methods import METHODS
from ps_proto.requests import Done, Fence, GetStats, InstallMap, JoinJob, Pull, Pulled, Push, Stats, TableIds, TableRows
from ps_proto.status import from_detail
from ps_server.events import Asked, Dropped, Effect, Refuse, Reply
from ps_worker.rooms import Size, rooms
from ps_worker.transport.choice import ARENA, AUTO, LANES, TCP, UNIX
from ps_worker.transport.lanes import IDLE_MAX
from ps_worker.transport.negotiated import NegotiatedTransport
from samples import FENCE, IDS, REPLIES, REQUESTS, ROWS, same
from scripted_core import ScriptedCore
from served_lanes import BYTES_MAX, HOST, TIMEOUT_S, ServedLanes, served_lanes
from test_frames import framed

ARENA_BYTES = 32 << 20
REPLY_OF = {method.reply: next(reply for reply in REPLIES if type(reply) is method.reply) for method in METHODS.values()}
BODIES = [body for body in REQUESTS if type(body) in LANE_METHODS]
MANY = np.arange(3_000, dtype=np.uint64)
MANY_ROWS = np.random.default_rng(5).random((3_000, 33), dtype=np.float32)  # 387 KiB: more than the arena is too good for
PUSH = Push(FENCE, 1, (TableRows("user", MANY, MANY_ROWS), TableRows("item", MANY, MANY_ROWS)))
PULL = Pull(FENCE, (TableIds("user", MANY), TableIds("item", MANY[:1])))


@pytest.fixture
def served() -> Iterator[ServedLanes]:
    with served_lanes(ScriptedCore()) as it:
        yield it


@pytest.fixture(params=LANES)
def transport(request: pytest.FixtureRequest) -> Iterator[NegotiatedTransport]:
    it = NegotiatedTransport(request.param, arena_bytes=ARENA_BYTES)
    yield it
    it.close()


@pytest.fixture
def by_arena() -> Iterator[NegotiatedTransport]:
    it = NegotiatedTransport(ARENA, arena_bytes=ARENA_BYTES)
    yield it
    it.close()


def answer_pulls(core: ScriptedCore, value: Callable[[Asked], float] = lambda asked: 1.0, dim: int = 33) -> None:
    """Answer pulls with rows of `value`, where the core is told to make them."""

    def script(asked: Asked) -> list[Effect]:
        pull = asked.body
        assert isinstance(pull, Pull)
        rows = tuple([asked.make_rows((part.ids.size, dim), np.dtype(np.float32)) for part in pull.tables])
        for part in rows:
            part[...] = value(asked)
        return [Reply(asked.request, Pulled(rows, 4))]

    core.scripts[Pull] = script


# --- calls ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_each_request_reaches_the_core_and_its_reply_comes_back(served: ServedLanes, transport: NegotiatedTransport, body: object) -> None:
    reply = REPLY_OF[METHODS[type(body)].reply]
    served.core.reply(type(body), reply)
    for _ in range(2):
        assert same(transport.call(served.address, body, TIMEOUT_S), reply)
    assert [same(asked.body, body) for asked in served.core.asked()] == [True, True]


def test_large_arrays_travel_both_ways(served: ServedLanes, transport: NegotiatedTransport) -> None:
    taken: list[bool] = []

    def take(asked: Asked) -> list[Effect]:
        taken.append(same(asked.body, PUSH))  # now: what is borrowed changes after the answer
        return [Reply(asked.request, Done(1))]

    served.core.scripts[Push] = take
    served.core.reply(Pull, Pulled((MANY_ROWS, MANY_ROWS[:1]), 4))
    for _ in range(3):
        assert transport.call(served.address, PUSH, TIMEOUT_S) == Done(1)
        pulled = transport.call(served.address, PULL, TIMEOUT_S)
        assert same(pulled, Pulled((MANY_ROWS, MANY_ROWS[:1]), 4))
        assert [rows.ctypes.data % 64 for rows in pulled.rows] == [0, 0]
    assert taken == [True] * 3


def test_other_requests_go_over_grpc(served: ServedLanes, transport: NegotiatedTransport) -> None:
    with pytest.raises(InvalidRequest, match="UNIMPLEMENTED"):  # this is no coordinator
        transport.call(served.address, JoinJob(0, 1, None), TIMEOUT_S)
    assert transport.kinds == {}


@pytest.mark.parametrize(
    "refusal", [NotOwner("server-0", 4), StalenessTimeout(5, 2, 1, 3, 0.5), InvalidRequest("rows of 'größe'", "3", "4")]
)
@pytest.mark.parametrize("body", [PULL, PUSH, GetStats(FENCE)], ids=lambda body: type(body).__name__)
def test_a_refusal_arrives_as_the_same_error_and_the_connection_stays(
    served: ServedLanes, transport: NegotiatedTransport, body: object, refusal: ParameterServerError
) -> None:
    served.core.scripts[type(body)] = lambda asked: [Refuse(asked.request, refusal)]
    for _ in range(2):
        with pytest.raises(type(refusal)) as caught:
            transport.call(served.address, body, TIMEOUT_S)
        assert caught.value.values() == refusal.values()
    assert served.in_loop(lambda: len(served.listener._connections)) == 1


def test_a_bug_arrives_as_an_internal_error_and_the_server_lives_on(served: ServedLanes, transport: NegotiatedTransport) -> None:
    served.core.reply(GetStats, Pulled)  # a class, which no codec can encode
    with capture_logs() as logs, pytest.raises(InternalError) as caught:
        transport.call(served.address, GetStats(FENCE), TIMEOUT_S)
    assert caught.value.peer == "server-0"
    assert [log["incident"] for log in logs if "incident" in log] == [caught.value.incident]
    served.core.reply(GetStats, Stats({}, {}))
    assert transport.call(served.address, GetStats(FENCE), TIMEOUT_S) == Stats({}, {})


def test_what_fits_no_message_never_leaves(served: ServedLanes, transport: NegotiatedTransport) -> None:
    with pytest.raises(InvalidRequest, match=r"Fence\.clock"):
        transport.call(served.address, Push(Fence(0, clock=-1), 0, ()), TIMEOUT_S)
    assert served.core.events == []


def test_an_oversized_request_is_refused_before_it_is_sent(transport: NegotiatedTransport) -> None:
    with served_lanes(ScriptedCore(), bytes_max=1 << 19) as served:
        with pytest.raises(RequestTooLarge) as caught:
            transport.call(served.address, PUSH, TIMEOUT_S, "server-0")
        assert caught.value.values() == {"server": "server-0", "bytes_announced": 2 * 3_000 * (8 + 4 * 33), "bytes_max": 1 << 19}
        served.core.reply(GetStats, Stats({}, {}))
        assert transport.call(served.address, GetStats(FENCE), TIMEOUT_S) == Stats({}, {})
        assert [type(asked.body) for asked in served.core.asked()] == [GetStats]


def test_after_a_request_that_was_refused_half_sent_another_connection_is_used() -> None:
    ids = np.arange(1 << 16, dtype=np.uint64)
    push = Push(FENCE, 1, (TableRows("user", ids, np.zeros((ids.size, 64), np.float32)),))  # 16 MiB: more than a socket keeps
    with served_lanes(ScriptedCore(), bytes_max=1 << 19) as served, capture_logs():
        served.offer = replace(served.offer, max_request_bytes=1 << 30)
        served.core.reply(GetStats, Stats({}, {}))
        transport = NegotiatedTransport(UNIX)
        with pytest.raises(RequestTooLarge):
            transport.call(served.address, push, TIMEOUT_S)
        assert transport.call(served.address, GetStats(FENCE), TIMEOUT_S) == Stats({}, {})
        transport.close()


def test_a_waiting_pull_holds_a_connection_and_others_go_on(served: ServedLanes, transport: NegotiatedTransport) -> None:
    served.core.reply(GetStats, Stats({}, {}))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(transport.call, served.address, PULL, TIMEOUT_S)
        poll_until(lambda: len(served.core.asked()) == 1, TIMEOUT_S)
        assert transport.call(served.address, GetStats(FENCE), TIMEOUT_S) == Stats({}, {})
        assert not waiting.done()
        parked = served.core.asked()[0]
        served.core.scripts[InstallMap] = lambda asked: [Reply(parked.request, Pulled((ROWS,), 7)), Reply(asked.request, Done())]
        transport.call(served.address, next(body for body in REQUESTS if isinstance(body, InstallMap)), TIMEOUT_S)
        assert same(waiting.result(TIMEOUT_S), Pulled((ROWS,), 7))
    assert served.in_loop(lambda: len(served.listener._connections)) == 2


def test_a_burst_of_calls_leaves_a_few_connections(served: ServedLanes, transport: NegotiatedTransport) -> None:
    with ThreadPoolExecutor(IDLE_MAX + 4) as pool:
        waiting = [pool.submit(transport.call, served.address, PULL, TIMEOUT_S) for _ in range(IDLE_MAX + 4)]
        poll_until(lambda: len(served.core.asked()) == IDLE_MAX + 4, TIMEOUT_S)
        replies: list[Effect] = [Reply(it.request, Pulled((ROWS,), 7)) for it in served.core.asked()]
        served.core.scripts[GetStats] = lambda asked: [*replies, Reply(asked.request, Stats({}, {}))]
        transport.call(served.address, GetStats(FENCE), TIMEOUT_S)
        assert [call.result(TIMEOUT_S).step for call in waiting] == [7] * (IDLE_MAX + 4)
    poll_until(lambda: served.in_loop(lambda: len(served.listener._connections)) == IDLE_MAX, TIMEOUT_S)


def test_a_connection_in_use_ends_after_its_call_where_others_are_going_to_be_used(served: ServedLanes) -> None:
    transport = NegotiatedTransport(UNIX)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(transport.call, served.address, PULL, TIMEOUT_S)
        poll_until(lambda: len(served.core.asked()) == 1, TIMEOUT_S)
        lanes = transport._lanes[served.address]
        assert lanes is not None
        lanes.retire()
        replies: list[Effect] = [Reply(served.core.asked()[0].request, Pulled((ROWS,), 7))]
        served.core.scripts[GetStats] = lambda asked: [*replies, Reply(asked.request, Stats({}, {}))]
        other = NegotiatedTransport(UNIX)
        other.call(served.address, GetStats(FENCE), TIMEOUT_S)
        assert waiting.result(TIMEOUT_S).step == 7
    other.close()
    poll_until(lambda: not served.in_loop(lambda: served.listener._connections), TIMEOUT_S)
    transport.close()


def test_threads_call_at_once(served: ServedLanes, transport: NegotiatedTransport) -> None:
    def echo(number: int) -> bool:
        rows = np.full((2_000, 9), number, dtype=np.float32)
        pushed = transport.call(served.address, Push(FENCE, number, (TableRows("user", MANY[:2_000], rows),)), TIMEOUT_S)
        pull = Pull(Fence(1, clock=number), (TableIds("user", MANY[:2_000]),))
        pulled = transport.call(served.address, pull, TIMEOUT_S)
        return bool(pushed == Done(number) and (pulled.rows[0] == number).all())

    served.core.scripts[Push] = lambda asked: [Reply(asked.request, Done(asked.body.seq))]
    answer_pulls(served.core, lambda asked: asked.body.fence.clock, dim=9)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(echo, range(64)))


# --- calls that do not end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [PULL, GetStats(FENCE)], ids=lambda body: type(body).__name__)
def test_a_call_past_its_deadline_is_unreachable_and_dropped(served: ServedLanes, transport: NegotiatedTransport, body: object) -> None:
    with pytest.raises(Unreachable) as caught:
        transport.call(served.address, body, 0.3, peer="server-0")
    assert (caught.value.peer, caught.value.address) == ("server-0", served.address)
    assert 0.3 <= caught.value.after_s < 5.0
    poll_until(lambda: Dropped(served.core.asked()[0].request) in served.core.events, TIMEOUT_S)
    served.core.reply(GetStats, Stats({}, {}))
    assert transport.call(served.address, GetStats(FENCE), TIMEOUT_S) == Stats({}, {})
    assert served.offers_asked == 1, "the way was not to blame"


def test_closing_the_transport_ends_what_waits(served: ServedLanes, transport: NegotiatedTransport) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(transport.call, served.address, body, TIMEOUT_S) for body in (PULL, GetStats(FENCE))]
        poll_until(lambda: len(served.core.asked()) == 2, TIMEOUT_S)
        transport.close()
        for call in waiting:
            with pytest.raises(ClientClosed):
                call.result(TIMEOUT_S)
    with pytest.raises(ClientClosed):
        transport.call(served.address, GetStats(FENCE), TIMEOUT_S)
    poll_until(lambda: not served.in_loop(lambda: served.listener._connections), TIMEOUT_S)


def test_a_connection_that_breaks_is_unreachable_once_and_then_another_is_made(served: ServedLanes, transport: NegotiatedTransport) -> None:
    served.core.reply(GetStats, Stats({}, {}))
    assert transport.call(served.address, GetStats(FENCE), TIMEOUT_S) == Stats({}, {})
    kinds = transport.kinds
    served.in_loop(lambda: [connection._transport.abort() for connection in served.listener._connections])
    with pytest.raises(Unreachable, match=r"by (arena|unix|tcp)"):
        transport.call(served.address, GetStats(FENCE), TIMEOUT_S)
    assert transport.call(served.address, GetStats(FENCE), TIMEOUT_S) == Stats({}, {})
    assert transport.kinds == kinds
    assert served.offers_asked == 2


def test_a_server_that_stops_answers_what_waits(transport: NegotiatedTransport) -> None:
    with ThreadPoolExecutor(1) as pool:
        with served_lanes(ScriptedCore()) as served:
            waiting = pool.submit(transport.call, served.address, PULL, TIMEOUT_S)
            poll_until(lambda: len(served.core.asked()) == 1, TIMEOUT_S)
            folder = os.path.dirname(served.offer.unix_path)
            assert os.stat(folder).st_mode & 0o777 == 0o700
        with pytest.raises(ParameterServerError, match="it is stopping"):
            waiting.result(TIMEOUT_S)
    assert not os.path.exists(folder)


FORKING = """
import os, sys
from ps_worker.transport.choice import LANES
from ps_worker.transport.negotiated import NegotiatedTransport
from ps_proto.errors import InvalidRequest
from ps_proto.requests import Fence, GetStats

address, ask = sys.argv[1], GetStats(Fence(1))
transports = [NegotiatedTransport(kind) for kind in LANES]
for transport in transports:
    transport.call(address, ask, 20)
child = os.fork()
if child == 0:
    for transport in transports:
        try:
            transport.call(address, ask, 20)
            os._exit(9)
        except InvalidRequest as error:
            transport.close()
            if error.field != "this process":
                os._exit(8)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for transport in transports:
    transport.call(address, ask, 20)
    transport.close()
"""


def test_a_call_in_a_forked_child_is_an_error_and_leaves_its_parents_connection_alone(served: ServedLanes) -> None:
    served.core.reply(GetStats, Stats({}, {}))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", FORKING, served.address], check=True, timeout=TIMEOUT_S, env=environment)
    assert len(served.core.asked()) == 2 * len(LANES)
    assert served.offers_asked == len(LANES)


# --- the arena --------------------------------------------------------------------------------------------------------------


def test_rows_come_through_the_arena_once_their_dim_is_known(served: ServedLanes, by_arena: NegotiatedTransport) -> None:
    answer_pulls(served.core)
    first = by_arena.call(served.address, PULL, TIMEOUT_S)
    arena = by_arena._arena
    assert arena is not None
    assert arena.free_bytes() == ARENA_BYTES, "the first rows came in the frame"
    second = by_arena.call(served.address, PULL, TIMEOUT_S)
    assert same(first, second)
    assert arena.free_bytes() < ARENA_BYTES - 3_000 * 33 * 4
    assert [asked.is_borrowed for asked in served.core.asked()] == [False, True]
    del second, first
    assert arena.free_bytes() == ARENA_BYTES
    assert by_arena.times_arena_full == 0


def test_ids_in_a_request_are_the_cores_own_and_rows_are_borrowed(served: ServedLanes, by_arena: NegotiatedTransport) -> None:
    served.core.reply(Push, Done(1))
    by_arena.call(served.address, PUSH, TIMEOUT_S)
    other = Push(FENCE, 2, tuple([TableRows(part.table, part.ids + np.uint64(1), part.rows + 1) for part in PUSH.tables]))
    by_arena.call(served.address, other, TIMEOUT_S)
    first, second = served.core.asked()
    assert first.is_borrowed
    assert same(first.body.tables[0].ids, MANY)
    assert same(second.body, other)
    assert same(first.body.tables[0].rows, other.tables[0].rows), "the place was used again once the first was answered"
    assert first.body.tables[0].rows.ctypes.data % 64 == 0


def test_a_push_that_lies_in_lent_memory_is_sent_from_there(served: ServedLanes, by_arena: NegotiatedTransport) -> None:
    assert by_arena.lend(1 << 16) is None, "no server shares it yet"
    served.core.reply(Push, Done(1))
    by_arena.call(served.address, PUSH, TIMEOUT_S)
    assert by_arena.lend(100) is None, "so little travels in the frame"
    assert by_arena.lend(ARENA_BYTES // 2 + 64) is None, "half of it is for rows"
    assert by_arena.times_arena_full == 0, "it may yet be sent in the frame"
    room = rooms([Size.of(part.ids.size, part.rows) for part in PUSH.tables], by_arena.lend)
    assert room is not None
    for (ids, rows), part in zip(room, PUSH.tables, strict=True):
        ids[:], rows[:] = part.ids, part.rows
    laid = Push(FENCE, 2, tuple([TableRows(part.table, *its) for its, part in zip(room, PUSH.tables, strict=True)]))
    assert by_arena._arena is not None
    free_bytes: list[int] = []

    def take(asked: Asked) -> list[Effect]:
        free_bytes.append(by_arena._arena.free_bytes() if by_arena._arena else 0)
        assert same(asked.body, laid)
        return [Reply(asked.request, Done(1))]

    served.core.scripts[Push] = take
    before = by_arena._arena.free_bytes()
    by_arena.call(served.address, laid, TIMEOUT_S)
    assert free_bytes == [before], "it takes no other place"


def test_what_is_held_is_never_written_over_and_what_is_let_go_comes_back() -> None:
    """1,000 results of 1,000 x 64, more than the arena has room for: the rest comes in the frame, and is counted."""
    transport = NegotiatedTransport(ARENA, arena_bytes=200 << 20)
    ids = np.arange(1_000, dtype=np.uint64)
    with served_lanes(ScriptedCore()) as served:
        numbers = itertools.count()
        answer_pulls(served.core, lambda asked: next(numbers), dim=64)
        served.core.reply(Push, Done())
        held = []
        for number in range(1_000):
            held.append(transport.call(served.address, Pull(FENCE, (TableIds("user", ids),)), TIMEOUT_S).rows[0])
            if number % 100 == 99:
                transport.call(served.address, Push(FENCE, 1, (TableRows("user", ids, held[-1]),)), TIMEOUT_S)
        assert all([(rows == number).all() for number, rows in enumerate(held)])
        assert {rows.shape for rows in held} == {(1_000, 64)}
        assert {rows.ctypes.data % 64 for rows in held} == {0}
        in_arena = (200 << 20) // 256_000
        assert 1_000 - 1 - in_arena <= transport.times_arena_full <= 1_000 - in_arena + 10
        del held
        gc.collect()
        assert transport._arena is not None
        assert transport._arena.free_bytes() == 200 << 20
        before = transport.times_arena_full
        transport.call(served.address, Pull(FENCE, (TableIds("user", ids),)), TIMEOUT_S)
        assert transport.times_arena_full == before
        transport.close()


def test_what_a_call_that_was_given_up_has_lent_is_not_used_again_before_the_server_is_done(
    served: ServedLanes, by_arena: NegotiatedTransport
) -> None:
    answer_pulls(served.core)
    by_arena.call(served.address, PULL, TIMEOUT_S)
    arena, lanes = by_arena._arena, by_arena._lanes[served.address]
    assert arena is not None
    assert lanes is not None
    lanes.try_out(TIMEOUT_S)  # a second connection
    blocked, may_go_on = threading.Event(), threading.Event()

    def block(asked: Asked) -> list[Effect]:
        blocked.set()
        assert may_go_on.wait(TIMEOUT_S)
        return [Reply(asked.request, Stats({}, {}))]

    served.core.scripts[GetStats] = block
    with ThreadPoolExecutor(1) as pool:
        stats = pool.submit(by_arena.call, served.address, GetStats(FENCE), TIMEOUT_S)
        assert blocked.wait(TIMEOUT_S)
        try:
            with pytest.raises(Unreachable):
                by_arena.call(served.address, PULL, 0.2)  # it is sent, and nobody reads it
            gc.collect()
            assert ARENA_BYTES - arena.free_bytes() >= 3_000 * 33 * 4, "what the server may yet write to is nobody's"
        finally:
            may_go_on.set()
        stats.result(TIMEOUT_S)

    def is_free() -> bool:
        by_arena._registry.sweep()
        return arena.free_bytes() == ARENA_BYTES

    poll_until(is_free, TIMEOUT_S)


@pytest.mark.parametrize("body", [PULL, PUSH], ids=lambda body: type(body).__name__)
def test_what_a_refused_call_has_lent_is_free_again(served: ServedLanes, by_arena: NegotiatedTransport, body: object) -> None:
    answer_pulls(served.core)
    by_arena.call(served.address, PULL, TIMEOUT_S)  # so that the next one brings room for its rows
    served.core.scripts[type(body)] = lambda asked: [Refuse(asked.request, NotOwner("server-0", 4))]
    with pytest.raises(NotOwner):
        by_arena.call(served.address, body, TIMEOUT_S)
    assert served.core.asked()[-1].is_borrowed
    assert by_arena._arena is not None
    assert by_arena._arena.free_bytes() == ARENA_BYTES


def test_what_was_lent_comes_back_although_no_connection_is_opened_or_ended(served: ServedLanes, by_arena: NegotiatedTransport) -> None:
    served.core.reply(GetStats, Stats({}, {}))
    by_arena.call(served.address, GetStats(FENCE), TIMEOUT_S)
    lanes = by_arena._lanes[served.address]
    assert lanes is not None
    lanes.try_out(TIMEOUT_S)  # a second connection
    may_go_on = threading.Event()
    served.loop.call_soon_threadsafe(may_go_on.wait, TIMEOUT_S)
    try:
        with pytest.raises(Unreachable):
            by_arena.call(served.address, PUSH, 0.2)  # the server does not see yet that it was given up
    finally:
        may_go_on.set()
    connections = served.in_loop(lambda: set(served.listener._connections))

    def is_free() -> bool:
        by_arena.call(served.address, GetStats(FENCE), TIMEOUT_S)
        assert by_arena._arena is not None
        return by_arena._arena.free_bytes() == ARENA_BYTES

    poll_until(is_free, TIMEOUT_S)
    assert served.in_loop(lambda: served.listener._connections <= connections)


def test_the_server_lets_go_of_the_arena_of_a_worker_that_has_gone(served: ServedLanes, by_arena: NegotiatedTransport) -> None:
    answer_pulls(served.core)
    for _ in range(2):
        by_arena.call(served.address, PULL, TIMEOUT_S)
    mapped = served.listener._arenas._mapped
    assert served.in_loop(lambda: len(mapped)) == 1
    by_arena.close()
    served.core.events.clear()  # this core keeps what it is asked
    poll_until(lambda: served.in_loop(lambda: len(mapped)) == 0, TIMEOUT_S)


@pytest.mark.parametrize("kind", LANES)
def test_closing_leaves_no_socket_open(served: ServedLanes, kind: str) -> None:
    transport = NegotiatedTransport(kind, arena_bytes=ARENA_BYTES)
    served.core.reply(GetStats, Stats({}, {}))
    transport.call(served.address, GetStats(FENCE), TIMEOUT_S)
    lanes = set(transport._registry._lanes)
    assert lanes
    may_go_on = threading.Event()
    served.loop.call_soon_threadsafe(may_go_on.wait, TIMEOUT_S)
    try:
        with pytest.raises(Unreachable):
            transport.call(served.address, PUSH, 0.2)  # the server does not see that it was given up
        transport.close()
        assert {lane._socket.fileno() for lane in lanes} == {-1}
    finally:
        may_go_on.set()


def test_small_arrays_travel_in_the_frame(served: ServedLanes, by_arena: NegotiatedTransport) -> None:
    answer_pulls(served.core)
    for _ in range(2):
        by_arena.call(served.address, Pull(FENCE, (TableIds("user", IDS),)), TIMEOUT_S)
    assert [asked.is_borrowed for asked in served.core.asked()] == [False, False]


def test_a_core_that_makes_rows_of_its_own_is_answered_in_the_frame(served: ServedLanes, by_arena: NegotiatedTransport) -> None:
    served.core.reply(Pull, Pulled((MANY_ROWS, MANY_ROWS[:1]), 4))
    for _ in range(3):
        assert same(by_arena.call(served.address, PULL, TIMEOUT_S), Pulled((MANY_ROWS, MANY_ROWS[:1]), 4))
    assert [asked.is_borrowed for asked in served.core.asked()] == [False, True, True]


# --- who is let in, and what ends a connection ----------------------------------------------------------------------------------


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
            poll_until(lambda call=call: len(served.core.asked()) == min(call, 2), TIMEOUT_S)  # type: ignore[misc]
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


# --- which way --------------------------------------------------------------------------------------------------------------


def test_the_limit_of_the_tests_is_the_offers(served: ServedLanes) -> None:
    assert served.offer.max_request_bytes == BYTES_MAX
    assert served.offer.server == "server-0"
    assert AUTO not in LANES

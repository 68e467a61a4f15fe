"""A scripted core behind a real arena: what lies in it, who may read it how long, and when it is free again."""

import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lane_calls import ARENA_BYTES, MANY, MANY_ROWS, PULL, PUSH, answer_pulls
from polling import poll_until
from ps_proto.errors import NotOwner, Unreachable
from ps_proto.requests import Done, GetStats, Pull, Pulled, Push, Stats, TableIds, TableRows
from ps_server.events import Asked, Effect, Refuse, Reply
from ps_worker.rooms import Size, rooms
from ps_worker.transport.choice import ARENA, LANES
from ps_worker.transport.negotiated import NegotiatedTransport
from samples import FENCE, IDS, same
from scripted_core import ScriptedCore
from served_lanes import TIMEOUT_S, ServedLanes, served_lanes


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

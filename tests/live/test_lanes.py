"""A scripted core behind real lanes: what the worker sends is what the core gets, and back; and what becomes of calls that do not end."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from lane_calls import MANY, MANY_ROWS, PULL, PUSH, answer_pulls
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
from ps_proto.frames import LANE_METHODS
from ps_proto.methods import METHODS
from ps_proto.orders import InstallMap
from ps_proto.requests import Done, Fence, GetStats, JoinJob, Pull, Pulled, Push, Stats, TableIds, TableRows
from ps_server.events import Asked, Dropped, Effect, Refuse, Reply
from ps_worker.transport.choice import AUTO, LANES, UNIX
from ps_worker.transport.lanes import IDLE_MAX
from ps_worker.transport.negotiated import NegotiatedTransport
from samples import FENCE, REPLIES, REQUESTS, ROWS, same
from scripted_core import ScriptedCore
from served_lanes import BYTES_MAX, TIMEOUT_S, ServedLanes, served_lanes

REPLY_OF = {method.reply: next(reply for reply in REPLIES if type(reply) is method.reply) for method in METHODS.values()}
BODIES = [body for body in REQUESTS if type(body) in LANE_METHODS]


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


def test_the_limit_of_the_tests_is_the_offers(served: ServedLanes) -> None:
    assert served.offer.max_request_bytes == BYTES_MAX
    assert served.offer.server == "server-0"
    assert AUTO not in LANES

"""A push that names its pull, over every transport: no id travels, and an unknown list is the same error everywhere (R19)."""

from collections.abc import Iterator

import numpy as np
import pytest

from conversation import USER, map_of
from ps_proto.errors import UnknownKeyList
from ps_proto.frames import filled
from ps_proto.orders import InstallMap, InstallTable, StartJob
from ps_proto.parts import headed
from ps_proto.requests import Done, Fence, GetStats, Pull, Push, TableIds, TableRows
from ps_proto.values import Async
from ps_server.shard.shard import Shard
from ps_worker.transport.arena import Arena
from ps_worker.transport.choice import GRPC, LANES
from ps_worker.transport.negotiated import NegotiatedTransport
from served_lanes import TIMEOUT_S, ServedLanes, served_lanes

COUNT = 20_000  # 160 KB of ids, 80 KB of rows: in the arena, and in several messages over gRPC
IDS = np.random.default_rng(7).integers(0, 2**64, COUNT, dtype=np.uint64)
ONES = np.ones((COUNT, 1), np.float32)
FENCE = Fence(1, rank=0)
BY_NAME = Push(FENCE, 1, (TableRows("user", IDS[:0], ONES, 3),))


@pytest.fixture
def served() -> Iterator[ServedLanes]:
    with served_lanes(Shard("server-0")) as it:
        yield it


@pytest.fixture(params=[*LANES, GRPC])
def transport(request: pytest.FixtureRequest, served: ServedLanes) -> Iterator[NegotiatedTransport]:
    it = NegotiatedTransport(request.param, arena_bytes=1 << 20)
    for order in (InstallMap(map_of(1, "server-0")), InstallTable(1, USER), StartJob(1, 1, 1, Async(), 0)):
        it.call(served.address, order, TIMEOUT_S)
    yield it
    it.close()


def test_a_push_by_name_is_applied_and_brings_no_ids(served: ServedLanes, transport: NegotiatedTransport) -> None:
    transport.call(served.address, Pull(FENCE, (TableIds("user", IDS, 3),)), TIMEOUT_S)
    assert transport.call(served.address, BY_NAME, TIMEOUT_S) == Done(0)
    (rows,) = transport.call(served.address, Pull(FENCE, (TableIds("user", IDS),)), TIMEOUT_S).rows
    assert rows.tolist() == [[-1.0]] * COUNT
    stats = transport.call(served.address, GetStats(FENCE), TIMEOUT_S)
    assert stats.tables["user"]["rows_listed"] == COUNT
    assert stats.tables["user"]["bytes_in"] == 2 * IDS.nbytes + ONES.nbytes
    assert stats.server["key_lists_bytes"] > 12 * COUNT


def test_a_list_that_is_not_known_is_the_same_error(served: ServedLanes, transport: NegotiatedTransport) -> None:
    with pytest.raises(UnknownKeyList) as caught:
        transport.call(served.address, BY_NAME, TIMEOUT_S)
    assert caught.value.values() == {"server": "server-0", "table": "user", "pull": 3}
    full = Push(FENCE, 1, (TableRows("user", IDS, ONES),))
    assert transport.call(served.address, full, TIMEOUT_S) == Done(0), "the connection is as good as before"


def test_rows_that_lie_in_the_arena_without_ids_are_sent_from_there() -> None:
    arena = Arena(1 << 20)
    nbytes = 2 * filled(ONES.nbytes)
    block = arena.find(nbytes)
    assert block is not None
    first = block.array(0, ONES.shape, ONES.dtype)
    second = block.array(filled(ONES.nbytes), ONES.shape, ONES.dtype)
    push = Push(FENCE, 1, (TableRows("user", IDS[:0], first, 3), TableRows("item", IDS[:0], second, 3)))
    assert arena.place_of(headed(push)[1]) == block.begin

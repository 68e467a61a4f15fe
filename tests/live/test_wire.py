"""Rows in bfloat16 and int8 between a shard and a transport, over real gRPC and real lanes: the same bytes on each."""

from collections.abc import Iterator

import numpy as np
import pytest

from conversation import map_of
from ps_proto.errors import InvalidRequest
from ps_proto.orders import InstallMap, InstallTable, StartJob
from ps_proto.requests import Done, Fence, Pull, Pulled, Push, TableIds, TableRows
from ps_proto.values import SGD, Async, Normal, TableSpec
from ps_server.events import Asked
from ps_server.shard.shard import Shard
from ps_server.shard.table import Table
from ps_worker.transport.choice import ARENA, GRPC, LANES
from ps_worker.transport.negotiated import NegotiatedTransport
from served_lanes import TIMEOUT_S, ServedLanes, served_lanes
from sharding.wire_format import FORMATS
from sharding.wire_rows import decode_rows, encode_rows

ARENA_BYTES = 32 << 20
FENCE = Fence(1, rank=0)
IDS = np.arange(3_000, dtype=np.uint64)  # so that the arena is not too good for any of the arrays
SPECS = [TableSpec(wire, 33, SGD(lr=1.0), Normal(), seed=3, wire=wire) for wire in FORMATS]
GRADIENTS = np.random.default_rng(5).standard_normal((IDS.size, 33), np.float32)
PUSH = Push(FENCE, 1, tuple([TableRows(spec.name, IDS, encode_rows(GRADIENTS, spec.wire)) for spec in SPECS]))
PULL = Pull(FENCE, tuple([TableIds(spec.name, IDS) for spec in SPECS]))


def expected(is_pushed: bool) -> list[bytes]:
    """Return what a pull brings of each table, before or after the push."""
    found = []
    for spec, part in zip(SPECS, PUSH.tables, strict=True):
        table = Table(spec)
        if is_pushed:
            table.update(IDS, decode_rows(part.rows), spec.optimizer.parameters())
        found.append(table.pull(IDS).tobytes())
    return found


@pytest.fixture
def served() -> Iterator[ServedLanes]:
    shard = Shard("server-0")
    tables = [InstallTable(1, spec) for spec in SPECS]
    for order in (InstallMap(map_of(1, "server-0")), *tables, StartJob(1, 1, 1, Async(), 0)):
        shard.handle(Asked(1, order), 0.0)
    with served_lanes(shard) as it:
        yield it


@pytest.fixture(params=[*LANES, GRPC])
def transport(request: pytest.FixtureRequest) -> Iterator[NegotiatedTransport]:
    it = NegotiatedTransport(request.param, arena_bytes=ARENA_BYTES)
    yield it
    it.close()


def test_rows_travel_as_the_tables_say(served: ServedLanes, transport: NegotiatedTransport) -> None:
    for is_pushed in (False, True):
        if is_pushed:
            assert transport.call(served.address, PUSH, TIMEOUT_S) == Done(0)
        for _ in range(2):  # the second one brings room for the rows where there is an arena
            pulled = transport.call(served.address, PULL, TIMEOUT_S)
            assert isinstance(pulled, Pulled)
            assert [rows.tobytes() for rows in pulled.rows] == expected(is_pushed)
            assert [rows.dtype for rows in pulled.rows] == [np.float32, np.uint16, np.uint8]
            assert [rows.ctypes.data % 64 for rows in pulled.rows] == [0, 0, 0]
    if transport._choice == ARENA:
        assert transport._arena is not None
        lies_there = ARENA_BYTES - transport._arena.free_bytes()
        assert lies_there >= sum([rows.nbytes for rows in pulled.rows]), "the room was large enough"
        assert lies_there < sum([rows.nbytes for rows in pulled.rows]) + (1 << 16), "and no larger than need be"
        assert transport.times_arena_full == 0


def test_rows_that_travel_in_another_way_are_refused_and_the_connection_stays(served: ServedLanes, transport: NegotiatedTransport) -> None:
    as_float32 = Push(FENCE, 1, (TableRows("int8", IDS, GRADIENTS),))
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"must be uint8\[3000, 37\], since the table's wire is 'int8'"):
            transport.call(served.address, as_float32, TIMEOUT_S)
    assert transport.call(served.address, PUSH, TIMEOUT_S) == Done(0)

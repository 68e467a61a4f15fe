"""A scripted core behind real lanes, and who calls it."""

from collections.abc import Iterator

import pytest

from lane_calls import ARENA_BYTES
from ps_worker.transport.choice import ARENA, LANES
from ps_worker.transport.negotiated import NegotiatedTransport
from scripted_core import ScriptedCore
from served_lanes import ServedLanes, served_lanes


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

"""W4: how long a pull of 16 ids takes, from the big table."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from benchmarks.bed import DIM, TABLE, Bed, Ids, check_rows
from benchmarks.case import Case, Figure, Goal
from benchmarks.socket_peer import SocketPeer

IDS = 16


class Latency(Case):
    """Beside a ping-pong of the same bytes over a unix socket, from Python to a Python process. A round is 2,000 calls of each."""

    figures = (Figure("p50", "µs", Goal("at most", 2.5)), Figure("p99", "µs", Goal("at most", 5.0)))

    def __init__(self, bed: Bed, transport: str, peer: SocketPeer) -> None:
        self.name = f"W4 pull of 16, {transport}"
        self.bed = bed
        self.client = bed.table(transport)
        self.peer = peer

    def prepare(self) -> None:
        self.places = self.bed.rng.integers(0, self.bed.ids.size, (self.bed.sizes.latency_calls, IDS))
        self.ids: list[Ids] = list(self.bed.ids[self.places])

    def floor(self) -> tuple[float, ...]:
        def one(call: int) -> Callable[[], None]:
            self.peer.exchange()
            return self.peer.check

        return percentiles(len(self.ids), one)

    def ours(self) -> tuple[float, ...]:
        def one(call: int) -> Callable[[], None]:
            pulled = self.client.pull(TABLE, self.ids[call])
            return lambda: check_rows(pulled, self.bed.rows[self.places[call]])

        return percentiles(len(self.ids), one)

    def check(self) -> None:
        """Each answer was looked at between the calls: to keep 2,000 of them would make memory cold."""


def percentiles(calls: int, one: Callable[[int], Callable[[], None]]) -> tuple[float, ...]:
    """Return the percentiles of the microseconds of one(call) over all calls; what it returns checks its answer, between the calls."""
    nanoseconds: npt.NDArray[np.int64] = np.empty(calls, np.int64)
    for call in range(calls):
        begin_ns = time.perf_counter_ns()
        check = one(call)
        nanoseconds[call] = time.perf_counter_ns() - begin_ns
        check()
    p50, p99 = np.percentile(nanoseconds, [50, 99])
    return float(p50) / 1e3, float(p99) / 1e3


@contextmanager
def latency_case(bed: Bed, transport: str) -> Iterator[Case]:
    with SocketPeer("unix", 8 * IDS, 4 * DIM * IDS) as peer:
        yield Latency(bed, transport, peer)

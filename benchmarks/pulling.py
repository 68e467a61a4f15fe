"""W1: pull 100,000 uniform random resident ids of 62 bits from 4 M rows of 64 float32, through the public `client.pull`."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.bed import DIM, TABLE, Bed, check_rows
from benchmarks.case import Case, Figure, Goal
from benchmarks.harness import milliseconds
from benchmarks.socket_peer import SocketPeer

GOALS = {"arena": 0.60, "unix": 0.33, "tcp": 0.45, "grpc": 0.10}


class Pull(Case):
    """Beside `np.take` of the same rows from an array in this process."""

    def __init__(self, bed: Bed, transport: str) -> None:
        self.name = f"W1 pull, {transport}"
        self.figures = (Figure("a pull", "ms", Goal("at least", GOALS[transport])),)
        self.bed = bed
        self.client = bed.table(transport)
        self.out = np.zeros((bed.sizes.batch, DIM), np.float32)

    def prepare(self) -> None:
        self.places = self.bed.rng.integers(0, self.bed.ids.size, self.bed.sizes.batch)
        self.ids = self.bed.ids[self.places]

    def floor(self) -> tuple[float, ...]:
        return (milliseconds(lambda: np.take(self.bed.rows, self.places, axis=0, out=self.out, mode="clip")),)

    def ours(self) -> tuple[float, ...]:
        return (milliseconds(self._pull),)

    def _pull(self) -> None:
        self.pulled = self.client.pull(TABLE, self.ids)

    def check(self) -> None:
        check_rows(self.pulled, self.bed.rows[self.places])
        del self.pulled


class PullOverTcp(Pull):
    """Beside a raw transfer of the same bytes over a TCP connection to another process."""

    def __init__(self, bed: Bed, peer: SocketPeer) -> None:
        super().__init__(bed, "tcp")
        self._peer = peer

    def floor(self) -> tuple[float, ...]:
        return (milliseconds(self._peer.exchange),)

    def check(self) -> None:
        super().check()
        self._peer.check()


class PullOverGrpc(Pull):
    """Beside the same pull through the arena."""

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed, "grpc")
        self._beside = bed.client("arena")

    def floor(self) -> tuple[float, ...]:
        return (milliseconds(lambda: self._beside.pull(TABLE, self.ids)),)


@contextmanager
def pull_case(bed: Bed, transport: str) -> Iterator[Case]:
    match transport:
        case "tcp":
            with SocketPeer("tcp", 8 * bed.sizes.batch, 4 * DIM * bed.sizes.batch) as peer:
                yield PullOverTcp(bed, peer)
        case "grpc":
            yield PullOverGrpc(bed)
        case _:
            yield Pull(bed, transport)

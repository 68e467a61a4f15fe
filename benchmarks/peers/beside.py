"""A case of ours, with a peer where the floor is: the harness lets both work in turn."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.bed import Bed
from benchmarks.case import Case, Figure, Goal
from benchmarks.dense import Dense
from benchmarks.latency import latency_case
from benchmarks.peers.running import RunningPeer
from benchmarks.pulling import Pull
from benchmarks.pushing import Push

NO_SLOWER = Goal("at least", 1.0)  # the ratio is how many times faster we are


class BesidePeer(Case):
    """The peer draws ids and gradients of its own, as many and as random as ours."""

    def __init__(self, case: str, ours: Case, theirs: RunningPeer) -> None:
        self.name = case
        self.figures = tuple(Figure(figure.name, figure.unit, NO_SLOWER) for figure in ours.figures)
        self._ours = ours
        self._theirs = theirs

    def prepare(self) -> None:
        self._ours.prepare()
        if isinstance(self._ours, Push):
            self._ours.floor()  # its check compares the server with the slab of this process, which the floor keeps up to date
        self._theirs.ask("prepare", self.name)

    def floor(self) -> tuple[float, ...]:
        return self._theirs.ask("run", self.name)

    def ours(self) -> tuple[float, ...]:
        return self._ours.ours()

    def check(self) -> None:
        self._ours.check()
        self._theirs.ask("check", self.name)


@contextmanager
def beside(case: str, bed: Bed, transport: str, theirs: RunningPeer) -> Iterator[Case]:
    with our_case(case, bed, transport) as ours:
        yield BesidePeer(case, ours, theirs)


@contextmanager
def our_case(case: str, bed: Bed, transport: str) -> Iterator[Case]:
    match case:
        case "W1":
            yield Pull(bed, transport)
        case "W2":
            yield Push(bed, transport)
        case "W3":
            yield Dense(bed, transport)
        case _:
            with latency_case(bed, transport) as latency:
                yield latency

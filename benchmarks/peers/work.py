"""W1 to W4 on a Store, with what must come back: the same work as in pulling.py, pushing.py, dense.py and latency.py for ours."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from dataclasses import replace

import numpy as np

from benchmarks.bed import DIM, FILL_ROWS, Rows
from benchmarks.case import WrongAnswer
from benchmarks.dense import BLOCK, LEARNING_RATE
from benchmarks.harness import milliseconds
from benchmarks.latency import IDS, percentiles
from benchmarks.peers.store import DenseStore, Store
from benchmarks.sizes import FULL, QUICK, Sizes

RELATIVE, ABSOLUTE = 1e-4, 1e-5  # a peer may round in another order, and errors add up over the rounds; a lost update is off by 0.01


def peer_sizes(quick: bool) -> Sizes:
    """Return how much work a case is: ours, with fewer rounds, for there are many peers."""
    return QUICK if quick else replace(FULL, rounds=11, warm_ups=3, latency_calls=1_000)


class Mirror:
    """What the peer's table must hold.

    rows   float32[n, 64].     state  float32[n, 64], Adagrad's accumulators.
    """

    def __init__(self, sizes: Sizes, rng: np.random.Generator) -> None:
        self.rng = rng
        self.rows = rng.standard_normal((sizes.table_rows, DIM), dtype=np.float32)
        self.state = np.zeros((sizes.table_rows, DIM), np.float32)  # zeros_like would touch it all

    def fill(self, store: Store) -> None:
        """Make the table and assign every row."""
        store.create(len(self.rows))
        for begin in range(0, len(self.rows), FILL_ROWS):
            end = min(begin + FILL_ROWS, len(self.rows))
            store.assign(store.as_keys(np.arange(begin, end)), store.as_values(self.rows[begin:end]))


class Work(ABC):
    """One case. In each round `prepare`, `run` and `check` are called; `run` returns a cost for each figure."""

    def __init__(self, store: Store, mirror: Mirror, sizes: Sizes) -> None:
        self.store = store
        self.mirror = mirror
        self.sizes = sizes
        self.rng = mirror.rng

    @abstractmethod
    def prepare(self) -> None:
        """Choose what this round is about; not timed."""

    @abstractmethod
    def run(self) -> tuple[float, ...]:
        """Do the work; return milliseconds, or microseconds for W4."""

    @abstractmethod
    def check(self) -> None:
        """Raise WrongAnswer unless it was done; not timed."""


class PullWork(Work):
    def prepare(self) -> None:
        self.places = self.rng.integers(0, len(self.mirror.rows), self.sizes.batch)
        self.keys = self.store.as_keys(self.places)

    def run(self) -> tuple[float, ...]:
        return (milliseconds(self._pull),)

    def _pull(self) -> None:
        self.pulled = self.store.pull(self.keys)

    def check(self) -> None:
        check_close(self.store.as_rows(self.pulled), self.mirror.rows[self.places])
        del self.pulled


class PushWork(Work):
    def prepare(self) -> None:
        self.places = self.rng.permutation(len(self.mirror.rows))[: self.sizes.batch]
        if self.store.sorts_pushes:
            self.places.sort()
        self.gradients = self.rng.standard_normal((self.places.size, DIM), dtype=np.float32)
        self.keys, self.values = self.store.as_keys(self.places), self.store.as_values(self.gradients)

    def run(self) -> tuple[float, ...]:
        return (milliseconds(lambda: self.store.push(self.keys, self.values)),)

    def check(self) -> None:
        rows, state = self.mirror.rows[self.places], self.mirror.state[self.places]
        self.store.apply(rows, state, self.gradients)
        self.mirror.rows[self.places], self.mirror.state[self.places] = rows, state
        check_close(self.store.as_rows(self.store.pull(self.keys)), rows)


class DenseWork(Work):
    def __init__(self, store: Store, mirror: Mirror, sizes: Sizes) -> None:
        super().__init__(store, mirror, sizes)
        assert isinstance(store, DenseStore), "its notes say that it has W3"
        self.dense = store
        self.rows = self.rng.standard_normal((sizes.dense_rows, BLOCK), dtype=np.float32)
        store.create_dense(store.as_values(self.rows))

    def prepare(self) -> None:
        self.gradients = self.rng.standard_normal(self.rows.shape, dtype=np.float32)
        self.values = self.store.as_values(self.gradients)

    def run(self) -> tuple[float, ...]:
        return milliseconds(self._pull), milliseconds(lambda: self.dense.push_dense(self.values))

    def _pull(self) -> None:
        self.pulled = self.dense.pull_dense()

    def check(self) -> None:
        check_close(self.store.as_rows(self.pulled), self.rows)
        del self.pulled
        self.rows -= np.float32(LEARNING_RATE) * self.gradients
        check_close(self.store.as_rows(self.dense.pull_dense()), self.rows)


class LatencyWork(Work):
    def prepare(self) -> None:
        self.places = self.rng.integers(0, len(self.mirror.rows), (self.sizes.latency_calls, IDS))
        self.keys = [self.store.as_keys(places) for places in self.places]

    def run(self) -> tuple[float, ...]:
        return percentiles(len(self.keys), self._one)

    def _one(self, call: int) -> Callable[[], None]:
        pulled = self.store.pull(self.keys[call])
        return lambda: check_close(self.store.as_rows(pulled), self.mirror.rows[self.places[call]])

    def check(self) -> None:
        """Each answer was looked at between the calls, as in ours."""


WORKS: dict[str, type[Work]] = {"W1": PullWork, "W2": PushWork, "W3": DenseWork, "W4": LatencyWork}


def works(store: Store, mirror: Mirror, sizes: Sizes, wanted: Container[str]) -> dict[str, Work]:
    """Return these cases, ready."""
    return {name: make(store, mirror, sizes) for name, make in WORKS.items() if name in wanted}


def check_close(got: Rows, want: Rows) -> None:
    """Raise WrongAnswer unless two float32[n, d] are the same up to rounding."""
    if got.dtype != want.dtype or got.shape != want.shape:
        raise WrongAnswer(f"{got.dtype}{list(got.shape)} came back, but {want.dtype}{list(want.shape)} was due")
    far = (np.abs(got - want) > ABSOLUTE + RELATIVE * np.abs(want)).any(axis=1)
    if far.any():
        raise WrongAnswer(f"{int(far.sum())} of {len(want)} rows are not what they must be, the first at {int(far.argmax())}")

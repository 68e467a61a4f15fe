"""What a peer must be able to do."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from benchmarks.bed import ADAGRAD, DIM, Rows

Places = npt.NDArray[np.int64]


class Store(ABC):
    """A table float32[n, 64] whose ids are 0 to n - 1, in the peer's server process.

    What goes in and comes out has the peer's own form (a tensor, a list of bytes): `as_keys` and `as_values` make it, `as_rows` reads it,
    and neither is timed. Our own calls take and give numpy arrays and any 62-bit id, and all of that is timed.
    """

    sorts_pushes: ClassVar[bool] = False  # whether ids are sorted, untimed, before they are pushed

    def as_keys(self, places: Places) -> Any:
        """Return the peer's form of ids, int64[k]."""
        return places

    def as_values(self, values: Rows) -> Any:
        """Return the peer's form of float32[k, d]."""
        return values

    def as_rows(self, pulled: Any) -> Rows:
        """Return what was pulled as float32[k, d]."""
        rows: Rows = np.asarray(pulled)
        return rows

    @abstractmethod
    def create(self, num_rows: int) -> None:
        """Make the table; whoever measures assigns every row."""

    @abstractmethod
    def assign(self, keys: Any, rows: Any) -> None:
        """Set rows; their optimizer's state is zeros."""

    @abstractmethod
    def pull(self, keys: Any) -> Any:
        """Return the rows of these ids, which may repeat."""

    @abstractmethod
    def push(self, keys: Any, gradients: Any) -> None:
        """Apply gradients of distinct ids; return once the server has applied them."""

    def apply(self, rows: Rows, state: Rows, gradients: Rows) -> None:
        """Do in numpy what a push does on the server: change rows and state, float32[k, 64]."""
        adagrad(rows, state, gradients)


class DenseStore(Store):
    """A peer that has W3 in its notes."""

    @abstractmethod
    def create_dense(self, values: Any) -> None:
        """Make the dense array."""

    @abstractmethod
    def pull_dense(self) -> Any:
        """Return the dense array."""

    @abstractmethod
    def push_dense(self, gradients: Any) -> None:
        """Apply SGD with a learning rate of `benchmarks.dense.LEARNING_RATE`; return once that is done."""


def adagrad(rows: Rows, state: Rows, gradients: Rows) -> None:
    """Change rows and accumulators, float32[k, 64], as Adagrad does (Duchi et al., JMLR 12, 2011)."""
    assert rows.shape[1] == DIM
    state += gradients * gradients
    rows -= np.float32(ADAGRAD.lr) * gradients / (np.sqrt(state) + np.float32(ADAGRAD.eps))

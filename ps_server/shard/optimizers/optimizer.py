"""What a server-side optimizer is: some state columns beside each row, and one pass over the rows of a call."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ps_server.shard.slab import Slab

Slots = npt.NDArray[np.int32]
Rows = npt.NDArray[np.float32]
State = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StateColumn:
    """`words` 32-bit numbers beside each row, all `initial` when the row is made."""

    name: str
    words: int
    dtype: Literal["float32", "uint32"] = "float32"
    initial: float = 0.0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the gradients of one call come from.

    step        names the update in a table's life: the synchronous step, or `push_name` of a push applied on arrival; with `rank` it is
                what stochastic rounding draws from, so that a redone update has the same bits.
    rank        whose push it is; -1 for a fold, which is of many.
    staleness   how many other pushes the table took on this server since the rank pulled; 0 in synchronous mode.
    read        float32[m, dim], the rows as the rank pulled them, or None;  places  int32[n], which of them each gradient is of, -1: none.
    """

    step: int = 0
    rank: int = -1
    staleness: int = 0
    read: Rows | None = None
    places: Slots | None = None


class RowOptimizer(ABC):
    """Turns gradients into new rows.

    A record is the row's `dim` words, then the state columns in the order in which they are declared. All arithmetic is float32, and
    elementwise unless the class says otherwise, in the order that it writes down, so a row's bits depend on its own gradients alone.
    """

    kind: ClassVar[str]
    wants_staleness: bool = False  # whether it looks at `origin.staleness`
    wants_read_rows: bool = False  # whether it looks at `origin.read`

    def __init__(self, dim: int, parameters: dict[str, float]) -> None:
        """Make an optimizer for rows of `dim`. `parameters` are those of the table's spec: they set what a new row's state is."""
        self.dim = dim
        self.columns = self.state_columns(dim, parameters)

    @staticmethod
    @abstractmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        """Return the state columns of a row of `dim` words."""

    @abstractmethod
    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        """Apply gradients float32[n, dim], read-only, to the rows in `slots` int32[n], one after another.

        A slot that comes twice is updated twice. `parameters` are this step's hyperparameters; those of decorators may be among them. Rows
        are reached through `slab` and `slots` alone: the slab may be a copy of some rows.
        """

    @property
    def width(self) -> int:
        """Return the words of a record: the row and its state columns."""
        return self.dim + sum(column.words for column in self.columns)

    def initial_state(self) -> State:
        """Return the state columns of a new row, float32[width - dim]; columns of uint32 lie in it bit for bit."""
        parts = [np.full(column.words, column.initial, dtype=column.dtype).view(np.float32) for column in self.columns]
        return np.concatenate([np.empty(0, dtype=np.float32), *parts])

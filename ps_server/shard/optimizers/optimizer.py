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


class RowOptimizer(ABC):
    """Turns gradients into new rows.

    A record is the row's `dim` words, then the state columns in the order in which they are declared. All arithmetic is elementwise
    float32 in the order that the class writes down, so a row's bits depend on its own gradients alone.
    """

    kind: ClassVar[str]

    def __init__(self, dim: int, parameters: dict[str, float]) -> None:
        """Make an optimizer for rows of `dim`. `parameters` are those of the table's spec: they set what a new row's state is."""
        self.dim = dim
        self.columns = self.state_columns(dim, parameters)

    @staticmethod
    @abstractmethod
    def state_columns(dim: int, parameters: dict[str, float]) -> tuple[StateColumn, ...]:
        """Return the state columns of a row of `dim` words."""

    @abstractmethod
    def apply(self, slab: Slab, slots: Slots, gradients: Rows, parameters: dict[str, float]) -> None:
        """Apply gradients float32[n, dim], read-only, to the rows in `slots` int32[n], one after another.

        A slot that comes twice is updated twice. `parameters` are this step's hyperparameters.
        """

    @property
    def width(self) -> int:
        """Return the words of a record: the row and its state columns."""
        return self.dim + sum(column.words for column in self.columns)

    def initial_state(self) -> State:
        """Return the state columns of a new row, float32[width - dim]; columns of uint32 lie in it bit for bit."""
        parts = [np.full(column.words, column.initial, dtype=column.dtype).view(np.float32) for column in self.columns]
        return np.concatenate([np.empty(0, dtype=np.float32), *parts])

"""What a row initializer is: something that writes the initial values of ids."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ps_proto.values import TableSpec

Ids = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]
Slots = npt.NDArray[np.int32]


class RowInitializer(ABC):
    """Writes initial values: each a pure function of (seed, table name, id, column), so that any server computes it, in any order.

    kind        that of the setting in ps_proto.values that it is for.
    has_values  False where an id without a row has no value at all.
    """

    kind: ClassVar[str]
    has_values = True

    @abstractmethod
    def __init__(self, spec: TableSpec) -> None:
        """Make the initializer of the table `spec`, whose `initializer` is a setting of this kind."""

    @abstractmethod
    def fill(self, target: Rows, places: Slots, ids: Ids, dim: int) -> None:
        """Write the initial row of each of `ids` uint64[n] into the first `dim` columns of target[places[i]].

        target  float32[m, at least dim], written.     places  int32[n].
        """

"""The rows of a table in their slab: how one is made, read, set and updated, by the table's dtype and `max_norm`."""

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ps_proto.values import TableSpec
from ps_server.shard.bfloat16_records import set_drawn, set_nearest
from ps_server.shard.blocks import distinct_blocks, rows_per_block
from ps_server.shard.initializers import row_initializer
from ps_server.shard.optimizers import row_optimizer
from ps_server.shard.optimizers.optimizer import Origin
from ps_server.shard.record_layout import Bfloat16Layout, Float32Layout, RecordLayout
from ps_server.shard.records import Records, Rows, Slots, reset_state, scatter
from ps_server.shard.row_norms import NormLimit
from ps_server.shard.slab import Slab
from sharding.arrays import read_only
from sharding.bfloat16 import round_rows
from sharding.hashing import table_salt

Ids = npt.NDArray[np.uint64]

FLOAT32_SLACK = 2.0**-20  # more than a scaled row's norm can be off by rounding
BFLOAT16_SLACK = 2.0**-7 + 2.0**-20  # the step between two numbers of eight significant bits, beside that


class StoredRows(ABC):
    """Records by slot. Which slot is whose is the table's business; slots int32[n] are in use, ids uint64[n] read-only, beside them."""

    slack: float

    def __init__(self, spec: TableSpec, rows_max: int | None) -> None:
        self.optimizer = row_optimizer(spec.optimizer, spec.dim)
        self.initializer = row_initializer(spec)
        self.layout: RecordLayout = self._layout(spec.dim, self.optimizer.width - spec.dim)
        self._rows_max = rows_max
        self.slab = self.new_slab()
        self.dim = spec.dim
        self._initial_state = self.optimizer.initial_state()
        self._limit = None if spec.max_norm is None else NormLimit(spec.max_norm, spec.dim, self.slack)
        self._block_rows = rows_per_block(self.layout.width)

    def new_slab(self) -> Slab:
        """Return an empty slab for such rows."""
        return Slab(self.layout.stored_width, self._rows_max)

    @staticmethod
    @abstractmethod
    def _layout(dim: int, state_words: int) -> RecordLayout:
        """Return how the records lie."""

    def read(self, slots: Slots, out: Records) -> None:
        """Write the rows to `out` float32[n, dim], or the records to [n, width]; where a slot is -1, leave it."""
        self.layout.read(self.slab.records, slots, out)

    def reset_state(self, slots: Slots) -> None:
        """Give new rows the state that they start with."""
        if self._initial_state.size:
            reset_state(self.slab.records, slots, self.layout.row_words, self._initial_state)

    def fill(self, out: Rows, places: Slots, ids: Ids) -> None:
        """Write the initial row of each id to out[places] float32[m, dim], as it reads once it is made."""
        self.initializer.fill(out, places, ids, self.dim)
        if self._limit is not None:
            self._limit.apply(out, places)

    @abstractmethod
    def make(self, slots: Slots, ids: Ids) -> None:
        """Set new rows, each slot once, to their initial values."""

    @abstractmethod
    def set(self, slots: Slots, given: Records) -> None:
        """Set rows float32[n, dim], whose state stays, or whole records [n, width]; read-only. Of two for one slot the later stays."""

    @abstractmethod
    def update(self, slots: Slots, ids: Ids, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        """Apply gradients float32[n, dim], read-only, one after another."""


class Float32Rows(StoredRows):
    """Rows that are stored as they are seen: everything works on the slab itself."""

    slack = FLOAT32_SLACK

    @staticmethod
    def _layout(dim: int, state_words: int) -> RecordLayout:
        return Float32Layout(dim, state_words)

    def make(self, slots: Slots, ids: Ids) -> None:
        self.fill(self.slab.records, slots, ids)

    def set(self, slots: Slots, given: Records) -> None:
        if self._limit is not None:
            limited = given.copy()
            self._limit.apply_to_given(limited, np.arange(slots.size, dtype=np.int32))
            given = read_only(limited)
        scatter(self.slab.records, slots, given)

    def update(self, slots: Slots, ids: Ids, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        if self._limit is None:
            self.optimizer.apply(self.slab, slots, gradients, parameters, origin)
            return
        for part in distinct_blocks(slots, self._block_rows):
            self.optimizer.apply(self.slab, slots[part], gradients[part], parameters, _part_of(origin, part))
            self._limit.apply(self.slab.records, slots[part])


class Bfloat16Rows(StoredRows):
    """Rows of half the size. A block of them at a time is opened into float32 records, worked on there, and rounded on the way back.

    An update rounds stochastically: rounded to the nearest, a row would stay where it is for ever while its updates are below half of its
    last bit. What is set or made is rounded to the nearest.
    """

    slack = BFLOAT16_SLACK

    def __init__(self, spec: TableSpec, rows_max: int | None) -> None:
        super().__init__(spec, rows_max)
        self._seed, self._salt = np.uint64(spec.seed), table_salt(spec.name)
        self._opened = Slab(self.layout.width, self._block_rows)
        self._initial = self._opened.records.reshape(-1)[: self._block_rows * spec.dim].reshape(
            self._block_rows, spec.dim
        )  # the same memory
        self._places = np.arange(self._block_rows, dtype=np.int32)

    @staticmethod
    def _layout(dim: int, state_words: int) -> RecordLayout:
        return Bfloat16Layout(dim, state_words)

    def fill(self, out: Rows, places: Slots, ids: Ids) -> None:
        super().fill(out, places, ids)
        round_rows(out, places, self.dim)

    def make(self, slots: Slots, ids: Ids) -> None:
        for begin in range(0, slots.size, self._block_rows):
            part = slice(begin, min(begin + self._block_rows, slots.size))
            places = self._places[: part.stop - begin]
            super().fill(self._initial, places, ids[part])
            set_nearest(self.slab.records, slots[part], self.dim, read_only(self._initial[: places.size]))

    def set(self, slots: Slots, given: Records) -> None:
        if self._limit is not None:
            places = np.arange(slots.size, dtype=np.int32)
            limited = given.copy()
            round_rows(limited, places, self.dim)  # first, so that what the table once held is within the slack
            self._limit.apply_to_given(limited, places)
            given = read_only(limited)
        set_nearest(self.slab.records, slots, self.dim, given)

    def update(self, slots: Slots, ids: Ids, gradients: Rows, parameters: dict[str, float], origin: Origin) -> None:
        records, opened = self.slab.records, self._opened
        for part in distinct_blocks(slots, self._block_rows):
            places = self._places[: part.stop - part.start]
            block = opened.records[: places.size]
            self.layout.read(records, slots[part], block)
            self.optimizer.apply(opened, places, gradients[part], parameters, _part_of(origin, part))
            if self._limit is not None:
                self._limit.apply(opened.records, places)
            set_drawn(records, slots[part], ids[part], self.dim, block, self._seed, self._salt, origin.step, origin.rank)


def stored_rows(spec: TableSpec, rows_max: int | None) -> StoredRows:
    """Return room for the rows of a table."""
    return Bfloat16Rows(spec, rows_max) if spec.dtype == "bfloat16" else Float32Rows(spec, rows_max)


def _part_of(origin: Origin, part: slice) -> Origin:
    return origin if origin.places is None else replace(origin, places=origin.places[part])

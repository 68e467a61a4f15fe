"""Rows with what the servers' optimizer keeps beside them.

a record    [ row: dim words | state columns, in the order of their layout ]
Records     rows float32[n, dim], and state by name: {"m": float32[n, dim], "v": float32[n, dim], "t": uint32[n, 1]}

A record's words are float32; a column of uint32 lies in them bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps_proto.errors import InvalidRequest
from ps_proto.requests import ColumnLayout, Ids, Rows

State = Mapping[str, npt.NDArray[Any]]

DTYPES = ("float32", "uint32")


@dataclass(frozen=True, slots=True)
class Records:
    """ids uint64[n], each once; rows float32[n, dim]; state: each column by name, [n, words] of its own dtype, in the record's order."""

    ids: Ids
    rows: Rows
    state: State

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.rows.nbytes + sum([column.nbytes for column in self.state.values()])

    @classmethod
    def joined(cls, parts: Sequence["Records"]) -> "Records":
        """Return several parts of one table as one."""
        state = {name: np.concatenate([part.state[name] for part in parts]) for name in parts[0].state}
        return cls(np.concatenate([part.ids for part in parts]), np.concatenate([part.rows for part in parts]), state)


def unpack(ids: Ids, records: Rows, columns: Sequence[ColumnLayout]) -> Records:
    """Return the parts of records float32[n, width], each C-contiguous. A dtype that is none of ours raises InvalidRequest."""
    dim = records.shape[1] - sum([column.words for column in columns])
    rows, begin, state = np.ascontiguousarray(records[:, :dim]), dim, {}
    for column in columns:
        if column.dtype not in DTYPES:
            raise InvalidRequest(f"dtype of state column {column.name!r}", repr(column.dtype), f"one of {', '.join(DTYPES)}")
        state[column.name] = np.ascontiguousarray(records[:, begin : begin + column.words]).view(column.dtype)
        begin += column.words
    return Records(ids, rows, state)


def pack(rows: Rows, state: State) -> tuple[Rows, tuple[ColumnLayout, ...]]:
    """Return the records float32[n, width] and the layout of their state columns."""
    for name, column in state.items():
        if column.dtype.name not in DTYPES or column.ndim != 2 or len(column) != len(rows):
            got, want = f"{column.dtype}{list(column.shape)}", f"float32 or uint32[{len(rows)}, words]"
            raise InvalidRequest(f"state column {name!r}", got, want)
    words = [np.ascontiguousarray(column).view(np.float32) for column in state.values()]
    return np.concatenate([rows, *words], axis=1), layout_of(state)


def layout_of(state: State) -> tuple[ColumnLayout, ...]:
    """Return how these columns lie in a record."""
    return tuple([ColumnLayout(name, column.shape[1], column.dtype.name) for name, column in state.items()])

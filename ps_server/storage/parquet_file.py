"""A Parquet file with rows of a table. pyarrow makes it: an extra that only this needs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids


def check_parquet() -> None:
    """Raise InvalidRequest unless Parquet files can be written here."""
    try:
        import pyarrow.parquet  # noqa: F401  # here: only who wants such a file needs it
    except ImportError:
        raise InvalidRequest("format", "parquet, which needs pyarrow", "installed: pip install 'rowstead[parquet]'") from None


def encode_parquet(ids: Ids, rows: NDArray[np.float32], state: Mapping[str, NDArray[Any]]) -> memoryview:
    """Return the file's bytes: id uint64, row float[dim], and state_<column> of each column, lists of a fixed size.

    ids uint64[n]; rows float32[n, dim]; state float32 or uint32[n, words]. Nothing is compressed: such numbers gain nothing by it.
    """
    import pyarrow
    from pyarrow import parquet

    columns = {"id": pyarrow.array(ids), "row": _lists(rows), **{f"state_{name}": _lists(column) for name, column in state.items()}}
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(columns), sink, compression="none", use_dictionary=False)
    return memoryview(sink.getvalue())


def _lists(rows: NDArray[Any]) -> Any:
    """Return rows [n, words] as a list of a fixed size each, from where they lie."""
    import pyarrow

    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), rows.shape[1])

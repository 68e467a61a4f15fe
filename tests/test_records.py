"""Rows and state columns, in a record and apart."""

import numpy as np
import pytest

from ps_proto.errors import InvalidRequest
from ps_proto.requests import ColumnLayout
from ps_worker.records import Records, layout_of, pack, unpack

LAYOUT = (ColumnLayout("m", 2, "float32"), ColumnLayout("t", 1, "uint32"))
IDS = np.array([3, 2**64 - 1], np.uint64)
ROWS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
STATE = {"m": np.array([[5.0, np.inf], [7.0, 8.0]], np.float32), "t": np.array([[2**32 - 1], [0x7F800001]], np.uint32)}


def test_what_is_packed_is_unpacked_bit_for_bit() -> None:
    words, columns = pack(ROWS, STATE)
    assert (words.dtype.name, words.shape, columns) == ("float32", (2, 5), LAYOUT)
    assert words.view(np.uint32)[:, 4].tolist() == [2**32 - 1, 0x7F800001]  # NaNs as floats, and no bit is lost
    records = unpack(IDS, words, columns)
    assert records.rows.tolist() == ROWS.tolist()
    for name, column in STATE.items():
        assert records.state[name].tobytes() == column.tobytes()
        assert records.state[name].dtype == column.dtype
        assert records.state[name].flags.c_contiguous


def test_without_state_a_record_is_the_row() -> None:
    words, columns = pack(ROWS, {})
    assert (words.tolist(), columns) == (ROWS.tolist(), ())
    assert unpack(IDS, words, columns).state == {}


def test_parts_are_joined_in_order() -> None:
    one = Records(IDS[:1], ROWS[:1], {name: column[:1] for name, column in STATE.items()})
    other = Records(IDS[1:], ROWS[1:], {name: column[1:] for name, column in STATE.items()})
    joined = Records.joined([one, other])
    assert (joined.ids.tolist(), joined.rows.tolist()) == (IDS.tolist(), ROWS.tolist())
    assert layout_of(joined.state) == LAYOUT
    assert joined.nbytes == one.nbytes + other.nbytes == 2 * (8 + 20)


@pytest.mark.parametrize(
    "column", [np.zeros((3, 2), np.float32), np.zeros((2, 2)), np.zeros(2, np.float32)], ids=["count", "dtype", "shape"]
)
def test_a_column_that_fits_no_record_is_refused(column: np.ndarray) -> None:
    with pytest.raises(InvalidRequest, match="state column 'm'"):
        pack(ROWS, {"m": column})


def test_a_dtype_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="float16"):
        unpack(IDS, ROWS, (ColumnLayout("m", 1, "float16"),))

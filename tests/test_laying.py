"""Pushes in memory that is lent: laid as a frame has them, checked on the way, and refused before anything leaves."""

import numpy as np
import pytest
from numpy.typing import NDArray

from peers import ids_of, rows_of
from ps_proto.errors import InvalidRequest
from ps_proto.frames import filled
from ps_worker.laying import lends_nothing, rooms
from ps_worker.protocol.merged import Merged, lay
from sharding.arrays import empty_aligned


class Lender:
    """Lends memory, and keeps it to look at."""

    def __init__(self) -> None:
        self.lent: list[NDArray[np.uint8]] = []

    def __call__(self, nbytes: int) -> NDArray[np.uint8]:
        self.lent.append(empty_aligned((nbytes,), np.dtype(np.uint8)))
        return self.lent[-1]


def begin_of(array: NDArray[np.generic], memory: NDArray[np.uint8]) -> int:
    return int(array.ctypes.data - memory.ctypes.data)


def test_ids_and_rows_lie_one_behind_another_each_filled_up() -> None:
    lender = Lender()
    room = rooms([(3, 5), (0, 5), (9, 1)], lender)
    assert room is not None
    arrays = [array for pair in room for array in pair]
    assert [(array.shape, array.dtype.name) for array in arrays] == [
        ((3,), "uint64"),
        ((3, 5), "float32"),
        ((0,), "uint64"),
        ((0, 5), "float32"),
        ((9,), "uint64"),
        ((9, 1), "float32"),
    ]
    ends = np.cumsum([filled(array.nbytes) for array in arrays])
    assert [begin_of(array, lender.lent[0]) for array in arrays] == [0, *ends[:-1]]
    assert lender.lent[0].nbytes == ends[-1]


def test_where_nothing_is_lent_there_is_no_room_and_rows_stay_where_they_are() -> None:
    assert rooms([(3, 5)], lends_nothing) is None
    ids, rows = ids_of(1, 2), rows_of(1.0, 2.0)
    (item,) = lay([Merged.of("user", ids, rows, repeats=True)], lends_nothing)
    assert item.rows is rows


def test_what_is_laid_is_a_copy_with_repeats_summed() -> None:
    lender, ids, rows = Lender(), ids_of(7, 2, 7), rows_of(1.0, 5.0, 2.0)
    first, second = lay([Merged.of(name, ids, rows, repeats=True) for name in ("user", "item")], lender)
    ids[:], rows[:] = 0, 0.0
    assert [item.wanted.ids.tolist() for item in (first, second)] == [[7, 2]] * 2
    assert [item.rows.tolist() for item in (first, second)] == [[[3.0], [5.0]]] * 2
    assert begin_of(second.rows, lender.lent[0]) == 192


@pytest.mark.parametrize("lend", [lends_nothing, Lender()], ids=["where it is", "laid"])
@pytest.mark.parametrize(("ids", "problem"), [((7, 2), "not finite (inf or nan)"), ((7, 7), "once repeats are summed")])
def test_what_is_not_finite_is_refused_by_the_name_of_its_table(lend: Lender, ids: tuple[int, int], problem: str) -> None:
    fine = Merged.of("user", ids_of(1), rows_of(1.0), repeats=True)
    with pytest.raises(InvalidRequest) as caught:
        lay([fine, Merged.of("item", ids_of(*ids), rows_of(1.0, np.nan), repeats=True)], lend)
    assert caught.value.field == "rows of table 'item'"
    assert problem in caught.value.got

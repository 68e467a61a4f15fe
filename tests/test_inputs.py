"""What a user hands in: what is taken, what becomes of it, and what is refused with which words."""

from typing import Any

import numpy as np
import pytest
import torch

from ps_proto.errors import InvalidRequest
from ps_worker.inputs import as_ids, as_rows

MAX = 2**64 - 1


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        (np.array([0, 2**63, MAX], np.uint64), [0, 2**63, MAX]),
        (np.array([-1, -(2**63), 5], np.int64), [MAX, 2**63, 5]),
        (np.array([-1, 5], np.int8), [MAX, 5]),  # by value, then bit for bit
        (np.array([200], np.uint8), [200]),
        (np.array([7, MAX], ">u8"), [7, MAX]),
        (np.array([7, -1], ">i4"), [7, MAX]),
        (np.arange(6, dtype=np.uint64)[::-2], [5, 3, 1]),
        ([3, 0, 3], [3, 0, 3]),
        ((3, -1), [3, MAX]),
        ([0, MAX], [0, MAX]),  # float64 to numpy
        ([-1, 2**63], [MAX, 2**63]),  # likewise
        ([2**53 + 1, 2**63], [2**53 + 1, 2**63]),
        ([np.uint64(MAX), np.int64(-2)], [MAX, MAX - 1]),
        ([], []),
        ((), []),
        (np.empty(0, np.int64), []),
        (torch.tensor([4, -1]), [4, MAX]),
    ],
    ids=repr,
)
def test_ids_are_taken(given: Any, ids: list[int]) -> None:
    taken = as_ids("ids", given)
    assert (taken.dtype.name, taken.ndim, taken.flags.c_contiguous) == ("uint64", 1, True)
    assert taken.tolist() == ids


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (np.array([1.0]), "float64[1]"),
        ([1.0], "float64[1]"),
        ([1, 2.0], "float64[2]"),
        (np.array([True]), "bool[1]"),
        ([True, False], "bool[2]"),
        (["1"], "<U1[1]"),
        ([None], "object[1]"),
        (None, "object[]"),
        (7, "int64[]"),
        ([[1], [2]], "int64[2, 1]"),
        ([[]], "float64[1, 0]"),
        ([[1], [2, 3]], "list"),
        ([2**64], "a list with 18446744073709551616"),
        ([-(2**63) - 1], "a list with -9223372036854775809"),
        (np.array([], np.float64), "float64[0]"),
        (np.zeros((2, 2), np.int64), "int64[2, 2]"),
    ],
    ids=repr,
)
def test_other_ids_are_refused_with_what_they_are(given: Any, got: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        as_ids("ids of table 'user'", given)
    assert (raised.value.field, raised.value.got) == ("ids of table 'user'", got)


def test_ids_in_order_are_not_copied() -> None:
    for ids in (np.arange(5, dtype=np.uint64), np.arange(5, dtype=np.int64)):
        assert np.shares_memory(as_ids("ids", ids), ids)


@pytest.mark.parametrize(
    "given",
    [
        np.array([[1, 2], [3, 4], [5, 6]], np.float32),
        np.array([[1, 3, 5], [2, 4, 6]], np.float32).T,
        [[1, 2], [3, 4], [5, 6]],
        ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0)),
        torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_rows_are_taken(given: Any) -> None:
    rows = as_rows("rows", given, 3, 2)
    assert (rows.dtype.name, rows.flags.c_contiguous) == ("float32", True)
    assert rows.tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (np.ones((3, 2)), "float64[3, 2]"),
        (np.ones((3, 2), np.float16), "float16[3, 2]"),
        (np.ones((3, 2), np.int64), "int64[3, 2]"),
        (np.ones((3, 2), ">f4"), ">f4[3, 2]"),
        (np.ones((2, 3), np.float32), "float32[2, 3]"),
        (np.ones(6, np.float32), "float32[6]"),
        (np.ones((3, 2, 1), np.float32), "float32[3, 2, 1]"),
        ([[1, 2], [3, 4]], "float32[2, 2]"),
        ([[1, 2], [3]], "list"),
        ([["a", "b"]], "list"),
        (None, "object[]"),
        (torch.ones((3, 2), requires_grad=True), "Tensor"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_other_rows_are_refused_with_what_they_are(given: Any, got: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        as_rows("rows of table 'user'", given, 3, 2)
    assert (raised.value.field, raised.value.got) == ("rows of table 'user'", got)
    assert raised.value.want.startswith("float32[3, 2]")

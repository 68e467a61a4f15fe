"""What a user hands in, checked and made C-contiguous: each mistake is an InvalidRequest that names the field."""

from typing import Any

import numpy as np

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids, Rows


def as_ids(field: str, given: Any) -> Ids:
    """Return uint64[n]: from int64 bit for bit, from narrower integers by value, from a list of ints from -2**63 to 2**64 - 1."""
    if isinstance(given, list | tuple) and all([isinstance(id, int | np.integer) and not isinstance(id, bool) for id in given]):
        return _from_list(field, [int(id) for id in given])
    try:
        ids = np.asarray(given)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidRequest(field, type(given).__name__, f"uint64[n] or int64[n] ({error})") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InvalidRequest(field, f"{ids.dtype}{list(ids.shape)}", "uint64[n] or int64[n]")
    if ids.dtype.kind == "i":
        return np.ascontiguousarray(ids, np.int64).view(np.uint64)
    return np.ascontiguousarray(ids, np.uint64)


def _from_list(field: str, given: list[int]) -> Ids:
    """Go by Python's numbers: numpy makes floats of a list that has both small ones and some from 2**63 on."""
    outside = [id for id in given if not -(2**63) <= id < 2**64]
    if outside:
        raise InvalidRequest(field, f"a list with {outside[0]}", "of ids from -2**63 to 2**64 - 1")
    return np.array([id % 2**64 for id in given], np.uint64)


def as_rows(field: str, given: Any, rows_count: int, dim: int) -> Rows:
    """Return float32[rows_count, dim]; a list is converted, an array of another dtype is refused: a silent cast would hide a mistake."""
    try:
        rows = np.asarray(given, np.float32) if isinstance(given, list | tuple) else np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a torch tensor that requires grad
        raise InvalidRequest(field, type(given).__name__, f"float32[{rows_count}, {dim}] ({error})") from None
    if rows.dtype != np.float32 or rows.shape != (rows_count, dim):
        raise InvalidRequest(field, f"{rows.dtype}{list(rows.shape)}", f"float32[{rows_count}, {dim}]")
    return np.ascontiguousarray(rows)

"""What a user hands in, checked and made C-contiguous: each mistake is an InvalidRequest that names the field."""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids, Rows
from ps_proto.values import TableSpec


def as_whole(field: str, given: Any) -> int | None:
    """Return a whole number from 0 to 2**31 - 1, numpy's too; None stays None."""
    if given is None:
        return None
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if isinstance(given, bool) or not 0 <= number < 2**31:
        raise InvalidRequest(field, repr(given), f"a whole number from 0 to {2**31 - 1}")
    return number


def check_table(table: object) -> str:
    """Return the name of a table."""
    if not isinstance(table, str):
        raise InvalidRequest("table", repr(table), "a table's name, or a dict by name")
    return table


def by_table(table: str | Mapping[str, Any], given: Any) -> Mapping[str, Any]:
    """Return what is given by table: `table` itself where it is a dict, else a dict of the one."""
    return table if isinstance(table, Mapping) else {check_table(table): given}


def ids_by_table(given: Mapping[str, Any]) -> list[tuple[str, Ids]]:
    """Return (table, ids uint64[n]) for each table."""
    return [(table, as_ids(f"ids of table {table!r}", ids)) for table, ids in given.items()]


def rows_by_table(given: Mapping[str, Any], specs: Mapping[str, TableSpec]) -> list[tuple[str, Ids, Rows]]:
    """Return (table, ids uint64[n], rows float32[n, dim]) for each pair (ids, rows); `specs`: of these tables."""
    checked = []
    for table, pair in given.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidRequest(f"what is pushed to table {table!r}", type(pair).__name__, "a pair (ids, rows)")
        checked.append((table, *as_pair(specs[table], *pair)))
    return checked


def as_pair(spec: TableSpec, ids: Any, rows: Any) -> tuple[Ids, Rows]:
    """Return ids uint64[n] and rows float32[n, dim] for a table."""
    checked = as_ids(f"ids of table {spec.name!r}", ids)
    return checked, as_rows(f"rows of table {spec.name!r}", rows, checked.size, spec.dim)


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

"""Which optimizer has which parameters and which tables, from what a user gave as `dense` and `sparse`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ps_proto.errors import InvalidRequest
from ps_proto.values import Optimizer

OTHERS = "*"  # in a mapping from table to optimizer: all tables that it does not name

Dense = Optimizer | Sequence[tuple[Iterable[nn.Parameter], Optimizer]] | None
Sparse = Optimizer | Mapping[str, Optimizer]
Named = Sequence[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class DensePart:
    """Parameters that are one dense table, in the model's order."""

    table: str
    optimizer: Optimizer
    parameters: Named


def dense_parts(dense: Dense, model: Named, table: str) -> list[DensePart]:
    """Return the dense tables: `table` for the first, then `table`.1, `table`.2 and so on; a pair without parameters to train has none.

    model  the model's parameters, by name. Those that want no gradient are left out. Raises InvalidRequest for one that no pair has, that
           two have or that is not the model's.
    """
    trained = [(name, parameter) for name, parameter in model if parameter.requires_grad]
    if dense is None:
        return []
    if isinstance(dense, Optimizer):
        return [DensePart(table, dense, trained)] if trained else []
    if not isinstance(dense, Sequence) or isinstance(dense, str):
        raise InvalidRequest("dense", _short(dense), "a server-side optimizer such as ps.Adam(lr=1e-3), a list of (params, it), or None")
    names = {id(parameter): name for name, parameter in model}
    owner: dict[int, int] = {}
    optimizers: list[Optimizer] = []
    for number, pair in enumerate(dense):
        parameters, optimizer = _pair(f"dense[{number}]", pair)
        optimizers.append(optimizer)
        for parameter in parameters:
            if id(parameter) not in names:
                got = f"a parameter of shape {list(parameter.shape)} that is not the model's"
                raise InvalidRequest(f"dense[{number}]", got, "parameters of the model")
            if id(parameter) in owner:
                got = f"parameter {names[id(parameter)]!r}, which dense[{owner[id(parameter)]}] has too"
                raise InvalidRequest(f"dense[{number}]", got, "each parameter once")
            owner[id(parameter)] = number
    missing = [name for name, parameter in trained if id(parameter) not in owner]
    if missing:
        raise InvalidRequest("dense", f"a list without parameter {missing[0]!r}", "one that has each parameter that wants a gradient")
    parts = []
    for number, optimizer in enumerate(optimizers):
        its = [(name, parameter) for name, parameter in trained if owner[id(parameter)] == number]
        if its:
            parts.append(DensePart(f"{table}.{number}" if number else table, optimizer, its))
    return parts


def sparse_optimizers(sparse: Sparse, tables: Iterable[str]) -> dict[str, Optimizer]:
    """Return each table's optimizer; raise InvalidRequest where a mapping lacks a table, or names one that the model does not have."""
    tables = list(tables)
    if isinstance(sparse, Mapping):
        for name, optimizer in sparse.items():
            _check_optimizer(f"sparse[{name!r}]", optimizer)
        unknown = [name for name in sparse if name != OTHERS and name not in tables]
        if unknown:
            raise InvalidRequest("sparse", f"a mapping with {unknown[0]!r}", f"one of the model's tables, {tables}; {OTHERS!r}: all others")
        missing = [name for name in tables if name not in sparse and OTHERS not in sparse]
        if missing:
            raise InvalidRequest("sparse", f"a mapping without table {missing[0]!r}", f"one with all of {tables}, or with {OTHERS!r}")
        return {name: sparse[name] if name in sparse else sparse[OTHERS] for name in tables}
    _check_optimizer("sparse", sparse)
    return dict.fromkeys(tables, sparse)


def _pair(field: str, pair: Any) -> tuple[list[nn.Parameter], Optimizer]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidRequest(field, _short(pair), "a pair (params, optimizer), such as (model.top.parameters(), ps.Adam())")
    given, optimizer = pair
    _check_optimizer(f"the optimizer of {field}", optimizer)
    if not isinstance(given, Iterable):
        raise InvalidRequest(f"the params of {field}", _short(given), "parameters of the model, such as model.top.parameters()")
    parameters: list[Any] = [given] if isinstance(given, Tensor) else list(given)
    wrong = [item for item in parameters if not isinstance(item, Tensor)]
    if wrong:
        raise InvalidRequest(f"the params of {field}", f"with a {type(wrong[0]).__name__}", "parameters alone, as .parameters() has them")
    return parameters, optimizer


def _check_optimizer(field: str, given: object) -> None:
    if not isinstance(given, Optimizer):
        raise InvalidRequest(field, _short(given), "a server-side optimizer such as ps.Adam(lr=1e-3)")


def _short(given: object) -> str:
    """Return what an error says of a value; a list of parameters would fill pages."""
    said = repr(given)
    return said if len(said) <= 100 else f"a {type(given).__name__}"

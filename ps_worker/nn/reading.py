"""How a module of ours gets its rows: ids once each, one pull for all its tables, or what `ps.prefetch` has asked for already."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids, Rows
from ps_worker.nn.compiling import not_compiled
from ps_worker.nn.state import RowsElsewhere
from ps_worker.nn.table import RowTable
from ps_worker.profiling.stopwatch import PLACE, PLAN, span
from sharding.partition import Indexes, deduplicate

if TYPE_CHECKING:
    from ps_worker.optim.dense import DenseBlocks


Versions = tuple[int, ...]


def ids_of(given: Tensor, what: str) -> Ids:
    """Return a tensor of ids, of any shape, as uint64[n]; int64 is taken bit for bit."""
    if not isinstance(given, Tensor) or given.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint64):
        got = f"{given.dtype}{list(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise InvalidRequest(what, got, "a tensor of int64 or uint64 ids")
    flat = given.detach().cpu().reshape(-1).numpy()
    return np.ascontiguousarray(flat) if flat.dtype == np.uint64 else np.ascontiguousarray(flat, np.int64).view(np.uint64)


@dataclass(frozen=True)
class Lookup:
    """What a forward needs of one table. `ids` uint64[unique]; `inverse` int64[n]: which of them each id of the input is."""

    table: RowTable
    ids: Ids
    inverse: Indexes

    @classmethod
    def of(cls, table: RowTable, ids: Ids) -> "Lookup":
        return cls(table, *deduplicate(ids))


@dataclass(frozen=True)
class Plan:
    """A forward, up to its rows: the lookups, and whatever else the module needs to go on (`rest`)."""

    lookups: Sequence[Lookup]
    rest: Any = None

    def wanted(self) -> dict[str, Ids]:
        """Return what to pull, by table."""
        return {lookup.table.name: lookup.ids for lookup in self.lookups}


class RowsToCome(Protocol):
    """Rows that were asked for, such as the handle of a pull of several tables."""

    def result(self) -> dict[str, Rows]:
        """Wait for the rows and return them by table, or raise the error that the pull ended in."""
        ...


@dataclass(frozen=True)
class Ahead:
    """A plan whose rows are on their way. `inputs`: what it was made for; `versions`: theirs then, None: nobody changes them."""

    inputs: tuple[Any, ...]
    plan: Plan
    rows: RowsToCome
    versions: Versions | None = None

    def fits(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether a forward of `inputs` may use it: they are what it was made for, and were not changed since in their place."""
        return (self.versions is None or versions_of(self.inputs) == self.versions) and _same(self.inputs, inputs)


class RowModule(RowsElsewhere):
    """A module whose weights are rows of tables. A subclass plans its forward and finishes it from the rows."""

    _place: Tensor

    def __init__(self, tables: Sequence[RowTable]) -> None:
        super().__init__()
        self._tables = {table.name: table for table in tables}
        self._ahead: list[Ahead] = []
        # Set by a ServerOptimizer: what ps.prefetch fetches along, and whether the dense parameters are another optimizer's.
        self.optimizer_dense: tuple[DenseBlocks, ...] = ()
        self.is_hybrid = False
        self.is_frozen = False
        # Empty: it says where rows go and in which dtype, since .to() and .half() move it.
        self.register_buffer("_place", torch.empty(0), persistent=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a deep copy takes over: it reads the same rows, but belongs to no optimizer."""
        return {**self.__dict__, "_ahead": [], "optimizer_dense": (), "is_hybrid": False}

    @not_compiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward outside of torch.compile's graphs: no shape of what comes out depends on how many ids are unique."""
        return super().__call__(*args, **kwargs)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """With False, freeze the rows as far as this module reads them."""
        self.is_frozen = not requires_grad
        return super().requires_grad_(requires_grad)

    @property
    def place(self) -> Tensor:
        """An empty tensor where rows go, in the dtype that they get."""
        return self._place

    @property
    def tables(self) -> dict[str, RowTable]:
        """The tables by name."""
        return dict(self._tables)

    def share(self, tables: dict[str, RowTable]) -> None:
        """Use these tables in place of one's own of the same names."""
        self._tables = {name: tables[name] for name in self._tables}

    def plan(self, *inputs: Any) -> Plan:
        """Return what a forward of these inputs reads; changes nothing: `ps.prefetch` may call it beside a forward, in another thread."""
        raise TypeError(f"{type(self).__name__} says nowhere what its forward reads")

    def read(self, *inputs: Any) -> tuple[Plan, list[Tensor]]:
        """Return the plan of a forward and the rows, [unique, dim], for each of its lookups, whose gradients are the table's."""
        ahead = self._take_ahead(inputs)
        if ahead is not None:
            plan, rows = ahead.plan, ahead.rows.result()
        else:
            with span(PLAN):
                plan = self.plan(*inputs)
            asked = plan.wanted()
            rows = next(iter(self._tables.values())).client.pull(asked) if any(ids.size for ids in asked.values()) else {}
        none = {lookup.table.name: np.empty((0, lookup.table.dim), np.float32) for lookup in plan.lookups if lookup.table.name not in rows}
        rows = {**rows, **none}
        with span(PLACE):
            return plan, [lookup.table.leaf(lookup.ids, rows[lookup.table.name], self._place, self.is_frozen) for lookup in plan.lookups]

    def expect(self, ahead: Ahead) -> None:
        """Use these rows in the forward of those inputs."""
        self._ahead.append(ahead)

    def forget_ahead(self) -> None:
        """Drop what was asked for ahead and not used."""
        self._ahead.clear()

    def _take_ahead(self, inputs: tuple[Any, ...]) -> Ahead | None:
        for position, ahead in enumerate(self._ahead):
            if ahead.fits(inputs):
                return self._ahead.pop(position)
        return None


def versions_of(given: Any) -> Versions:
    """Return how often each tensor among a forward's inputs was changed in its place."""
    if isinstance(given, Tensor):
        return (0 if given.is_inference() else given._version,)
    if isinstance(given, dict | tuple | list):
        return tuple([version for item in (given.values() if isinstance(given, dict) else given) for version in versions_of(item)])
    return ()


def _is_one_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape and dtype are the same view of the same memory: so no GPU has to be waited for."""
    return one.device == other.device and one.data_ptr() == other.data_ptr() and one.stride() == other.stride()


def _same(one: Any, other: Any) -> bool:
    """Return whether two inputs are the same, by identity where that settles it."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return _is_one_memory(one, other) or torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return False

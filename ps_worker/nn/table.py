"""A table as a model uses it: what it is, who reads it, and the row leaves of the step at work."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids, Rows
from ps_proto.values import Initializer, Mode, Normal, Optimizer, TableSpec
from ps_worker.client import Client
from ps_worker.session import current_session


@dataclass(eq=False)
class RowTable:
    """The table `name` in this process. Modules with one name share one, once a ServerOptimizer has bound the model.

    leaves, ids   the step's row leaves, float32[unique, dim], and the ids of each; from forward to `zero_grad()`.
    pushed        how many of them, the first ones, are on the servers.
    is_trained    whether a ServerOptimizer pushes the leaves; otherwise none are kept.
    """

    name: str
    dim: int
    initializer: Initializer = field(default_factory=Normal)
    seed: int = 0
    mode: Mode | None = None
    leaves: list[Tensor] = field(default_factory=list)
    ids: list[Ids] = field(default_factory=list)
    pushed: int = 0
    is_trained: bool = False
    _client: weakref.ref[Client] | None = None

    def __post_init__(self) -> None:
        self.spec()  # raises InvalidRequest for what no table can be

    def __deepcopy__(self, memo: dict[int, object]) -> "RowTable":
        """Return a table that reads the same rows and that nobody trains."""
        return RowTable(self.name, self.dim, self.initializer, self.seed, self.mode, _client=self._client)

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            f"A pickle of table {self.name!r}",
            "asked for",
            "a state_dict() for the dense weights, client.export(name) for the rows: they live on servers",
        )

    def spec(self, optimizer: Optimizer | None = None) -> TableSpec:
        """Return the table's spec, with an optimizer where one is given."""
        spec = TableSpec(self.name, self.dim, initializer=self.initializer, seed=self.seed, mode=self.mode)
        return spec if optimizer is None else TableSpec(**{**vars(spec), "optimizer": optimizer})

    @property
    def client(self) -> Client:
        """The client that a ServerOptimizer bound, else the session's."""
        bound = self._client() if self._client is not None else None
        return bound if bound is not None else current_session().client

    def bind(self, client: Client) -> None:
        """Read and push through this client from now on."""
        self._client = weakref.ref(client)
        self.is_trained = True

    def check_same(self, other: "RowTable") -> None:
        """Raise InvalidRequest where another module of this name wants another table."""
        for name in ("dim", "initializer", "seed", "mode"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InvalidRequest(f"{name} of table {self.name!r}", str(theirs), f"{mine}, as in another module of that name")

    def leaf(self, ids: Ids, rows: Rows, place: Tensor, is_frozen: bool = False) -> Tensor:
        """Return the rows as a leaf where `place` lies, in its dtype; with gradients on, it is one of the step's."""
        leaf = moved(rows, place)
        if torch.is_grad_enabled() and not is_frozen:
            leaf.requires_grad_()
            if self.is_trained:
                self._keep(ids, leaf)
                # A zero_grad() between forward and backward is usual: a leaf that backward reaches after it is one of the step's again.
                leaf.register_post_accumulate_grad_hook(partial(self._keep, ids))  # type: ignore[no-untyped-call]
        return leaf

    def _keep(self, ids: Ids, leaf: Tensor) -> None:
        if not any(known is leaf for known in self.leaves):
            self.leaves.append(leaf)
            self.ids.append(ids)

    def gradient(self) -> tuple[Ids, Rows] | None:
        """Return the ids and gradients, float32[n, dim], of the step's leaves, None without any; ids of several forwards repeat.

        Raises InvalidRequest where some were pushed before, so that none counts twice.
        """
        if any(leaf.grad is not None for leaf in self.leaves[: self.pushed]):
            want = "called after each step() on the optimizer: model.zero_grad() does not reach the rows, which live on servers"
            raise InvalidRequest("zero_grad()", "not called since the last step()", want)
        reached = [(ids, leaf.grad) for ids, leaf in zip(self.ids, self.leaves, strict=True) if leaf.grad is not None]
        if not reached:
            return None
        rows = [gradient.detach().to("cpu", torch.float32).numpy() for _, gradient in reached]
        return _joined([ids for ids, _ in reached]), _joined(rows)

    def mark_pushed(self) -> None:
        """Note that what `gradient` returned is on the servers."""
        self.pushed = len(self.leaves)

    def clear(self) -> None:
        """Drop the step's leaves."""
        self.leaves.clear()
        self.ids.clear()
        self.pushed = 0


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def moved(rows: Rows, place: Tensor) -> Tensor:
    """Return the rows on `place`'s device, in its dtype; a copy to a GPU goes through pinned memory, beside what computes there."""
    tensor = torch.from_numpy(rows)
    if place.device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device=place.device, dtype=place.dtype, non_blocking=True)

"""A table as a model uses it: what it is, who reads it, and its rows as leaves of autograd's graph."""

import weakref
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids, Rows
from ps_proto.values import Initializer, Mode, Normal, Optimizer, TableSpec
from ps_worker.client import Client
from ps_worker.nn.leaves import Leaves
from ps_worker.session import current_session


@dataclass(eq=False)
class RowTable:
    """The table `name` in this process. Modules with one name share one, once a ServerOptimizer has bound the model.

    leaves        the step's row leaves, with the ids of each.
    is_trained    whether a ServerOptimizer pushes the leaves; otherwise none are kept.
    """

    name: str
    dim: int
    initializer: Initializer = field(default_factory=Normal)
    seed: int = 0
    mode: Mode | None = None
    dtype: str = "float32"
    max_norm: float | None = None
    wire: str = "float32"
    leaves: Leaves = field(default_factory=Leaves)
    is_trained: bool = False
    _client: weakref.ref[Client] | None = None

    def __post_init__(self) -> None:
        self.spec()  # raises InvalidRequest for what no table can be

    def __deepcopy__(self, memo: dict[int, object]) -> "RowTable":
        """Return a table that reads the same rows and that nobody trains."""
        return RowTable(
            self.name, self.dim, self.initializer, self.seed, self.mode, self.dtype, self.max_norm, self.wire, _client=self._client
        )

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            f"A pickle of table {self.name!r}",
            "asked for",
            "a state_dict() for the dense weights, client.export(name) for the rows: they live on servers",
        )

    def spec(self, optimizer: Optimizer | None = None) -> TableSpec:
        """Return the table's spec, with an optimizer where one is given."""
        spec = TableSpec(
            self.name,
            self.dim,
            initializer=self.initializer,
            seed=self.seed,
            mode=self.mode,
            dtype=self.dtype,
            max_norm=self.max_norm,
            wire=self.wire,
        )
        return spec if optimizer is None else spec.with_optimizer(optimizer)

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
        for name in ("dim", "initializer", "seed", "mode", "dtype", "max_norm", "wire"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InvalidRequest(f"{name} of table {self.name!r}", str(theirs), f"{mine}, as in another module of that name")

    def leaf(self, ids: Ids, rows: Rows, place: Tensor, is_frozen: bool = False) -> Tensor:
        """Return the rows where `place` lies, in its dtype: a leaf, or cast from one; with gradients on, one of the step's.

        A leaf is at least float32, so that what a GradScaler has scaled up is scaled down, and summed, with nothing lost.
        """
        if is_frozen or not torch.is_grad_enabled():
            return moved(rows, place)
        leaf = moved(rows, place.new_empty(0, dtype=torch.promote_types(place.dtype, torch.float32)))
        leaf.requires_grad_()
        if self.is_trained:
            self.leaves.watch(ids, leaf)
        return leaf.to(place.dtype)


def moved(rows: Rows, place: Tensor) -> Tensor:
    """Return the rows on `place`'s device, in its dtype; a copy to a GPU goes through pinned memory, beside what computes there."""
    tensor = torch.from_numpy(rows)
    if place.device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device=place.device, dtype=place.dtype, non_blocking=True)

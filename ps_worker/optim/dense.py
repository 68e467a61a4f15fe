"""A model's dense parameters as one table: flattened, cut into blocks; a block is a row, its number the id."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.nn.parameter import is_lazy

from ps_proto.errors import InvalidRequest, TableMismatch
from ps_proto.requests import Ids, Rows
from ps_proto.values import Assigned, Mode, Optimizer, TableSpec
from ps_worker.client import Client
from ps_worker.nn.reading import RowsToCome
from ps_worker.nn.table import moved

BLOCK = 512  # floats: 2 KiB, so that a model of a few thousand numbers is spread over several servers too


class DenseBlocks:
    """The dense parameters of a model and the table that holds them.

    Parameters are laid one after another in the order of `named_parameters()`; the last block is filled up with zeros, which no
    gradient moves.
    """

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], name: str, mode: Mode | None) -> None:
        for parameter_name, parameter in parameters:
            if not parameter.dtype.is_floating_point:
                raise InvalidRequest(f"dtype of parameter {parameter_name!r}", str(parameter.dtype), "a floating-point one")
            if is_lazy(parameter):
                raise InvalidRequest(f"parameter {parameter_name!r}", "without a shape", "given its shape before the optimizer is made")
        self.name = name
        self.parameters = [parameter for _, parameter in parameters]
        self._mode = mode
        self._layout = ";".join(f"{parameter_name}{list(parameter.shape)}" for parameter_name, parameter in parameters)
        self._sizes = [parameter.numel() for parameter in self.parameters]
        self._blocks_count = -(-sum(self._sizes) // BLOCK)
        self.ids: Ids = np.arange(self._blocks_count, dtype=np.uint64)
        self.clock = -1  # of the step that the parameters are as of; -1: not fetched
        self._ahead: tuple[int, RowsToCome] | None = None

    def create(self, client: Client, optimizer: Optimizer) -> None:
        """Create the table; rank 0 sets its rows where they have no value yet, all ranks read what the servers have."""
        # Two models of other shapes are other tables: the layout's hash stands in the spec, where the servers compare it.
        seed = xxhash.xxh64_intdigest(self._layout.encode())
        spec = TableSpec(self.name, BLOCK, optimizer=optimizer, initializer=Assigned(), seed=seed, mode=self._mode)
        try:
            client.create_table(spec)
        except TableMismatch as error:
            if error.field != "seed":
                raise
            want = f"the model whose dense parameters are in table {self.name!r}, or another dense_name"
            raise InvalidRequest("names and shapes of the dense parameters", self._layout[:500], want) from None
        if client.rank == 0:
            client.assign(self.name, self.ids, self._flat(self.parameters), only_absent=True)
        self.fetch(client)

    def fetch(self, client: Client) -> None:
        """Bring the parameters to this step's values, unless they are."""
        if self.clock == client.clock:
            return
        ahead, self._ahead = self._ahead, None
        rows = ahead[1].result()[self.name] if ahead is not None and ahead[0] == client.clock else client.pull(self.name, self.ids)
        self.load(rows)
        self.clock = client.clock

    def expect(self, clock: int, rows: RowsToCome) -> None:
        """Use these rows as the values of step `clock`."""
        self._ahead = (clock, rows)

    def forget_ahead(self) -> None:
        """Drop what was asked for ahead and not used."""
        self._ahead = None

    def refresh(self, client: Client) -> None:
        """Bring the parameters to what the servers hold now, whatever was asked for before."""
        self.forget_ahead()
        self.load(client.pull(self.name, self.ids))
        self.clock = client.clock

    def load(self, rows: Rows) -> None:
        """Set the parameters from float32[blocks, BLOCK]."""
        flat = rows.reshape(-1)[: sum(self._sizes)]
        devices = {parameter.device for parameter in self.parameters}
        parts = {device: torch.split(moved(flat, torch.empty(0, dtype=torch.float32, device=device)), self._sizes) for device in devices}
        with torch.no_grad():
            for position, parameter in enumerate(self.parameters):
                parameter.copy_(parts[parameter.device][position].reshape(parameter.shape))

    @property
    def has_gradient(self) -> bool:
        """Whether any of the parameters has a gradient."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def gradient(self) -> Rows:
        """Return the gradients as float32[blocks, BLOCK]; one of None counts as zeros."""
        return self._flat([parameter.grad for parameter in self.parameters])

    def _flat(self, tensors: Sequence[torch.Tensor | None]) -> Rows:
        flat = np.zeros(self._blocks_count * BLOCK, np.float32)
        parts = np.split(flat[: sum(self._sizes)], np.cumsum(self._sizes)[:-1])
        for part, tensor in zip(parts, tensors, strict=True):
            if tensor is not None:
                part[:] = tensor.detach().to("cpu", torch.float32).reshape(-1).numpy()
        return flat.reshape(self._blocks_count, BLOCK)


class FetchFirst:
    """A hook of modules: bring the dense parameters to this step's values before a module uses them or shows its state.

    In a deep copy of the model, which no optimizer trains, it does nothing.
    """

    def __init__(self, dense: DenseBlocks | None = None, client: Client | None = None) -> None:
        self.dense = dense
        self.client = client

    def __call__(self, *_: Any) -> None:
        if self.dense is not None and self.client is not None:
            self.dense.fetch(self.client)

    def __reduce__(self) -> tuple[type["FetchFirst"], tuple[()]]:
        return FetchFirst, ()

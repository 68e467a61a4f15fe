"""Dense parameters as a table: flattened, cut into blocks; a block is a row, its number the id."""

import gc
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
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
from ps_worker.profiling.stopwatch import PLACE, span

BLOCK = 512  # floats: 2 KiB, so that a model of a few thousand numbers is spread over several servers too

# Whose parameters each dense table of a client has.
_claims: weakref.WeakKeyDictionary[Client, dict[str, list[weakref.ref[nn.Parameter]]]] = weakref.WeakKeyDictionary()


class DenseBlocks:
    """Dense parameters of a model and the table that holds them.

    Parameters are laid one after another in the order given; the last block is filled up with zeros, which no gradient moves.
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
        self.turn = -1  # of the client, in whose step the parameters are as of then; -1: not fetched
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
        self._claim(client)
        if client.rank == 0:
            values = [parameter.detach().to("cpu", torch.float32).reshape(-1).numpy() for parameter in self.parameters]
            client.assign(self.name, self.ids, self.laid_out(values), only_absent=True)
        self.refresh(client)

    def _claim(self, client: Client) -> None:
        """Raise InvalidRequest where the table is that of other parameters still in use: two models would be one, without a word."""
        claims = _claims.setdefault(client, {})
        known = claims.get(self.name, [])
        if any(one() is not other for one, other in zip(known, self.parameters, strict=False)):
            gc.collect()  # a model that nobody has any more lies in cycles with its hooks
            if all(one() is not None for one in known):
                raise InvalidRequest("dense_name", f"{self.name!r}, which is the table of another model in this process", "another name")
        claims[self.name] = [weakref.ref(parameter) for parameter in self.parameters]

    def expect(self, turn: int, rows: RowsToCome) -> None:
        """Use these rows as the values of the step of `turn`."""
        self._ahead = (turn, rows)

    def take_ahead(self, turn: int) -> Rows | None:
        """Return the rows that were asked for ahead, float32[blocks, BLOCK], and forget them; None where none were for this turn."""
        ahead, self._ahead = self._ahead, None
        return ahead[1].result()[self.name] if ahead is not None and ahead[0] == turn else None

    def forget_ahead(self) -> None:
        """Drop what was asked for ahead and not used."""
        self._ahead = None

    def refresh(self, client: Client) -> None:
        """Bring the parameters to what the servers hold now, whatever was asked for before."""
        self.forget_ahead()
        self.load(client.pull(self.name, self.ids))
        self.turn = client.turn

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

    def laid_out(self, arrays: Sequence[npt.NDArray[np.float32] | None]) -> Rows:
        """Return arrays [numel], one for each parameter, as float32[blocks, BLOCK]; None counts as zeros."""
        flat = np.zeros(self._blocks_count * BLOCK, np.float32)
        parts = np.split(flat[: sum(self._sizes)], np.cumsum(self._sizes)[:-1])
        for part, array in zip(parts, arrays, strict=True):
            if array is not None:
                part[:] = array
        return flat.reshape(self._blocks_count, BLOCK)


def fetch(dense: Sequence[DenseBlocks], client: Client) -> None:
    """Bring the parameters to this step's values, unless they are; one pull for all that was not asked for ahead."""
    old = [blocks for blocks in dense if blocks.turn != client.turn]
    if not old:
        return
    rows = {blocks.name: ahead for blocks in old if (ahead := blocks.take_ahead(client.turn)) is not None}
    asked = {blocks.name: blocks.ids for blocks in old if blocks.name not in rows}
    if asked:
        rows |= client.pull(asked)
    with span(PLACE):
        for blocks in old:
            blocks.load(rows[blocks.name])
            blocks.turn = client.turn

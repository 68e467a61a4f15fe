"""torch.distributed.rpc: a server whose functions hold the table, over TensorPipe.

Without options TensorPipe chooses, on one host shared memory and cross-memory attach; with a transport and a channel ("uv", "basic") it
takes those, which is TCP.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import rpc

from benchmarks.bed import ADAGRAD, DIM, Rows
from benchmarks.dense import LEARNING_RATE
from benchmarks.peers.running import serving
from benchmarks.peers.store import DenseStore, Places, Store

TIMEOUT_S = 300.0

# The server's: rpc calls functions, not methods.
_parameters: dict[str, torch.nn.Parameter] = {}
_optimizers: dict[str, torch.optim.Optimizer] = {}


def _create(num_rows: int) -> None:
    table = _parameters["table"] = torch.nn.Parameter(torch.zeros(num_rows, DIM))
    _optimizers["table"] = torch.optim.Adagrad([table], lr=ADAGRAD.lr, eps=ADAGRAD.eps)


def _create_dense(values: torch.Tensor) -> None:
    dense = _parameters["dense"] = torch.nn.Parameter(values)
    _optimizers["dense"] = torch.optim.SGD([dense], lr=LEARNING_RATE)


def _assign(ids: torch.Tensor, rows: torch.Tensor) -> None:
    with torch.no_grad():
        _parameters["table"].index_copy_(0, ids, rows)


def _pull(ids: torch.Tensor) -> torch.Tensor:
    return _parameters["table"].detach().index_select(0, ids)


def _push(ids: torch.Tensor, gradients: torch.Tensor) -> None:
    table = _parameters["table"]
    table.grad = torch.sparse_coo_tensor(ids[None], gradients, table.shape, is_coalesced=True, check_invariants=False)
    _optimizers["table"].step()


def _pull_dense() -> torch.Tensor:
    return _parameters["dense"].detach()


def _push_dense(gradients: torch.Tensor) -> None:
    _parameters["dense"].grad = gradients
    _optimizers["dense"].step()


class TorchRpc(DenseStore):
    sorts_pushes = True  # worth a factor of three to torch.optim.Adagrad

    def as_keys(self, places: Places) -> torch.Tensor:
        return torch.from_numpy(places)

    def as_values(self, values: Rows) -> torch.Tensor:
        return torch.from_numpy(values)

    def as_rows(self, pulled: torch.Tensor) -> Rows:
        rows: Rows = pulled.numpy()
        return rows

    def create(self, num_rows: int) -> None:
        _call(_create, num_rows)

    def assign(self, keys: torch.Tensor, rows: torch.Tensor) -> None:
        _call(_assign, keys, rows)

    def pull(self, keys: torch.Tensor) -> Any:
        return _call(_pull, keys)

    def push(self, keys: torch.Tensor, gradients: torch.Tensor) -> None:
        _call(_push, keys, gradients)

    def create_dense(self, values: torch.Tensor) -> None:
        _call(_create_dense, values)

    def pull_dense(self) -> Any:
        return _call(_pull_dense)

    def push_dense(self, gradients: torch.Tensor) -> None:
        _call(_push_dense, gradients)


def _call(function: Any, *arguments: Any) -> Any:
    return rpc.rpc_sync("server", function, args=arguments)


def _join(name: str, meeting: str, transport: tuple[str, ...]) -> None:
    """Become `name`, one of two. They meet in a file: a TCP store would listen on every interface."""
    chosen: dict[str, Any] = {"_transports": list(transport[:1]), "_channels": list(transport[1:])} if transport else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}", rpc_timeout=TIMEOUT_S, **chosen)
    init: Any = rpc.init_rpc  # has no types
    init(name, rank=("server", "client").index(name), world_size=2, rpc_backend_options=options)


def serve(meeting: str, *transport: str) -> None:
    """Be the server until killed."""
    _join("server", meeting, transport)
    rpc.shutdown()


@contextmanager
def opened(*transport: str) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        with serving([sys.executable, "-c", f"from {__name__} import serve; serve(*{(meeting, *transport)!r})"]):
            _join("client", meeting, transport)
            try:
                yield TorchRpc()
            finally:
                rpc.shutdown(graceful=False)

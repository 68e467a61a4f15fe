"""A module of ours beside torch's on the same rows: what both return, and the gradients of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ps_worker as ps
from inprocess import InProcess
from ps_proto.requests import Pull, Push
from ps_worker.nn import RowModule
from ps_worker.nn.table import RowTable
from ps_worker.optim import ServerOptimizer


@contextmanager
def one_worker(mode: ps.Mode | None = None, servers: int = 2) -> Iterator[tuple[InProcess, ps.Client]]:
    """A cluster with one worker in it."""
    cluster = InProcess(servers)
    with cluster.connect(0, 1, mode or ps.Sync()) as client:
        yield cluster, client


def trained(client: ps.Client, model: nn.Module, lr: float = 1.0) -> ServerOptimizer:
    """Return an optimizer of the model: SGD for all of it."""
    return ServerOptimizer(model, dense=ps.SGD(lr), sparse=ps.SGD(lr), client=client)


def give_rows(client: ps.Client, table: str, weight: Tensor) -> None:
    """Set rows 0 to n - 1 to weight [n, dim]."""
    client.assign(table, np.arange(len(weight)), weight.detach().numpy())


def gradient_of(table: RowTable, rows_count: int) -> Tensor:
    """Return the gradient of the step as torch has it of a weight: float32[rows_count, dim], zeros where there is none."""
    dense = torch.zeros(rows_count, table.dim)
    for ids, gradient in table.leaves.in_order():
        dense.index_add_(0, torch.from_numpy(ids.view(np.int64)), gradient.cpu().float())
    return dense


def backward(output: Tensor, seed: int = 0) -> None:
    """Go back from a loss whose gradient differs in every number of the output."""
    (output * torch.randn(output.shape, generator=torch.Generator().manual_seed(seed)).to(output.dtype)).sum().backward()  # type: ignore[no-untyped-call]


def assert_same(module: RowModule, plain: nn.Embedding | nn.EmbeddingBag, ours: Tensor, theirs: Tensor) -> None:
    """Compare the outputs bit for bit and the gradients up to the order of sums; the module must have one table."""
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    backward(ours)
    backward(theirs)
    (table,) = module.tables.values()
    assert plain.weight.grad is not None
    torch.testing.assert_close(gradient_of(table, len(plain.weight)), plain.weight.grad)


def asked_ids(cluster: InProcess, kind: type[Pull] | type[Push], table: str) -> set[int]:
    """Return all ids of the table that requests of this kind named."""
    parts: list[Any] = [part for _, body in cluster.calls if isinstance(body, kind) for part in body.tables]
    return {int(id) for part in parts if part.table == table for id in part.ids}

"""Small models on tables whose training is easy to follow."""

from typing import Any

import torch
from torch import Tensor, nn

import ps_worker as ps
from beside_torch import trained
from ps_worker.optim import ServerOptimizer

IDS = torch.tensor([1, 2, 1])


class Towers(nn.Module):
    """Two tables and a layer; `user` and `item` may be called alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user_rows = ps.nn.Embedding(None, 2, name="user", initializer=ps.Constant(1.0))
        self.item_rows = ps.nn.Embedding(None, 2, name="item", initializer=ps.Constant(2.0))
        self.layer = nn.Linear(2, 2)

    def user(self, ids: Tensor) -> Tensor:
        return self.layer(self.user_rows(ids))  # type: ignore[no-any-return]

    def item(self, ids: Tensor) -> Tensor:
        return self.layer(self.item_rows(ids))  # type: ignore[no-any-return]

    def forward(self, ids: Tensor) -> Tensor:
        return (self.user(ids) * self.item(ids)).sum(1)


def rows_model(client: ps.Client) -> tuple[ps.nn.Embedding, ServerOptimizer]:
    """A model of one table whose rows are minus the sum of what was pushed."""
    model = ps.nn.Embedding(None, 1, name="rows", initializer=ps.Zeros())
    return model, trained(client, model)


def row(client: ps.Client, id: int = 1) -> float:
    return float(client.pull("rows", [id])[0, 0])


def as_any(value: Any) -> Any:
    """Hide a mistake from the type checker."""
    return value


def servers_values(client: ps.Client, optimizer: ServerOptimizer) -> list[float]:
    return client.pull("dense", optimizer.dense[0].ids).flatten().tolist()

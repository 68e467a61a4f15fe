"""A model that has one of everything that is kept, how it trains, and what it is afterwards to the last bit."""

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

import ps_worker as ps
from ps_worker.optim import ServerOptimizer
from sharding.finite import all_finite

IDS_COUNT = 30
SPREAD = 0x9E3779B97F4A7C15  # ids over all of uint64, upper half included
INITIALIZER = ps.Uniform(-0.5, 0.5)


def spread(ids: Tensor) -> Tensor:
    """Return small numbers as ids int64 from all over the key space."""
    return ids * (SPREAD - 2**64)


class Model(nn.Module):
    """Two tables, one of them shared by two modules; dense parameters, a frozen one; buffers, one of them not persistent."""

    passing: Tensor

    def __init__(self, dim: int = 4, table_dtype: str = "float32", max_norm: float | None = None, wire: str = "float32") -> None:
        super().__init__()
        kept = {"table_dtype": table_dtype, "max_norm": max_norm, "wire": wire}
        self.bags = ps.nn.EmbeddingBagCollection(dim, {"a": "user", "b": "item"}, initializer=INITIALIZER, seed=5, **kept)  # type: ignore[arg-type]
        self.user = ps.nn.Embedding(None, dim, name="user", initializer=INITIALIZER, seed=5, **kept)  # type: ignore[arg-type]
        self.norm = nn.BatchNorm1d(3 * dim)
        self.out = nn.Linear(3 * dim, 1)
        self.shift = nn.Parameter(torch.full((1,), 0.25), requires_grad=False)
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        features = torch.cat([self.bags({"a": a, "b": b}), self.user(a)], dim=1)
        result: Tensor = self.out(self.norm(features)).squeeze(1) + self.shift
        return result


def model_of(seed: int, dim: int = 4) -> Model:
    torch.manual_seed(seed)
    return Model(dim)


def optimizer_of(model: nn.Module, client: ps.Client, sparse: ps.Optimizer | None = None) -> ServerOptimizer:
    return ServerOptimizer(model, dense=ps.Adam(lr=0.01), sparse=sparse or ps.Adagrad(lr=0.1), client=client)


def batch(rank: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1_000 * rank + step)
    a, b = (spread(torch.randint(0, IDS_COUNT, (8,), generator=generator)) for _ in range(2))
    return a, b, torch.randn(8, generator=generator)


def train(model: Model, optimizer: ServerOptimizer, steps: Iterable[int], rank: int = 0, then: Callable[[int], None] | None = None) -> None:
    """Take the steps; `then` is called after each."""
    for step in steps:
        a, b, wanted = batch(rank, step)
        nn.functional.mse_loss(model(a, b), wanted).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if then is not None:
            then(step)


def digest(client: ps.Client, model: nn.Module, tables: Iterable[str] = ("user", "item", "dense")) -> str:
    """Return a checksum of all rows with their state, of the parameters and of the buffers."""
    found = hashlib.sha256()
    for table in tables:
        found.update(table.encode())
        parts = list(client.export_records(table))
        if parts:
            records = ps.Records.joined(parts)
            assert all_finite(records.rows)
            found.update(records.ids.tobytes() + records.rows.tobytes())
            for name, column in records.state.items():
                found.update(name.encode() + column.tobytes())
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()

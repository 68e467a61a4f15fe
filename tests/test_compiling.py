"""torch.compile of models with our embeddings: one break for each, the same results, nothing compiled anew as ids change."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import ps_worker as ps
from beside_torch import one_worker
from ps_worker.optim import ServerOptimizer
from towers import servers_values

# torch.compile looks at the .grad of all inputs and hides the warning from being shown, not from being an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

DIM, STEPS = 4, 4


class Net(nn.Module):
    """Layers, a collection of two tables, an embedding and a bag, and layers again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.bottom = nn.Linear(3, DIM)
        self.bags = ps.nn.EmbeddingBagCollection(DIM, {"a": "A", "b": "B"}, seed=1)
        self.user = ps.nn.Embedding(None, DIM, name="user", seed=2)
        self.words = ps.nn.EmbeddingBag(None, DIM, mode="mean", name="words", seed=3)
        self.top = nn.Sequential(nn.Linear(5 * DIM, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, counts: Tensor, ids: dict[str, Tensor]) -> Tensor:
        low = torch.relu(self.bottom(counts))
        bags = self.bags({"a": ids["a"], "b": ids["b"]}) * 2
        user = torch.tanh(self.user(ids["a"]))
        words = self.words(ids["words"]) + low
        result: Tensor = self.top(torch.cat([low, bags, user, words], dim=1)).squeeze(1)
        return result


EMBEDDINGS = 3


def compiled(module: nn.Module, backend: str) -> nn.Module:
    wrapper = torch.compile(module, backend=backend)
    assert isinstance(wrapper, nn.Module)
    return wrapper


def batch(step: int, size: int = 6) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a batch whose ids repeat less and less."""
    generator = torch.Generator().manual_seed(step)
    ids = {name: torch.randint(0, 2 + 5 * step, (size,), generator=generator) for name in ("a", "b")}
    ids["words"] = torch.randint(0, 2 + 5 * step, (size, 3), generator=generator)
    return torch.randn(size, 3, generator=generator), ids


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Count what a test compiles, and forget it afterwards."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def optimizer_of(model: nn.Module, client: ps.Client) -> ServerOptimizer:
    return ServerOptimizer(model, dense=ps.SGD(0.1), sparse=ps.SGD(0.1), client=client)


def train(model: nn.Module, optimizer: ServerOptimizer, steps: int = STEPS) -> list[float]:
    """Return the losses."""
    losses = []
    for step in range(steps):
        loss = model(*batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@cache
def uncompiled() -> tuple[list[float], dict[str, Any]]:
    """Return the losses, and all that servers hold, of a model that is not compiled."""
    with one_worker() as (_, client):
        model = Net()
        optimizer = optimizer_of(model, client)
        return train(model, optimizer), held(client, optimizer)


def held(client: ps.Client, optimizer: ServerOptimizer) -> dict[str, Any]:
    """Return ids and values of each table."""
    rows = {table: client.export(table) for table in ("A", "B", "user", "words")}
    return {name: (ids.tolist(), values) for name, (ids, values) in rows.items()} | {"dense": ([], servers_values(client, optimizer))}


def before(model: nn.Module, client: ps.Client, backend: str) -> tuple[nn.Module, ServerOptimizer]:
    wrapper = compiled(model, backend)
    return wrapper, optimizer_of(wrapper, client)


def after(model: nn.Module, client: ps.Client, backend: str) -> tuple[nn.Module, ServerOptimizer]:
    optimizer = optimizer_of(model, client)
    return compiled(model, backend), optimizer


def in_place(model: nn.Module, client: ps.Client, backend: str) -> tuple[nn.Module, ServerOptimizer]:
    optimizer = optimizer_of(model, client)
    model.compile(backend=backend)
    return model, optimizer


Make = Callable[[nn.Module, ps.Client, str], tuple[nn.Module, ServerOptimizer]]


@pytest.mark.parametrize(
    ("make", "backend"), [(before, "aot_eager"), (after, "eager"), (in_place, "eager")], ids=["before", "after", "in place"]
)
def test_a_compiled_model_breaks_once_for_each_embedding_and_trains_the_same(make: Make, backend: str) -> None:
    plain_losses, wanted = uncompiled()
    with one_worker() as (_, client):
        model, optimizer = make(Net(), client, backend)
        losses = train(model, optimizer)
        assert [group["table"] for group in optimizer.param_groups] == ["dense", "A", "B", "user", "words"]
        found = held(client, optimizer)
    assert sum(counters["graph_break"].values()) == EMBEDDINGS
    assert counters["stats"]["unique_graphs"] == 4  # before the collection, from it to the user, from that to the words, and after them
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    assert found.keys() == wanted.keys()
    for name, (ids, values) in wanted.items():
        assert found[name][0] == ids
        np.testing.assert_allclose(found[name][1], values, rtol=1e-5, atol=1e-6)


def test_explain_counts_the_same() -> None:
    with one_worker() as (_, client):
        model = Net()
        optimizer_of(model, client)
        said = torch._dynamo.explain(model)(*batch(1))
    assert said.graph_count == EMBEDDINGS + 1
    assert said.graph_break_count == EMBEDDINGS
    assert all("RowModule.__call__" in reason.reason for reason in said.break_reasons)


def test_nothing_is_compiled_anew_as_the_number_of_unique_ids_changes() -> None:
    with one_worker() as (_, client):
        model, optimizer = after(Net(), client, "eager")
        train(model, optimizer, 1)
        graphs, frames = counters["stats"]["unique_graphs"], counters["frames"]["total"]
        sizes = [np.unique(batch(step)[1]["words"]).size for step in range(8)]
        assert len(set(sizes)) > 4
        train(model, optimizer, 8)
        assert (counters["stats"]["unique_graphs"], counters["frames"]["total"]) == (graphs, frames)


def test_other_batch_sizes_are_compiled_once_more_at_most() -> None:
    with one_worker() as (_, client):
        model, optimizer = after(Net(), client, "eager")
        train(model, optimizer, 1)
        graphs = counters["stats"]["unique_graphs"]
        for size in (7, 8, 9, 10):
            model(*batch(3, size)).sum().backward()
        assert counters["stats"]["unique_graphs"] <= 2 * graphs  # the second time with a size that is not fixed
        optimizer.zero_grad()


def test_a_whole_step_may_be_compiled() -> None:
    """What talks to servers runs as it is, whoever calls it: forward, clip, step and zero_grad."""

    def step(model: nn.Module, optimizer: ServerOptimizer, number: int) -> Tensor:
        loss: Tensor = model(*batch(number)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        ps.clip_grad_norm_(model, 1e6)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    with one_worker() as (_, client):
        model = Net()
        optimizer = optimizer_of(model, client)
        compiled_step = torch.compile(step, backend="eager")
        losses = [compiled_step(model, optimizer, number).item() for number in range(STEPS)]
        assert client.clock == STEPS
    np.testing.assert_allclose(losses, uncompiled()[0], rtol=1e-5)


def test_prefetched_rows_are_used_by_a_compiled_model() -> None:
    with one_worker() as (_, client):
        model = Net()
        wrapper, optimizer = before(model, client, "aot_eager")

        def ids(given: tuple[Tensor, dict[str, Tensor]]) -> dict[ps.nn.RowModule, object]:
            sparse = given[1]
            return {model.bags: {"a": sparse["a"], "b": sparse["b"]}, model.user: sparse["a"], model.words: sparse["words"]}

        losses = []
        for given in ps.prefetch([batch(step) for step in range(STEPS)], ids=ids):
            loss = wrapper(*given).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    np.testing.assert_allclose(losses, uncompiled()[0], rtol=1e-5)


def test_a_part_that_was_compiled_first_fetches_its_weights_when_it_is_called_alone() -> None:
    with one_worker() as (_, client):
        model = nn.ModuleDict({"rows": ps.nn.Embedding(None, 2, name="rows", initializer=ps.Constant(1.0)), "top": nn.Linear(2, 1)})
        model["top"] = compiled(model["top"], "eager")
        optimizer = optimizer_of(model, client)
        for _ in range(3):
            model["top"](model["rows"](torch.tensor([1]))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert client.clock == 3


def test_a_part_that_is_compiled_later_and_called_alone_is_refused_with_what_to_do() -> None:
    with one_worker() as (_, client):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        optimizer = optimizer_of(model, client)
        top = compiled(model[1], "eager")
        top(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        top(torch.ones(1, 2)).sum().backward()
        with pytest.raises(ps.InvalidRequest, match=r"of the weights of step 0, in step 1, .* torch.compile for a part before"):
            optimizer.step()

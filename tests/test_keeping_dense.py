"""ps.save, ps.load and ps.to_torch of models whose dense parameters are several tables, none of ours, or within a wrapper."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from beside_torch import one_worker
from kept import Model, batch, digest, model_of, optimizer_of, train
from ps_worker.optim import ServerOptimizer


def in_two_tables(model: Model, client: ps.Client) -> ServerOptimizer:
    pairs = [(model.norm.parameters(), ps.SGD(0.1, momentum=0.9)), (model.out.parameters(), ps.Adam(0.01))]
    return ServerOptimizer(model, dense=pairs, sparse=ps.Adagrad(0.1), client=client)


def by_torch(model: Model, client: ps.Client) -> ServerOptimizer:
    return ServerOptimizer(model, dense=None, sparse=ps.Adagrad(0.1), client=client)


def take(model: Model, optimizer: ServerOptimizer, steps: range) -> None:
    """Train rows by ours and, where it has no dense tables, layers by torch's plain SGD."""
    layers = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    for step in steps:
        train(model, optimizer, range(step, step + 1), then=None if optimizer.dense else lambda _: None)
        if not optimizer.dense:
            a, b, wanted = batch(0, step)
            layers.zero_grad()
            loss: Tensor = nn.functional.mse_loss(model(a, b), wanted)
            loss.backward()  # type: ignore[no-untyped-call]
            layers.step()
            layers.zero_grad()
            optimizer.zero_grad()


def tables_of(path: Path) -> dict[str, str]:
    index = json.loads((path / "index.json").read_text())
    return {table["name"]: table["holds"] for table in index["tables"]}


def of(optimizer: ServerOptimizer) -> list[str]:
    return [*optimizer.tables, *[blocks.name for blocks in optimizer.dense]]


@pytest.mark.parametrize("make", [in_two_tables, by_torch], ids=lambda make: make.__name__)
@pytest.mark.parametrize("is_trained", [False, True], ids=["fresh", "into a trained one"])
def test_training_goes_on_with_the_same_bits(tmp_path: Path, make: Callable[[Model, ps.Client], ServerOptimizer], is_trained: bool) -> None:
    with one_worker() as (_, client):
        model = model_of(seed=1)
        optimizer = make(model, client)
        take(model, optimizer, range(3))
        ps.save(model, tmp_path / "model")
        saved = digest(client, model, of(optimizer))
        take(model, optimizer, range(3, 6))
        wanted = digest(client, model, of(optimizer))
    dense = ["dense", "dense.1"] if make is in_two_tables else []
    assert tables_of(tmp_path / "model") == {"user": "embeddings", "item": "embeddings"} | dict.fromkeys(dense, "dense parameters")
    with one_worker(servers=3) as (_, client):
        model = model_of(seed=2)
        optimizer = make(model, client)
        if is_trained:
            take(model, optimizer, range(50, 52))
        ps.load(model, tmp_path / "model")
        assert digest(client, model, of(optimizer)) == saved
        take(model, optimizer, range(3, 6))
        assert digest(client, model, of(optimizer)) == wanted


def test_what_servers_trained_goes_on_under_torch(tmp_path: Path) -> None:
    with one_worker() as (_, client):
        model = model_of(seed=1)
        train(model, optimizer_of(model, client), range(3))
        ps.save(model, tmp_path / "model")
        weight = model.out.weight.detach().clone()
        rows = client.export("user")
    with one_worker() as (_, client):
        model = model_of(seed=2)
        by_torch(model, client)
        ps.load(model, tmp_path / "model")
        assert torch.equal(model.out.weight, weight)
        assert client.export("user")[1].tolist() == rows[1].tolist()
        with pytest.raises(ps.UnknownTable):
            client.spec("dense")


def test_other_parts_in_the_tables_are_refused(tmp_path: Path) -> None:
    with one_worker() as (_, client):
        model = model_of(seed=1)
        in_two_tables(model, client)
        ps.save(model, tmp_path / "model")
    with one_worker() as (_, client):
        model = model_of(seed=1)
        optimizer_of(model, client)
        with pytest.raises(ps.InvalidRequest, match=r"dense tables of .* is with 'dense.1', but must be the model's: 'dense'"):
            ps.load(model, tmp_path / "model")


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "data parallel": nn.DataParallel,
    "compiled": lambda model: torch.compile(model, backend="eager"),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapped_model_is_saved_loaded_and_served_as_the_one_within(tmp_path: Path, wrap: Callable[[nn.Module], nn.Module]) -> None:
    with one_worker() as (_, client):
        model = model_of(seed=1)
        optimizer = optimizer_of(wrap(model), client)
        train(model, optimizer, range(2))
        ps.save(wrap(model), tmp_path / "model")
        a, b, _wanted = batch(0, 1)
        served = ps.to_torch(wrap(model))
        assert type(served) is Model
        with torch.no_grad():
            torch.testing.assert_close(served.eval()(a, b), model.eval()(a, b))
        saved = digest(client, model)
    with one_worker() as (_, client):
        model = model_of(seed=2)
        optimizer_of(model, client)
        ps.load(model, tmp_path / "model")
        assert digest(client, model) == saved


def test_what_is_served_takes_a_state(tmp_path: Path) -> None:
    """It is plain torch: it can be saved as torch saves, and nothing of ours comes back with it."""
    with one_worker() as (_, client):
        model = model_of(seed=1)
        train(model, optimizer_of(model, client), range(2))
        served, other = ps.to_torch(model), ps.to_torch(model)
    torch.save(served.state_dict(), tmp_path / "served.pt")
    state = torch.load(tmp_path / "served.pt")
    state["out.bias"] += 1.0
    other.load_state_dict(state)
    assert torch.equal(other.state_dict()["out.bias"], state["out.bias"])
    assert not [module for module in served.modules() if module._load_state_dict_post_hooks]

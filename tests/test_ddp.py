"""A model of ours within torch's DistributedDataParallel, in a job of one rank; procs/test_hybrid.py has two."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel

import ps_worker as ps
from beside_torch import one_worker
from kept import Model, batch, digest, model_of
from ps_proto.errors import UnknownTable
from ps_worker.optim import ServerOptimizer

LR = 0.1
TABLES = ("user", "item")
DENSE = {"norm.weight", "norm.bias", "out.weight", "out.bias", "shift"}


pytestmark = pytest.mark.usefixtures("process_group")


def around(model: nn.Module, where: str) -> nn.Module:
    """Wrap the model, a part of it, or nothing."""
    if where == "a part":
        model.out = DistributedDataParallel(model.out)
        return model
    return DistributedDataParallel(model) if where == "the model" else model


def hybrid(client: ps.Client, model: nn.Module) -> tuple[ServerOptimizer, torch.optim.Optimizer]:
    rows = ServerOptimizer(model, dense=None, sparse=ps.SGD(LR), client=client)
    return rows, torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=LR)


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 3) -> None:
    for step in range(steps):
        a, b, wanted = batch(0, step)
        nn.functional.mse_loss(model(a, b), wanted).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()


def dense_of(model: Model) -> dict[str, list[float]]:
    """Return the dense parameters, by their names without wrappers."""
    return {name.replace("module.", ""): parameter.flatten().tolist() for name, parameter in model.named_parameters()}


def test_ddp_and_torchs_optimizer_see_the_dense_parameters_alone(client: ps.Client) -> None:
    model = DistributedDataParallel(model_of(1))
    assert {name for name, _ in model.named_parameters()} == {f"module.{name}" for name in DENSE}
    rows, dense = hybrid(client, model)
    a, b, _ = batch(0, 0)
    model(a, b).sum().backward()
    of_torch = {id(parameter) for group in dense.param_groups for parameter in group["params"]}
    of_servers = {id(leaf) for group in rows.param_groups for leaf in group["params"]}
    assert len(of_torch) == len(DENSE) - 1  # `shift` is frozen
    assert [leaf.shape[1] for group in rows.param_groups for leaf in group["params"] if leaf.dim() == 2] == [4, 4, 4]
    assert of_torch.isdisjoint(of_servers)
    assert [group["table"] for group in rows.param_groups] == ["user", "item"]
    with pytest.raises(UnknownTable):
        client.spec("dense")


@pytest.mark.parametrize("where", ["the model", "a part", "nothing"])
def test_servers_and_torch_train_it_as_the_servers_alone_do(where: str) -> None:
    with one_worker() as (_, client):
        model = model_of(1)
        train(around(model, where), *hybrid(client, model))
        client.flush()
        ours, rows = dense_of(model), {table: client.export(table)[1] for table in TABLES}
    with one_worker() as (_, client):
        model = model_of(1)
        train(model, ServerOptimizer(model, dense=ps.SGD(LR), sparse=ps.SGD(LR), client=client))
        client.flush()
        for name, parameter in model.state_dict().items():
            if name in DENSE:
                np.testing.assert_allclose(parameter.flatten(), ours[name], rtol=1e-5, atol=1e-7)
        for table in TABLES:
            np.testing.assert_allclose(client.export(table)[1], rows[table], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("target", ["the model", "a part", "nothing"])
@pytest.mark.parametrize("source", ["the model", "a part", "nothing"])
def test_what_one_saved_wrapped_another_loads_unwrapped_and_the_other_way_round(source: str, target: str, tmp_path: Path) -> None:
    with one_worker() as (_, client):
        model = model_of(1)
        wrapped = around(model, source)
        train(wrapped, *hybrid(client, wrapped))
        ps.save(wrapped, tmp_path / "model")
        saved, dense = digest(client, nn.ReLU(), TABLES), dense_of(model)
        mean = model.norm.running_mean
    with one_worker(servers=3) as (_, client):
        model = model_of(2)
        wrapped = around(model, target)
        rows, torchs = hybrid(client, wrapped)
        ps.load(wrapped, tmp_path / "model")
        assert dense_of(model) == dense
        assert mean is not None
        assert model.norm.running_mean is not None
        assert model.norm.running_mean.tolist() == mean.tolist()
        assert digest(client, nn.ReLU(), TABLES) == saved
        train(wrapped, rows, torchs)  # and goes on
        assert digest(client, nn.ReLU(), TABLES) != saved


def test_a_model_whose_dense_parameters_the_servers_had_goes_on_under_ddp(tmp_path: Path) -> None:
    with one_worker() as (_, client):
        model = model_of(1)
        train(model, ServerOptimizer(model, sparse=ps.SGD(LR), client=client))
        ps.save(model, tmp_path / "model")
        dense = dense_of(model)
    with one_worker() as (_, client):
        wrapped = DistributedDataParallel(model_of(2))
        hybrid(client, wrapped)
        ps.load(wrapped, tmp_path / "model")
        assert dense_of(wrapped.module) == dense


def test_to_torch_gives_the_model_without_ddp(client: ps.Client) -> None:
    wrapped = DistributedDataParallel(model_of(1))
    train(wrapped, *hybrid(client, wrapped))
    plain = ps.to_torch(wrapped).eval()
    assert not any(isinstance(module, DistributedDataParallel) for module in plain.modules())
    a, b, _ = batch(0, 0)
    with torch.no_grad():
        torch.testing.assert_close(plain(a, b), wrapped.module.eval()(a, b))


def test_a_state_dict_has_the_markers_under_ddps_prefix_and_without_it(client: ps.Client) -> None:
    wrapped = DistributedDataParallel(model_of(1))
    hybrid(client, wrapped)
    state = wrapped.state_dict()
    assert state["module.bags._extra_state"] == {"tables": {"user": 4, "item": 4}}
    assert not any("_place" in name for name in state)
    consume_prefix_in_state_dict_if_present(state, "module.")
    other = model_of(2)
    missing, unexpected = other.load_state_dict(state, strict=False)
    assert unexpected == []
    assert all("rows of table" in name for name in missing)
    assert dense_of(other) == dense_of(wrapped.module)


def test_the_empty_buffer_of_ours_still_says_where_rows_go(client: ps.Client) -> None:
    wrapped = DistributedDataParallel(model_of(1))
    rows, dense = hybrid(client, wrapped)
    train(wrapped, rows, dense)  # DDP has broadcast it before each forward
    assert wrapped.module.user._place.shape == (0,)
    wrapped.to(torch.float64)
    a, b, _ = batch(0, 0)
    assert wrapped.module.user(a).dtype == torch.float64
    assert wrapped(a, b).dtype == torch.float64


def test_gradients_of_several_backwards_add_up_under_no_sync() -> None:
    outcomes = []
    for pieces in (1, 2):
        with one_worker() as (_, client):
            model = model_of(1).eval()  # else BatchNorm would see the pieces
            wrapped = DistributedDataParallel(model)
            rows, dense = hybrid(client, wrapped)
            a, b, wanted = batch(0, 0)
            for piece in range(pieces):
                its = slice(piece, None, pieces)
                loss = nn.functional.mse_loss(wrapped(a[its], b[its]), wanted[its]) / pieces
                if piece < pieces - 1:
                    with wrapped.no_sync():
                        loss.backward()  # type: ignore[no-untyped-call]
                else:
                    loss.backward()  # type: ignore[no-untyped-call]
            rows.step()
            dense.step()
            client.flush()
            outcomes.append((dense_of(model), client.export("user")[1]))
    (whole, rows_whole), (summed, rows_summed) = outcomes
    for name in DENSE:
        np.testing.assert_allclose(summed[name], whole[name], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(rows_summed, rows_whole, rtol=1e-5, atol=1e-7)

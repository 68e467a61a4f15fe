"""torch.amp's GradScaler and autocast with a ServerOptimizer, on the CPU; test_cuda.py has them on a GPU."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from beside_torch import asked_ids, one_worker, trained
from inprocess import Fault, InProcess
from ps_proto.requests import Push
from ps_worker.optim import ServerOptimizer
from towers import IDS, Towers, row, rows_model, servers_values

INF = float("inf")


def scaler_of(scale: float = 1024.0) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def take_step(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, loss: Tensor | None, unscales: bool = False) -> None:
    if loss is not None:
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    if unscales:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@pytest.mark.parametrize("unscales", [False, True], ids=["by step", "by unscale_"])
def test_rows_and_layers_train_as_without_a_scaler(client: ps.Client, unscales: bool) -> None:
    model, twin = Towers(), Towers()
    optimizer, scaler = trained(client, model, lr=0.5), scaler_of(2.0**16)
    for _ in range(3):
        take_step(scaler, optimizer, model(IDS).sum(), unscales)
    assert client.clock == 3
    scaled = [client.pull(name, [1, 2]) for name in ("user", "item")], servers_values(client, optimizer)
    with one_worker() as (_, other):
        plain = trained(other, twin, lr=0.5)
        for _ in range(3):
            twin(IDS).sum().backward()
            plain.step()
            plain.zero_grad()
        bare = [other.pull(name, [1, 2]) for name in ("user", "item")], servers_values(other, plain)
    np.testing.assert_array_equal(scaled[0], bare[0])  # a scale of a power of two loses no bit
    assert scaled[1] == bare[1]


@pytest.mark.parametrize("unscales", [False, True], ids=["by step", "by unscale_"])
def test_a_step_with_an_inf_pushes_nothing_and_ends(client: ps.Client, cluster: InProcess, unscales: bool) -> None:
    model, optimizer = rows_model(client)
    scaler = scaler_of()
    for step, factor in enumerate((1.0, INF, 1.0)):
        cluster.calls.clear()
        take_step(scaler, optimizer, model(IDS).sum() * factor, unscales)
        assert row(client) == (-2, -2, -4)[step]
        assert asked_ids(cluster, Push, "rows") == (set() if factor == INF else {1, 2})
        assert client.clock == step + 1
        assert scaler.get_scale() == (1024, 512, 512)[step]


def test_an_inf_in_a_layer_keeps_the_rows_too(client: ps.Client) -> None:
    model = Towers()
    optimizer, scaler = trained(client, model), scaler_of()
    start = servers_values(client, optimizer)
    loss = model.user_rows(IDS).sum() + model.layer.bias.sum() * INF
    take_step(scaler, optimizer, loss)
    assert client.pull("user", [1]).tolist() == [[1, 1]]
    assert servers_values(client, optimizer) == start


@pytest.mark.parametrize("unscales", [False, True], ids=["by step", "by unscale_"])
def test_a_step_without_any_gradient_does_not_make_it_raise(client: ps.Client, unscales: bool) -> None:
    model, optimizer = rows_model(client)
    layer = nn.Linear(1, 1)
    other = ServerOptimizer(layer, dense=ps.SGD(1.0), client=client)
    for one, module in ((optimizer, model), (other, layer)):
        scaler = scaler_of()
        scaler.scale(torch.zeros(()))  # as in a script whose batch turned out to be empty
        for _ in range(2):
            take_step(scaler, one, None, unscales)
        if module is model:
            take_step(scaler, one, model(IDS[:0]).sum(), unscales)
        assert scaler.get_scale() == 1024
    assert client.clock == 5
    assert row(client) == 0


def test_a_parameter_that_is_nobodys_is_on_no_server_and_makes_no_norm(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    (anchor,) = optimizer.param_groups[0]["params"]
    model(IDS).sum().backward()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    assert params[0] is anchor
    assert torch.nn.utils.clip_grad_norm_(params, 100.0).item() == pytest.approx(5**0.5)
    optimizer.step()
    optimizer.zero_grad()
    assert anchor.item() == anchor.grad.item() == 0


def test_one_rank_with_an_inf_gives_nothing_and_the_others_go_on() -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 2, ps.Sync()) as client, cluster.connect(1, 2, ps.Sync()) as other:
        model, optimizer = rows_model(client)
        bad, bad_optimizer = rows_model(other)
        take_step(scaler_of(), optimizer, model(IDS).sum())
        take_step(scaler_of(), bad_optimizer, bad(IDS).sum() * INF)
        with ThreadPoolExecutor() as pool:
            values = list(pool.map(row, (client, other)))
    assert values == [-1, -1]  # the mean is over both ranks


@pytest.mark.parametrize("factor", [1.0, INF], ids=["pushed", "with an inf"])
def test_a_step_called_again_after_an_error_counts_once(factor: float) -> None:
    with one_worker(ps.Sync(), servers=1) as (cluster, client):
        model, optimizer = rows_model(client)
        scaler = scaler_of()
        client.end_step()  # so that there is a step to tell of
        scaler.scale(model(IDS).sum()).backward()
        fault = Fault(Push, count=10**6)
        cluster.faults.append(fault)
        with pytest.raises(ps.Unreachable):
            scaler.step(optimizer)
        cluster.faults.clear()
        assert fault.fired
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        take_step(scaler, optimizer, model(IDS).sum() * factor)
        assert row(client) == (-4 if factor == 1.0 else -2)


def test_a_step_that_is_refused_leaves_no_scale_behind(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    scaler = scaler_of()
    scaler.scale(model(IDS).sum()).backward()
    optimizer.param_groups[0]["lr"] = -1.0
    for _ in range(2):
        with pytest.raises(ps.InvalidRequest, match=r"SGD\.lr is -1"):
            scaler.step(optimizer)
    optimizer.param_groups[0]["lr"] = 1.0
    scaler.step(optimizer)
    assert row(client) == -2


def test_a_model_in_half_precision_is_unscaled_in_float32(client: ps.Client) -> None:
    """2**-20 · 2**-6 is 0 in float16: only what is scaled down in float32 reaches the servers."""
    model, layer = ps.nn.Embedding(None, 1, name="rows", initializer=ps.Zeros()).half(), nn.Linear(1, 1, bias=False).half()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    whole = nn.Sequential(model, layer)
    optimizer, scaler = ServerOptimizer(whole, dense=ps.SGD(1.0), sparse=ps.SGD(1.0), client=client), scaler_of(2.0**20)
    factor = torch.tensor(2.0**-26)
    loss = (whole(torch.tensor([1])).float() * factor).sum() + (layer.weight.float() * factor).sum()
    take_step(scaler, optimizer, loss)
    assert row(client) == -(2.0**-26)
    assert servers_values(client, optimizer)[0] == pytest.approx(1 - 2.0**-26, abs=2.0**-24)


def test_accumulated_batches_are_unscaled_once(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    scaler = scaler_of()
    for _ in range(3):
        scaler.scale(model(IDS).sum()).backward()
    scaler.unscale_(optimizer)
    ps.clip_grad_norm_(model, 1e6)
    take_step(scaler, optimizer, None)
    assert row(client) == -6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_computes_layers_in_half_and_leaves_rows_alone(client: ps.Client, dtype: torch.dtype) -> None:
    model = Towers()
    optimizer, scaler = trained(client, model, lr=0.25), scaler_of()
    seen: list[Any] = []
    model.layer.register_forward_hook(lambda module, given, output: seen.append((given[0].dtype, output.dtype)))
    with torch.autocast("cpu", dtype=dtype):
        loss = model(IDS).float().sum()
    take_step(scaler, optimizer, loss)
    assert seen == [(torch.float32, dtype)] * 2
    twin = Towers()
    (twin_loss,) = [(twin.layer(torch.full((3, 2), 1.0)) * twin.layer(torch.full((3, 2), 2.0))).sum()]
    twin_loss.backward()
    gradient = twin.layer.bias.grad
    assert gradient is not None
    np.testing.assert_allclose(
        servers_values(client, optimizer)[4:6], (twin.layer.bias.detach() - 0.25 * gradient).numpy(), rtol=0.05, atol=0.02
    )

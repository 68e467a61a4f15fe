"""ServerOptimizer, step by step: what a step pushes and ends, and what becomes of it when something fails."""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import ps_worker as ps
from beside_torch import asked_ids, one_worker, trained
from inprocess import Fault, InProcess
from ps_proto.requests import Finish, Push
from ps_worker.optim import ServerOptimizer
from sharding.hashing import buckets_of, table_salt
from towers import IDS, Towers, row, rows_model, servers_values


def test_a_step_trains_rows_and_layers_as_torch_does(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model, lr=0.5)
    rows = nn.ParameterDict({"user": torch.full((3, 2), 1.0), "item": torch.full((3, 2), 2.0)})
    layer = copy.deepcopy(model.layer)
    plain = torch.optim.SGD([*rows.parameters(), *layer.parameters()], lr=0.5)
    for _ in range(3):
        model(IDS).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        (layer(rows["user"][IDS]) * layer(rows["item"][IDS])).sum().backward()
        plain.step()
        plain.zero_grad()
    for name, weight in rows.items():
        np.testing.assert_allclose(client.pull(name, np.arange(3)), weight.detach().numpy(), rtol=1e-5)
    model.state_dict()  # fetches
    torch.testing.assert_close(model.layer.weight, layer.weight)


def test_all_gradients_of_a_step_go_in_one_push_to_each_server(client: ps.Client, cluster: InProcess) -> None:
    model = Towers()
    optimizer = trained(client, model)
    model(torch.arange(50)).sum().backward()
    cluster.calls.clear()
    optimizer.step()
    pushes = [address for address, body in cluster.calls if isinstance(body, Push)]
    assert sorted(pushes) == ["server-0:0", "server-1:0"]
    assert asked_ids(cluster, Push, "user") == asked_ids(cluster, Push, "item") == set(range(50))
    assert client.clock == 1


def test_forwards_without_grad_push_nothing(client: ps.Client, cluster: InProcess) -> None:
    model, optimizer = rows_model(client)
    cluster.calls.clear()
    with torch.no_grad():
        model(IDS)
    model.eval()(IDS)  # with grad, but nobody goes back from it
    optimizer.step()
    assert [body for _, body in cluster.calls if isinstance(body, Push)] == []
    assert client.clock == 1  # the step ends all the same


def test_a_closure_is_run_with_gradients(client: ps.Client) -> None:
    model, optimizer = rows_model(client)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(IDS).sum() + 3
        loss.backward()
        return loss.item()  # type: ignore[no-any-return]

    assert optimizer.step(closure) == 3
    assert optimizer.step(closure) == 3 - 5  # rows 1 and 2 have gone to -2 and -1


def test_a_gradient_with_a_graph_of_its_own_is_pushed(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    loss = model(IDS).exp().sum()
    with pytest.warns(UserWarning, match="create_graph"):
        loss.backward(create_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    assert row(client) == -2


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_is_refused_and_nothing_is_pushed(client: ps.Client, value: float) -> None:
    model = Towers()
    optimizer = trained(client, model)
    (model(IDS) * value).sum().backward()
    with pytest.raises(ps.InvalidRequest, match="not finite"):
        optimizer.step()
    optimizer.zero_grad()
    assert client.pull("user", [1]).tolist() == [[1, 1]]
    assert client.clock == 0


def test_a_rank_without_a_gradient_ends_the_step_all_the_same() -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 2, ps.Sync()) as client, cluster.connect(1, 2, ps.Sync()) as other:
        model, optimizer = rows_model(client)
        _, idle = rows_model(other)
        model(IDS).sum().backward()
        optimizer.step()
        idle.step()
        with ThreadPoolExecutor() as pool:
            values = list(pool.map(row, (client, other)))
    assert values == [-1, -1]  # the mean over both ranks


# --- faults ---


@pytest.mark.parametrize("mode", [ps.Sync(), ps.Async()], ids=str)
@pytest.mark.parametrize(("body", "is_lost"), [(Push, False), (Push, True), (Finish, False)], ids=str)
def test_a_step_called_again_after_an_error_counts_once(mode: ps.Mode, body: type, is_lost: bool) -> None:
    with one_worker(mode, servers=1) as (cluster, client):
        model, optimizer = rows_model(client)
        model(IDS).sum().backward()
        if body is Finish:
            client.end_step()  # so that there is a step to tell of ahead of the push
        fault = Fault(body, is_lost=is_lost, count=10**6)
        cluster.faults.append(fault)
        with pytest.raises(ps.Unreachable):
            optimizer.step()
        cluster.faults.clear()
        assert fault.fired
        optimizer.step()
        optimizer.zero_grad()
        client.flush()
        assert row(client) == -2


def test_a_step_that_one_server_refused_goes_on_under_its_name() -> None:
    cluster = InProcess(2, rows_max=2)
    with cluster.connect(0, 1, ps.Async()) as client:
        model, optimizer = rows_model(client)
        shard_map = client._worker.shard_map
        assert shard_map is not None
        owners = shard_map.owners[buckets_of(table_salt("rows"), np.arange(20, dtype=np.uint64))]
        few, many = np.flatnonzero(owners == 0)[:1], np.flatnonzero(owners == 1)[:3]
        model(torch.from_numpy(np.concatenate([few, many]))).sum().backward()
        for _ in range(2):
            with pytest.raises(ps.PushPartlyTaken):
                optimizer.step()
        assert row(client, few[0]) == -1
        client.disconnect()


# --- dense parameters ---


def test_a_part_of_the_model_called_alone_has_the_weights_of_the_step(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model)
    for tower in (model.user, model.item):
        tower(IDS).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        tower(IDS)
        assert model.layer.weight.flatten().tolist() == servers_values(client, optimizer)[:4]


def test_a_state_dict_has_the_weights_of_the_last_step(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model)
    model(IDS).sum().backward()
    optimizer.step()
    assert model.state_dict()["layer.weight"].flatten().tolist() == servers_values(client, optimizer)[:4]
    assert torch.equal(model.layer.state_dict()["weight"], model.layer.weight)


def test_parameters_without_a_gradient_stay(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model)
    start = servers_values(client, optimizer)
    model.user_rows(IDS).sum().backward()  # reaches no layer
    optimizer.step()
    assert servers_values(client, optimizer) == start


def test_frozen_parameters_stay_out(client: ps.Client) -> None:
    model = Towers()
    model.layer.bias.requires_grad_(False)
    bias = model.layer.bias.clone()
    optimizer = trained(client, model)
    assert optimizer.dense[0].parameters == [model.layer.weight]
    model(IDS).sum().backward()
    optimizer.step()
    model(IDS)
    assert torch.equal(model.layer.bias, bias)


def test_a_frozen_embedding_is_not_pushed(client: ps.Client, cluster: InProcess) -> None:
    model = Towers()
    model.user_rows.requires_grad_(False)
    optimizer = trained(client, model)
    model(IDS).sum().backward()
    optimizer.step()
    assert asked_ids(cluster, Push, "user") == set()
    assert asked_ids(cluster, Push, "item") == {1, 2}


def test_tied_parameters_are_one(client: ps.Client) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    optimizer = trained(client, model)
    assert len(optimizer.dense[0].parameters) == 3


def test_a_model_without_embeddings_and_one_without_layers_train(client: ps.Client) -> None:
    layer = nn.Linear(1, 1)
    start = layer.weight.item()
    dense = trained(client, layer)
    layer(torch.ones(1, 1)).sum().backward()
    dense.step()
    assert layer.state_dict()["weight"].item() == pytest.approx(start - 1)
    model, sparse = rows_model(client)
    assert sparse.dense == ()
    model(IDS).sum().backward()
    sparse.step()
    assert row(client) == -2


def test_the_dense_table_may_have_a_mode_of_its_own() -> None:
    with one_worker(ps.Async()) as (cluster, client):
        model = Towers()
        optimizer = ServerOptimizer(model, dense=ps.SGD(1.0), sparse=ps.SGD(1.0), dense_mode=ps.Sync(), client=client)
        model(IDS).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model(IDS)
        assert {shard.step for shard in cluster.shards.values()} == {1}
        assert model.layer.weight.flatten().tolist() == servers_values(client, optimizer)[:4]


def test_fetch_brings_the_weights_that_a_step_made(client: ps.Client) -> None:
    model = nn.Linear(2, 1)
    optimizer = ServerOptimizer(model, dense=ps.SGD(lr=1.0), client=client)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.fetch()
    assert torch.equal(model.weight.detach(), before - 1.0)

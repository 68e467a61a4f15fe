"""ServerOptimizer as a torch optimizer: its groups, schedulers, states and steps, and what else a torch script does with one."""

import copy
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import ps_worker as ps
from beside_torch import asked_ids, one_worker, trained
from inprocess import Fault, InProcess
from ps_proto.requests import Finish, Push
from ps_worker.optim import ServerOptimizer
from sharding.hashing import buckets_of, table_salt

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


@pytest.fixture
def joined() -> Iterator[tuple[InProcess, ps.Client]]:
    with one_worker() as both:
        yield both


@pytest.fixture
def cluster(joined: tuple[InProcess, ps.Client]) -> InProcess:
    return joined[0]


@pytest.fixture
def client(joined: tuple[InProcess, ps.Client]) -> ps.Client:
    return joined[1]


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
    assert optimizer.dense is not None
    return client.pull("dense", optimizer.dense.ids).flatten().tolist()


# --- a step ----------------------------------------------------------------------------------------------------------------------


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


def test_several_forwards_add_up(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    for _ in range(3):
        model(IDS).sum().backward()
    optimizer.step()
    assert [row(client, id) for id in (1, 2, 3)] == [-6, -3, 0]


def test_leaves_are_the_params_of_their_group_from_forward_to_zero_grad(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model)
    dense, user, item = optimizer.param_groups
    assert [group["table"] for group in optimizer.param_groups] == ["dense", "user", "item"]
    assert dense["params"] == list(model.layer.parameters())
    model(IDS)
    model.user(IDS)
    assert [len(group["params"]) for group in (user, item)] == [2, 1]
    assert [tuple(leaf.shape) for leaf in user["params"]] == [(2, 2), (2, 2)]
    optimizer.zero_grad()
    assert user["params"] == item["params"] == []


def test_zero_grad_without_a_step_drops_what_was_computed(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    model(IDS).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert row(client) == 0


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_between_forward_and_backward_loses_nothing(client: ps.Client, set_to_none: bool) -> None:
    model, optimizer = rows_model(client)
    for step in range(3):
        loss = model(IDS).sum()
        optimizer.zero_grad(set_to_none)
        loss.backward()
        assert len(optimizer.param_groups[0]["params"]) == 1
        optimizer.step()
        assert row(client) == -2 * (step + 1)


def test_zero_grad_between_two_backwards_of_a_graph_forgets_the_first(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    loss = model(IDS).sum()
    loss.backward(retain_graph=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert row(client) == -2


def test_gradients_are_not_pushed_a_second_time(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    model(IDS).sum().backward()
    optimizer.step()
    model.zero_grad()  # does not know the rows
    model(IDS).sum().backward()
    words = r"zero_grad\(\) is not called since the last step\(\), but must be called .* on the optimizer"
    with pytest.raises(ps.InvalidRequest, match=words):
        optimizer.step()
    assert row(client) == -2


def test_a_closure_is_run_with_gradients(client: ps.Client) -> None:
    model, optimizer = rows_model(client)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(IDS).sum() + 3
        loss.backward()
        return loss.item()  # type: ignore[no-any-return]

    assert optimizer.step(closure) == 3
    assert optimizer.step(closure) == 3 - 5  # rows 1 and 2 have gone to -2 and -1


def test_clipping_the_norm_over_all_groups_counts_the_rows(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model)
    model(IDS).sum().backward()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(params, 0.5)
    assert norm > 0.5
    before = np.concatenate([client.pull(name, [1, 2]).ravel() for name in ("user", "item")] + [servers_values(client, optimizer)])
    optimizer.step()
    after = np.concatenate([client.pull(name, [1, 2]).ravel() for name in ("user", "item")] + [servers_values(client, optimizer)])
    assert np.linalg.norm(after - before) == pytest.approx(0.5, rel=1e-4)


def test_a_gradient_with_a_graph_of_its_own_is_pushed(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    loss = model(IDS).exp().sum()
    with pytest.warns(UserWarning, match="create_graph"):
        loss.backward(create_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    assert row(client) == -2


def test_a_gradient_scaler_unscales_the_rows_too(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step, factor in enumerate((1.0, float("inf"), 1.0)):
        scaler.scale(model(IDS).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert row(client) == (-2, -2, -4)[step]  # the infinite one is skipped


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


def test_leaves_are_let_go_of_by_zero_grad(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    model(IDS).sum().backward()
    leaf = weakref.ref(optimizer.param_groups[0]["params"][0])
    optimizer.step()
    optimizer.zero_grad()
    assert leaf() is None  # at once, by no cycle


# --- faults ----------------------------------------------------------------------------------------------------------------------


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


# --- dense parameters ------------------------------------------------------------------------------------------------------------


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
    assert optimizer.param_groups[0]["params"] == [model.layer.weight]
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
    assert len(optimizer.param_groups[0]["params"]) == 3


def test_a_model_without_embeddings_and_one_without_layers_train(client: ps.Client) -> None:
    layer = nn.Linear(1, 1)
    start = layer.weight.item()
    dense = trained(client, layer)
    layer(torch.ones(1, 1)).sum().backward()
    dense.step()
    assert layer.state_dict()["weight"].item() == pytest.approx(start - 1)
    model, sparse = rows_model(client)
    assert sparse.dense is None
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


def test_two_models_in_one_job_need_two_dense_names(client: ps.Client) -> None:
    trained(client, nn.Linear(2, 1))
    with pytest.raises(ps.InvalidRequest, match="or another dense_name"):
        trained(client, nn.Linear(3, 1))
    ServerOptimizer(nn.Linear(3, 1), dense=ps.SGD(1.0), dense_name="second", client=client)


def test_a_second_optimizer_of_a_model_goes_on_with_it(client: ps.Client) -> None:
    model = Towers()
    trained(client, model)
    optimizer = ServerOptimizer(model, dense=ps.SGD(0.5), sparse=ps.SGD(0.5), client=client)
    before = client.pull("user", [1])
    model(IDS).sum().backward()
    gradient = optimizer.tables["user"].gradient()
    assert gradient is not None
    optimizer.step()
    np.testing.assert_array_equal(client.pull("user", [1]), before - np.float32(0.5) * gradient[1][:1])


# --- hyperparameters -------------------------------------------------------------------------------------------------------------


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=5),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3)),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 4.0, total_steps=6, cycle_momentum=False),
}


@pytest.mark.parametrize("mode", [ps.Sync(), ps.Async()], ids=str)
@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_reach_the_servers(mode: ps.Mode, schedule: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]) -> None:
    with one_worker(mode) as (_, client):
        model = nn.Sequential(ps.nn.Embedding(None, 1, name="rows", initializer=ps.Zeros()), nn.Linear(1, 1))
        optimizer = ServerOptimizer(model, dense=ps.SGD(2.0), sparse=ps.SGD(1.0), client=client)
        scheduler = schedule(optimizer)
        for _ in range(5):
            rates = {group["table"]: group["lr"] for group in optimizer.param_groups}
            before, bias = row(client), servers_values(client, optimizer)[1]
            model[0](torch.tensor([1])).sum().backward()
            model[1](torch.zeros(1, 1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            assert before - row(client) == pytest.approx(rates["rows"], abs=1e-6)
            assert bias - servers_values(client, optimizer)[1] == pytest.approx(rates["dense"], abs=1e-6)


def test_a_plateau_lowers_the_rate_of_every_group(client: ps.Client) -> None:
    optimizer = trained(client, Towers())
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    for _ in range(2):
        scheduler.step(1.0)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1] * 3)


@pytest.mark.parametrize("rate", [0.25, torch.tensor(0.25), np.float32(0.25)], ids=lambda rate: type(rate).__name__)
def test_each_table_has_hyperparameters_of_its_own(client: ps.Client, rate: Any) -> None:
    model = nn.ModuleList([ps.nn.Embedding(None, 1, name=name, initializer=ps.Zeros()) for name in ("rows", "others")])
    optimizer = trained(client, model)
    optimizer.param_groups[1]["lr"] = rate
    (model[0](IDS) + model[1](IDS)).sum().backward()
    optimizer.step()
    assert row(client) == -2
    assert client.pull("others", [1]).item() == -0.5


def test_all_numbers_of_an_optimizer_are_in_its_groups(client: ps.Client) -> None:
    model = Towers()
    optimizer = ServerOptimizer(model, dense=ps.Adam(0.1, (0.8, 0.9), 1e-6), sparse=ps.Adagrad(0.2, 0.5, 1e-3), client=client)
    dense, user, _ = optimizer.param_groups
    assert {name: dense[name] for name in ("lr", "betas", "eps")} == {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6}
    assert {name: user[name] for name in ("lr", "initial_accumulator_value", "eps")} == {
        "lr": 0.2,
        "initial_accumulator_value": 0.5,
        "eps": 1e-3,
    }
    assert "table: user" in repr(optimizer)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), "0.1", None])
def test_a_rate_that_is_none_is_refused_at_the_step(client: ps.Client, rate: Any) -> None:
    _, optimizer = rows_model(client)
    optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(ps.InvalidRequest, match=r"SGD.lr is"):
        optimizer.step()
    assert client.clock == 0


# --- state dicts -----------------------------------------------------------------------------------------------------------------


def test_a_state_dict_carries_the_hyperparameters_and_no_leaf(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    optimizer.param_groups[0]["lr"] = 0.25
    model(IDS).sum().backward()
    state = copy.deepcopy(optimizer.state_dict())
    assert state["state"] == {}
    optimizer.param_groups[0]["lr"] = 1.0
    optimizer.zero_grad()
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["params"] == []
    model(IDS).sum().backward()
    assert len(optimizer.param_groups[0]["params"]) == 1  # still the list that forwards add to
    optimizer.step()
    assert row(client) == -0.5


def test_a_scheduler_goes_on_after_both_states_are_loaded(client: ps.Client) -> None:
    _, optimizer = rows_model(client)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    states = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    optimizer.param_groups[0]["lr"] = 9.0
    optimizer.load_state_dict(states[0])
    again = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    again.load_state_dict(states[1])
    optimizer.step()
    again.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([{"lr": 1.0, "params": [0]}], r"tables of the state_dict is \[None\], but must be \['rows'\], as of this optimizer"),
        ([{"table": "user", "lr": 1.0, "params": []}], r"tables of the state_dict is \['user'\]"),
        ([], r"tables of the state_dict is \[\]"),
        ([{"table": "rows", "params": []}], r"state_dict of table 'rows' is \['params', 'table'\], but must be one that has \['lr'\]"),
    ],
)
def test_the_state_of_another_optimizer_is_refused(client: ps.Client, groups: list[dict[str, Any]], words: str) -> None:
    _, optimizer = rows_model(client)
    with pytest.raises(ps.InvalidRequest, match=words):
        optimizer.load_state_dict({"state": {}, "param_groups": groups})


# --- what is refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda client: ServerOptimizer(as_any(nn.Linear(1, 1).parameters()), client=client),
            r"model is generator, but must be the model itself",
        ),
        (
            lambda client: ServerOptimizer(nn.Linear(1, 1), dense=as_any(0.1), client=client),
            r"dense is 0.1, but must be a server-side optimizer",
        ),
        (lambda client: ServerOptimizer(nn.Linear(1, 1), sparse=as_any(0.0), client=client), r"sparse is 0.0"),
        (lambda client: ServerOptimizer(nn.Linear(1, 1), dense=as_any(torch.optim.Adam), client=client), r"dense is <class"),
        (lambda client: ServerOptimizer(nn.ReLU(), client=client), r"model is ReLU, but must be a module with parameters"),
        (
            lambda client: ServerOptimizer(Towers(), dense_name="user", client=client),
            r"dense_name is 'user', which is an embedding's table",
        ),
        (lambda client: ServerOptimizer(nn.Linear(1, 1), dense_name="", client=client), r"TableSpec.name is ''"),
        (lambda client: ServerOptimizer(nn.Linear(1, 1)), r"call ps.init\(\)"),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused_with_a_sentence(client: ps.Client, make: Callable[[ps.Client], object], words: str) -> None:
    with pytest.raises(ps.InvalidRequest, match=words):
        make(client)


def test_a_group_cannot_be_added(client: ps.Client) -> None:
    optimizer = trained(client, nn.Linear(1, 1))
    with pytest.raises(ps.InvalidRequest, match=r"param_group is added, but must be in the model before the optimizer is made"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def test_an_observer_cannot_train(cluster: InProcess) -> None:
    with cluster.connect() as observer, pytest.raises(ps.ObserverCannot):
        trained(observer, nn.Linear(1, 1))


def test_a_closed_client_says_so(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model)
    model(IDS).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    client.close()
    for attempt in (lambda: model(IDS), optimizer.step, model.state_dict):
        with pytest.raises(ps.ClientClosed):
            attempt()


# --- what would train on wrong weights, or none, without a word -------------------------------------------------------------------


def test_gradients_of_older_weights_are_refused(client: ps.Client) -> None:
    model = nn.Linear(2, 1)
    optimizer = trained(client, model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.forward(torch.ones(1, 2)).sum().backward()  # type: ignore[no-untyped-call]  # round the hook that fetches
    with pytest.raises(ps.InvalidRequest, match="of the weights of step 0, in step 1, but must be of this step's: call the model"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.fetch()
    model.forward(torch.ones(1, 2)).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert client.clock == 2


def test_a_parameter_that_is_unfrozen_later_is_refused_once_it_has_a_gradient(client: ps.Client) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = trained(client, model)
    model.requires_grad_(True)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ps.InvalidRequest, match="one that was frozen, but must be unfrozen before"):
        optimizer.step()


def test_loading_a_state_after_the_optimizer_was_made_is_refused(client: ps.Client) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    state = {name: value + 1 for name, value in model.state_dict().items()}
    trained(client, model)
    part = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    loads: list[Callable[[], object]] = [lambda: model.load_state_dict(state), lambda: model[0].load_state_dict(part)]
    for load in loads:
        with pytest.raises(ps.InvalidRequest, match=r"called before it, or ps.load"):
            load()


def test_fetch_brings_the_weights_that_a_step_made(client: ps.Client) -> None:
    model = nn.Linear(2, 1)
    optimizer = ServerOptimizer(model, dense=ps.SGD(lr=1.0), client=client)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.fetch()
    assert torch.equal(model.weight.detach(), before - 1.0)


def test_one_cycle_finds_the_betas_of_adam(client: ps.Client) -> None:
    model = nn.Linear(2, 1)
    optimizer = ServerOptimizer(model, dense=ps.Adam(lr=0.1), client=client)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    assert optimizer.param_groups[0]["betas"][0] != 0.9

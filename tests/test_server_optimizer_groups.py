"""The groups of a ServerOptimizer: hyperparameters that reach the servers, schedulers, state dicts."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import ps_worker as ps
from beside_torch import one_worker, trained
from ps_worker.optim import ServerOptimizer
from towers import IDS, Towers, row, rows_model, servers_values

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


@pytest.mark.parametrize("schedule", ["one cycle", "cyclic"])
def test_a_momentum_that_all_groups_have_is_cycled(client: ps.Client, schedule: str) -> None:
    model = Towers()
    given = {"dense": ps.SGD(0.01, momentum=0.9), "sparse": ps.RMSprop(0.01, momentum=0.9)}
    optimizer = ServerOptimizer(model, client=client, **given)  # type: ignore[arg-type]
    if schedule == "one cycle":
        scheduler: lr_scheduler.LRScheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=8)
    else:
        scheduler = lr_scheduler.CyclicLR(optimizer, base_lr=0.001, max_lr=0.01, step_size_up=3)
    seen = []
    for _ in range(4):
        model(IDS).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append([group["momentum"] for group in optimizer.param_groups])
        scheduler.step()
    assert all(len(set(momenta)) == 1 for momenta in seen)
    assert len({momenta[0] for momenta in seen}) >= 3
    assert optimizer._settings["user"].hyperparameters()["momentum"] == seen[-1][1]  # as the last step told it


def test_one_cycle_says_so_where_there_is_no_momentum_to_cycle(client: ps.Client) -> None:
    optimizer = ServerOptimizer(Towers(), dense=ps.SGD(0.01), sparse=ps.Adagrad(0.01), client=client)
    with pytest.raises(ValueError, match="momentum or beta1"):
        lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=8)
    lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=8, cycle_momentum=False)


def test_flags_are_flags_and_the_numbers_of_decorators_are_there(client: ps.Client) -> None:
    sparse = ps.ClippedByRowNorm(ps.DelayCompensated(ps.RowWiseAdagrad(0.1), compensation=0.5), clip_row_norm=2.0)
    optimizer = ServerOptimizer(Towers(), dense=ps.SGD(0.1, momentum=0.5, nesterov=True), sparse=sparse, client=client)
    dense, user, _ = optimizer.param_groups
    assert dense["nesterov"] is True
    assert {name: user[name] for name in ("lr", "compensation", "clip_row_norm")} == {"lr": 0.1, "compensation": 0.5, "clip_row_norm": 2.0}
    assert "optimizer" not in user


def test_a_number_that_would_change_what_lies_beside_a_row_is_refused_at_the_step(client: ps.Client) -> None:
    model = ps.nn.Embedding(None, 1, name="rows", initializer=ps.Zeros())
    optimizer = ServerOptimizer(model, sparse=ps.SGD(1.0, momentum=0.5), client=client)
    optimizer.param_groups[0]["momentum"] = 0.0
    model(IDS).sum().backward()
    with pytest.raises(ps.InvalidRequest, match=r"is those of sgd, but must be those of sgd with momentum: what lies beside a row stays"):
        optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.75
    optimizer.step()
    assert row(client) == -2


# --- state dicts ---


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
    assert len(optimizer.param_groups[0]["params"]) == 1  # what GradScaler finds a gradient at
    model(IDS).sum().backward()
    assert len(optimizer.param_groups[0]["params"]) == 2  # still the list that backward adds to
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
        (
            [{"table": "rows", "params": []}],
            r"of table 'rows' is \['params', 'table'\], but must be one that has \['dampening', 'lr', ",
        ),
    ],
)
def test_the_state_of_another_optimizer_is_refused(client: ps.Client, groups: list[dict[str, Any]], words: str) -> None:
    _, optimizer = rows_model(client)
    with pytest.raises(ps.InvalidRequest, match=words):
        optimizer.load_state_dict({"state": {}, "param_groups": groups})

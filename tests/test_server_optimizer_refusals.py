"""What a ServerOptimizer refuses, and with which sentence."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import ps_worker as ps
from beside_torch import trained
from inprocess import InProcess
from ps_worker.optim import ServerOptimizer
from towers import IDS, Towers, as_any


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
        (
            lambda client: ServerOptimizer(nn.ReLU(), client=client),
            r"model is ReLU, but must be a module with embeddings",
        ),
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


# --- what would train on wrong weights, or none, without a word ---


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


def test_a_deep_copy_that_nobody_trains_takes_a_state(client: ps.Client) -> None:
    """As torch's AveragedModel does, when its training is resumed."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    trained(client, model)
    average = torch.optim.swa_utils.AveragedModel(model)
    state = {name: value + 1 for name, value in average.state_dict().items()}
    average.load_state_dict(state)
    assert torch.equal(average.get_parameter("module.1.bias"), state["module.1.bias"])
    with pytest.raises(ps.InvalidRequest, match=r"called before it, or ps.load"):
        model.load_state_dict(model.state_dict())


def test_two_optimizers_of_one_loss_are_refused_with_what_to_do(client: ps.Client) -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    first = trained(client, one)
    second = ServerOptimizer(other, dense=ps.SGD(1.0), dense_name="other", client=client)
    (one(torch.ones(1, 1)) + other(torch.ones(1, 1))).sum().backward()
    first.step()
    with pytest.raises(ps.InvalidRequest, match=r"models that share a loss need one ServerOptimizer together"):
        second.step()

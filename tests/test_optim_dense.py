"""Dense parameters as a table of blocks: what lies where, whose values count, and what is refused."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import ps_worker as ps
from beside_torch import one_worker
from inprocess import InProcess
from ps_proto.requests import Pull
from ps_worker.optim.dense import BLOCK, DenseBlocks, fetch
from ps_worker.optim.fetching import FetchFirst
from ps_worker.optim.gradients import gradients

SGD = ps.SGD(1.0)


def blocks_of(model: nn.Module, name: str = "dense", mode: ps.Mode | None = None) -> DenseBlocks:
    return DenseBlocks(list(model.named_parameters()), name, mode)


def linear(seed: int, inputs: int = 3, outputs: int = 2) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs)


def values(model: nn.Module) -> list[float]:
    return [number for parameter in model.parameters() for number in parameter.detach().flatten().tolist()]


def test_parameters_lie_one_after_another_and_the_last_block_ends_in_zeros() -> None:
    model = nn.Sequential(linear(1, 600, 1), linear(2))
    dense = blocks_of(model)
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    ids, gradient = gradients([], [dense])["dense"]
    assert gradient.dtype == np.float32
    assert gradient.shape == (2, BLOCK)  # 600 + 1 + 6 + 2 numbers
    assert ids.tolist() == [0, 1]
    assert gradient.flatten()[:609].tolist() == values(model)
    assert not gradient.flatten()[609:].any()


def test_a_gradient_of_none_counts_as_zeros() -> None:
    model = linear(1)
    model.bias.grad = torch.ones(2)
    assert gradients([], [blocks_of(model)])["dense"][1].flatten()[:9].tolist() == [0] * 6 + [1, 1, 0]


def test_what_was_loaded_is_what_a_pull_returned() -> None:
    model = nn.Sequential(linear(1, 600, 1), linear(2))
    dense = blocks_of(model)
    rows = np.arange(2 * BLOCK, dtype=np.float32).reshape(2, BLOCK)
    dense.load(rows)
    assert values(model) == list(range(609))
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())


def test_rank_0_gives_the_start_values_and_all_ranks_read_them() -> None:
    cluster = InProcess(2)
    models = [linear(rank) for rank in range(2)]
    start = values(models[0])
    with cluster.connect(0, 2, ps.Sync()) as first, cluster.connect(1, 2, ps.Sync()) as second:
        for model, client in zip(models, (first, second), strict=True):
            blocks_of(model).create(client, SGD)
        assert values(models[0]) == values(models[1]) == start


def test_who_connects_again_takes_the_servers_values() -> None:
    with one_worker(ps.Async()) as (cluster, client):
        dense = blocks_of(model := linear(1))
        dense.create(client, SGD)
        client.push("dense", dense.ids, np.ones((1, BLOCK), np.float32))
        client.end_step()
        trained = [number - 1 for number in torch.tensor(values(model)).tolist()]
        client.disconnect()
        with cluster.connect(0, 1, ps.Async()) as again:
            other = linear(2)
            blocks_of(other).create(again, SGD)
            assert values(other) == pytest.approx(trained, abs=1e-7)


def test_half_and_double_parameters_have_float32_rows() -> None:
    model = nn.Sequential(linear(1).half(), linear(2).double())
    start = [parameter.detach().clone() for parameter in model.parameters()]
    with one_worker() as (_, client):
        blocks_of(model).create(client, SGD)
    assert [parameter.dtype for parameter in model.parameters()] == [torch.float16] * 2 + [torch.float64] * 2
    for parameter, before in zip(model.parameters(), start, strict=True):
        torch.testing.assert_close(parameter.detach(), before.float().to(parameter.dtype), rtol=0, atol=0)


def test_a_step_fetches_once_and_the_next_step_again() -> None:
    with one_worker() as (cluster, client):
        dense = blocks_of(linear(1))
        dense.create(client, SGD)
        cluster.calls.clear()
        fetch([dense], client)
        assert cluster.calls == []
        client.end_step()
        fetch([dense], client)
        fetch([dense], client)
        assert len([body for _, body in cluster.calls if isinstance(body, Pull) and body.tables]) == 1
        assert dense.turn == client.turn == 1


def test_rows_asked_for_ahead_are_used_at_their_step_alone() -> None:
    with one_worker() as (_, client):
        dense = blocks_of(model := linear(1))
        dense.create(client, SGD)
        start = values(model)
        for clock, expected in ((1, [7.0] * 8), (9, start)):
            client.end_step()
            ahead = client.pull_async({"dense": dense.ids})
            ahead.result()["dense"][:] = 7.0  # marks what came ahead
            dense.expect(clock, ahead)
            fetch([dense], client)
            assert values(model) == expected


@pytest.mark.parametrize("other", [linear(1, 3, 4), nn.Sequential(linear(1)), nn.Linear(3, 2, bias=False)], ids=["shape", "name", "fewer"])
def test_another_model_of_one_name_is_refused_and_another_name_helps(other: nn.Module) -> None:
    with one_worker() as (_, client):
        blocks_of(linear(1)).create(client, SGD)
        words = r"names and shapes of the dense parameters is .*weight.*, but must be .* table 'dense', or another dense_name"
        with pytest.raises(ps.InvalidRequest, match=words):
            blocks_of(other).create(client, SGD)
        blocks_of(other, "second").create(client, SGD)


def test_another_kind_of_optimizer_or_mode_is_a_table_mismatch() -> None:
    with one_worker() as (_, client):
        blocks_of(linear(1)).create(client, SGD)
        with pytest.raises(ps.TableMismatch, match="optimizer"):
            blocks_of(linear(1)).create(client, ps.Adam())
        with pytest.raises(ps.TableMismatch, match="mode"):
            blocks_of(linear(1), mode=ps.Async()).create(client, SGD)


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        (nn.Parameter(torch.zeros(2, dtype=torch.complex64)), r"dtype of parameter 'w' is torch.complex64"),
        (nn.UninitializedParameter(), r"parameter 'w' is without a shape, but must be given its shape before"),
    ],
)
def test_parameters_that_no_row_can_hold_are_refused(parameter: nn.Parameter, words: str) -> None:
    with pytest.raises(ps.InvalidRequest, match=words):
        DenseBlocks([("w", parameter)], "dense", None)


def test_a_copied_hook_does_nothing() -> None:
    with one_worker() as (_, client):
        dense = blocks_of(linear(1))
        dense.create(client, SGD)
        client.end_step()
        copy.deepcopy(FetchFirst([dense], client))()
        assert dense.turn == 0
        FetchFirst([dense], client)()
        assert dense.turn == 1

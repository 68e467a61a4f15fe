"""ps.clip_grad_norm_ beside torch's on the dense equivalent: every row once, with the sum of its gradients."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ps_worker as ps
from beside_torch import give_rows, trained
from ps_worker.optim import ServerOptimizer
from ps_worker.optim.clipping import NormNotFinite
from towers import IDS, Towers, as_any, rows_model

ROWS = 6


class PlainTowers(Towers):
    """Towers over torch's embeddings."""

    def __init__(self, model: Towers) -> None:
        super().__init__()
        self.user_rows: Any = nn.Embedding(ROWS, 2, _weight=torch.full((ROWS, 2), 1.0))
        self.item_rows: Any = nn.Embedding(ROWS, 2, _weight=torch.full((ROWS, 2), 2.0))
        self.layer = copy.deepcopy(model.layer)


def gradients(model: Towers) -> dict[str, Tensor]:
    """Return the gradients of ours, by name, rows as torch has them."""
    found = {name: parameter.grad.clone() for name, parameter in model.layer.named_parameters() if parameter.grad is not None}
    for module in (model.user_rows, model.item_rows):
        ((name, table),) = module.tables.items()
        whole = torch.zeros(ROWS, 2)
        for ids, gradient in table.leaves.in_order():
            whole.index_add_(0, torch.from_numpy(ids.view(np.int64)), gradient)
        found[name] = whole
    return found


def assert_clipped_alike(model: Towers, plain: PlainTowers, max_norm: float, norm_type: float) -> None:
    assert plain.user_rows.weight.grad is not None
    ours = ps.clip_grad_norm_(model, max_norm, norm_type)
    theirs = nn.utils.clip_grad_norm_(plain.parameters(), max_norm, norm_type)
    torch.testing.assert_close(ours, theirs)
    found = gradients(model)
    wanted: dict[str, Any] = {name: parameter.grad for name, parameter in plain.layer.named_parameters()}
    wanted |= {"user": plain.user_rows.weight.grad, "item": plain.item_rows.weight.grad}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_the_norm_and_the_gradients_are_torchs(client: ps.Client, norm_type: float, max_norm: float) -> None:
    model = Towers()
    trained(client, model)
    plain = PlainTowers(model)
    for net in (model, plain):
        net(IDS).sum().backward()
    assert_clipped_alike(model, plain, max_norm, norm_type)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_rows_of_several_forwards_count_once_each(client: ps.Client, norm_type: float) -> None:
    model = Towers()
    trained(client, model)
    plain = PlainTowers(model)
    for net in (model, plain):
        for ids, sign in (([1, 2, 1], 1.0), ([2, 5], -2.0), ([1, 5], 3.0)):  # sums that cancel make a norm of parts another one
            (net(torch.tensor(ids)).sum() * sign).backward()
    assert_clipped_alike(model, plain, 0.5, norm_type)


def test_what_was_clipped_is_pushed(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model)
    start = [client.pull(name, np.arange(3)) for name in ("user", "item")] + [client.pull("dense", optimizer.dense[0].ids)]
    model(IDS).sum().backward()
    model(IDS).sum().backward()
    assert ps.clip_grad_norm_(model, 0.25) > 0.25
    optimizer.step()
    end = [client.pull(name, np.arange(3)) for name in ("user", "item")] + [client.pull("dense", optimizer.dense[0].ids)]
    moved = np.concatenate([(a - b).ravel() for a, b in zip(start, end, strict=True)])
    assert np.linalg.norm(moved) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("parts", ["none", "list"])
def test_it_reaches_dense_parameters_whoever_trains_them(client: ps.Client, parts: str) -> None:
    model = Towers()
    dense: Any = None
    if parts == "list":
        dense = [([parameter], ps.SGD(1.0)) for parameter in model.layer.parameters()]
    ServerOptimizer(model, dense=dense, sparse=ps.SGD(1.0), client=client)
    plain = PlainTowers(model)
    for net in (model, plain):
        net(IDS).sum().backward()
    assert_clipped_alike(model, plain, 0.5, 2.0)


def test_torchs_own_clips_the_groups_where_no_row_repeats(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model)
    model(IDS).sum().backward()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    norm = nn.utils.clip_grad_norm_(params, 0.5)
    assert norm > 0.5
    torch.testing.assert_close(ps.clip_grad_norm_(model, 0.5).item(), 0.5, rtol=1e-4, atol=0)


def test_without_any_gradient_the_norm_is_0(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    assert ps.clip_grad_norm_(model, 1.0).item() == 0
    model(IDS[:0]).sum().backward()
    assert ps.clip_grad_norm_(model, 1.0, math.inf).item() == 0
    optimizer.step()


def test_half_precision_gradients_have_a_float32_norm(client: ps.Client) -> None:
    model = nn.Linear(8, 1, bias=False).half()
    trained(client, model)
    model.weight.grad = torch.full((1, 8), 60_000.0, dtype=torch.float16)  # whose norm no float16 holds
    norm = ps.clip_grad_norm_(model, 1.0)
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(60_000 * 8**0.5, rel=1e-3)
    torch.testing.assert_close(model.weight.grad.float(), torch.full((1, 8), 8**-0.5), rtol=2e-3, atol=0)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_an_error_if_asked_for(client: ps.Client, value: float) -> None:
    model, optimizer = rows_model(client)
    (model(IDS).sum() * value).backward()
    before = [gradient.clone() for _, gradient in model.tables["rows"].leaves.in_order()]
    with pytest.raises(NormNotFinite, match=r"norm of the gradients is (inf|nan), but must be finite") as raised:
        ps.clip_grad_norm_(model, 1.0, error_if_nonfinite=True)
    assert isinstance(raised.value, RuntimeError)
    after = [gradient for _, gradient in model.tables["rows"].leaves.in_order()]
    torch.testing.assert_close(after, before, equal_nan=True)
    assert not math.isfinite(ps.clip_grad_norm_(model, 1.0).item())
    optimizer.zero_grad()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((nn.Linear(1, 1).parameters(), 1.0), r"model is generator, but must be the model itself"),
        ((nn.Linear(1, 1), 1.0, 0.5), r"norm_type is 0.5, but must be at least 1"),
        ((nn.Linear(1, 1), -1.0), r"max_norm is -1.0, but must be at least 0"),
        ((nn.Linear(1, 1), math.nan), r"max_norm is nan"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ps.InvalidRequest, match=words):
        ps.clip_grad_norm_(*as_any(arguments))


@pytest.mark.usefixtures("process_group")
def test_under_distributed_data_parallel_the_greatest_norm_of_a_rank_counts(client: ps.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Towers()
    ServerOptimizer(model, dense=None, sparse=ps.SGD(1.0), client=client)
    wrapped = DistributedDataParallel(model)
    wrapped(IDS).sum().backward()
    norm = ps.clip_grad_norm_(wrapped, 1e6)
    assert norm.item() == ps.clip_grad_norm_(model, 1e6).item()  # alone there is no other
    told: list[float] = []

    def all_reduce(tensor: Tensor, op: object, group: object) -> None:
        told.append(tensor.item())
        tensor.fill_(4 * norm)  # another rank's

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    before = gradients(model)
    assert ps.clip_grad_norm_(wrapped, norm.item()).item() == pytest.approx(4 * norm.item())
    assert told == [norm.item()]
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, before[name] / 4)


def test_rows_given_in_another_order_have_the_same_bits(client: ps.Client) -> None:
    model = Towers()
    trained(client, model)
    give_rows(client, "user", torch.arange(12.0).reshape(6, 2))
    outputs = [model(torch.tensor(ids)).sum() for ids in ([1, 2], [2, 3], [3, 1])]
    norms = []
    for order in (outputs, outputs[::-1]):
        for loss in order:
            loss.backward(retain_graph=True)
        norms.append(ps.clip_grad_norm_(model, 1e9).item())
        for table in (model.user_rows.tables["user"], model.item_rows.tables["item"]):
            for _, gradient in table.leaves.in_order():
                gradient.zero_()
        model.zero_grad()
    assert norms[0] == norms[1]

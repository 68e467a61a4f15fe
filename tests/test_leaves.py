"""Row leaves from backward to zero_grad(): what adds up, what is dropped, and what is let go of."""

import weakref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from beside_torch import asked_ids, one_worker, trained
from inprocess import InProcess
from ps_proto.requests import Ids, Push
from ps_worker.nn.leaves import Leaves
from towers import IDS, Towers, row, rows_model


def pushed_sizes(cluster: InProcess, table: str) -> int:
    """Return how many ids of the table all pushes named, repeats counted."""
    return sum(part.ids.size for _, body in cluster.calls if isinstance(body, Push) for part in body.tables if part.table == table)


def leaves_of(table: str, model: nn.Module) -> list[Tensor]:
    """Return the leaves that the table shows its optimizer."""
    tables = [module.tables[table] for module in model.modules() if isinstance(module, ps.nn.RowModule) and table in module.tables]
    return [leaf for leaf in tables[0].leaves.shown if leaf.shape != (1,)]


# --- what adds up ----------------------------------------------------------------------------------------------------------------


def test_several_forwards_add_up(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    for _ in range(3):
        model(IDS).sum().backward()
    optimizer.step()
    assert [row(client, id) for id in (1, 2, 3)] == [-6, -3, 0]


def test_an_id_of_several_forwards_is_pushed_once(client: ps.Client, cluster: InProcess) -> None:
    model, optimizer = rows_model(client)
    for ids in ([1, 2], [2, 3], [3, 1]):
        model(torch.tensor(ids)).sum().backward()
    cluster.calls.clear()
    optimizer.step()
    assert asked_ids(cluster, Push, "rows") == {1, 2, 3}
    assert pushed_sizes(cluster, "rows") == 3
    assert [row(client, id) for id in (1, 2, 3)] == [-2, -2, -2]


def test_parts_of_a_batch_train_as_the_whole_does(client: ps.Client) -> None:
    """Dense and rows: four parts of a batch, each with its share of the loss, and the batch at once."""
    model, twin = Towers(), Towers()
    optimizer = trained(client, model, lr=0.5)
    ids = torch.arange(8) % 5
    for part in torch.split(ids, 2):
        (model(part).sum() / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
    parts = {name: client.pull(name, np.arange(5)) for name in ("user", "item")}
    dense = model.state_dict()["layer.weight"].clone()
    with one_worker() as (_, other):
        optimizer = trained(other, twin, lr=0.5)
        (twin(ids).sum() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        for name, rows in parts.items():
            np.testing.assert_allclose(rows, other.pull(name, np.arange(5)), rtol=1e-5)
        torch.testing.assert_close(twin.state_dict()["layer.weight"], dense)


@pytest.mark.parametrize("mode", [ps.Sync(), ps.Async()], ids=str)
def test_prefetched_forwards_add_up_until_a_step(mode: ps.Mode) -> None:
    with one_worker(mode) as (_, client):
        model, optimizer = rows_model(client)
        batches = [torch.tensor([1, 2]), torch.tensor([2, 3])] * 3
        for number, ids in enumerate(ps.prefetch(batches, ids=lambda ids: {model: ids}), start=1):
            model(ids).sum().backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        assert [row(client, id) for id in (1, 2, 3)] == [-3, -6, -3]
        assert client.clock == 3


def test_gradients_are_summed_in_the_order_of_the_forwards(client: ps.Client) -> None:
    """Backward reaches the last forward first; the bits of a sum must not depend on that."""
    model, optimizer = rows_model(client)
    outputs = [model(torch.tensor([1])).sum() * factor for factor in (1e8, -1e8, 1.0)]
    for output in outputs[::-1]:
        output.backward()
    optimizer.step()
    assert row(client) == -1  # in the other order it is lost


# --- what is dropped -------------------------------------------------------------------------------------------------------------


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
        assert len(leaves_of("rows", model)) == 1
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


# --- what is shown, and let go of ------------------------------------------------------------------------------------------------


def test_leaves_are_the_params_of_their_group_from_backward_to_zero_grad(client: ps.Client) -> None:
    model = Towers()
    optimizer = trained(client, model)
    dense, user, item = optimizer.param_groups
    assert [group["table"] for group in optimizer.param_groups] == ["dense", "user", "item"]
    assert dense["params"][:2] == list(model.layer.parameters())
    loss = model(IDS).sum() + model.user(IDS).sum()
    assert user["params"] == item["params"] == []  # only the graph has them so far
    loss.backward()
    assert [len(group["params"]) for group in (user, item)] == [2, 1]
    assert [tuple(leaf.shape) for leaf in user["params"]] == [(2, 2), (2, 2)]
    optimizer.zero_grad()
    assert user["params"] == item["params"] == []


def test_leaves_are_let_go_of_by_zero_grad(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    model(IDS).sum().backward()
    leaf = weakref.ref(leaves_of("rows", model)[0])
    optimizer.step()
    optimizer.zero_grad()
    assert leaf() is None  # at once, by no cycle


def test_forwards_whose_result_nobody_uses_leave_nothing_behind(client: ps.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = rows_model(client)
    made: list[weakref.ref[Tensor]] = []
    watch = Leaves.watch

    def seen(self: Leaves, ids: Ids, tensor: Tensor) -> None:
        made.append(weakref.ref(tensor))
        watch(self, ids, tensor)

    monkeypatch.setattr(Leaves, "watch", seen)
    for _ in range(5):
        model(IDS)  # an evaluation that forgot no_grad()
    assert [leaf() for leaf in made] == [None] * 5
    model(IDS).sum().backward()
    assert [leaf() for leaf in made[5:]] != [None]
    optimizer.step()
    assert row(client) == -2


def test_a_leaf_of_half_precision_rows_is_float32(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    output = model.half()(IDS)
    assert output.dtype == torch.float16
    (output * 2.0**-12).sum().backward()  # some of float16's numbers below its normal ones
    (leaf,) = leaves_of("rows", model)
    assert leaf.dtype == leaf.grad.dtype == torch.float32  # type: ignore[union-attr]
    optimizer.step()
    assert row(client, 2) == -(2.0**-12)

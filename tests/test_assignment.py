"""Which optimizer has which parameters and tables: lists and None for `dense`, mappings for `sparse`."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ps_worker as ps
from beside_torch import asked_ids, trained
from inprocess import InProcess
from ps_proto.requests import Pull, Push
from ps_worker.optim import ServerOptimizer
from ps_worker.optim.assignment import dense_parts, sparse_optimizers
from towers import IDS, Towers


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 1))


def of(layer: nn.Module, name: str) -> list[nn.Parameter]:
    return [dict(layer.named_parameters())[name]]


def values(model: nn.Module) -> list[float]:
    return [number for parameter in model.parameters() for number in parameter.flatten().tolist()]


def parts_of(model: nn.Module, dense: Any, table: str = "dense") -> dict[str, tuple[str, list[str]]]:
    """Return optimizer and parameters of each dense table."""
    parts = dense_parts(dense, list(model.named_parameters()), table)
    return {part.table: (part.optimizer.kind, [name for name, _ in part.parameters]) for part in parts}


# --- a list for what is dense ----------------------------------------------------------------------------------------------------


def test_each_pair_is_a_table_and_its_parameters_lie_in_the_models_order() -> None:
    model = layers()
    pairs = [
        ([model[2].bias, *model[0].parameters()], ps.SGD()),
        (model[2].weight, ps.Adagrad()),
        (model[1].parameters(), ps.Adam()),
    ]
    assert parts_of(model, pairs, "layers") == {
        "layers": ("sgd", ["0.weight", "0.bias", "2.bias"]),
        "layers.1": ("adagrad", ["2.weight"]),
        "layers.2": ("adam", ["1.weight", "1.bias"]),
    }


def test_one_optimizer_has_all_and_none_has_nothing() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model[0].requires_grad_(False)
    assert parts_of(model, ps.SGD()) == {"dense": ("sgd", ["1.weight", "1.bias"])}
    assert parts_of(model, None) == parts_of(nn.ReLU(), ps.SGD()) == {}


def test_what_wants_no_gradient_may_be_in_a_list_or_not() -> None:
    model = layers()
    model[1].requires_grad_(False)
    without = [(model[0].parameters(), ps.SGD()), (model[2].parameters(), ps.Adam())]
    assert list(parts_of(model, without)) == ["dense", "dense.1"]
    within = [(model[0].parameters(), ps.SGD()), (model[1].parameters(), ps.SGD()), (model[2].parameters(), ps.Adam())]
    assert list(parts_of(model, within)) == ["dense", "dense.2"]  # names say the place in the list, whatever is frozen


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda model: [(model[0].parameters(), ps.SGD())], r"dense is a list without parameter '1.weight', but must be one that has each"),
        (
            lambda model: [(model.parameters(), ps.SGD()), (model[1].parameters(), ps.Adam())],
            r"dense\[1\] is parameter '1.weight', which dense\[0\] has too, but must be each parameter once",
        ),
        (lambda model: [([*model.parameters(), model[0].bias], ps.SGD())], r"dense\[0\] is parameter '0.bias', which dense\[0\] has too"),
        (
            lambda model: [(model.parameters(), ps.SGD()), (nn.Linear(7, 1).parameters(), ps.SGD())],
            r"dense\[1\] is a parameter of shape \[1, 7\] that is not the model's",
        ),
        (lambda model: [model.parameters()], r"dense\[0\] is <generator .*, but must be a pair \(params, optimizer\)"),
        (lambda model: [(model.parameters(), 0.1)], r"the optimizer of dense\[0\] is 0.1, but must be a server-side optimizer"),
        (lambda model: [(3, ps.SGD())], r"the params of dense\[0\] is 3, but must be parameters of the model"),
        (lambda model: [(model.named_parameters(), ps.SGD())], r"the params of dense\[0\] is with a tuple, but must be parameters alone"),
        (lambda model: "adam", r"dense is 'adam', but must be a server-side optimizer such as .* a list of \(params, it\), or None"),
        (lambda model: list(model.parameters()), r"dense\[0\] is a Parameter, but must be a pair"),
    ],
)
def test_a_list_that_does_not_fit_the_model_is_refused(make: Callable[[nn.Sequential], Any], words: str) -> None:
    model = layers()
    with pytest.raises(ps.InvalidRequest, match=f"(?s){words}"):
        parts_of(model, make(model))


def test_a_list_trains_each_part_as_its_own_torch_optimizer_does(client: ps.Client, cluster: InProcess) -> None:
    model = layers()
    plain = copy.deepcopy(model)
    pairs = [([*model[0].parameters(), *model[2].parameters()], ps.SGD(0.1, momentum=0.9)), (model[1].parameters(), ps.SGD(0.01))]
    optimizer = ServerOptimizer(model, dense=pairs, client=client)
    assert [(group["table"], group["lr"], group["momentum"]) for group in optimizer.param_groups] == [
        ("dense", 0.1, 0.9),
        ("dense.1", 0.01, 0.0),
    ]
    theirs = torch.optim.SGD(
        [
            {"params": [*plain[0].parameters(), *plain[2].parameters()], "momentum": 0.9},
            {"params": plain[1].parameters(), "lr": 0.01},
        ],
        lr=0.1,
    )
    for step in range(4):
        optimizer.param_groups[1]["lr"] = theirs.param_groups[1]["lr"] = 0.01 * (step + 1)
        cluster.calls.clear()
        for net, rule in ((model, optimizer), (plain, theirs)):
            net(torch.ones(2, 2)).sum().backward()
            rule.step()
            rule.zero_grad()
        tables = [[part.table for part in body.tables] for _, body in cluster.calls if isinstance(body, Pull) and body.tables]
        if step > 0:
            assert sorted({name for names in tables for name in names}) == ["dense", "dense.1"]
            assert len(tables) <= cluster.servers  # one pull for both
    optimizer.fetch()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_dense_tables_of_a_list_come_with_prefetched_rows(client: ps.Client, cluster: InProcess) -> None:
    model = Towers()
    optimizer = ServerOptimizer(
        model, dense=[(of(model.layer, "weight"), ps.SGD(0.5)), (of(model.layer, "bias"), ps.SGD(0.25))], sparse=ps.SGD(0.5), client=client
    )
    bias = model.layer.bias.detach().clone()
    cluster.calls.clear()
    for ids in ps.prefetch([IDS] * 4, ids=lambda ids: {model.user_rows: ids}):
        model.user(ids).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    asked = Counter(part.table for _, body in cluster.calls if isinstance(body, Pull) for part in body.tables)
    assert asked["dense"] == asked["dense.1"] == 3  # a block each; the first step has what creating them brought
    optimizer.fetch()
    torch.testing.assert_close(model.layer.bias.detach(), bias - 4 * 0.25 * 3)


def test_a_list_of_dense_tables_must_leave_the_embeddings_names(client: ps.Client) -> None:
    model = nn.ModuleDict({"rows": ps.nn.Embedding(None, 2, name="dense.1"), "layer": nn.Linear(2, 2)})
    layer = model["layer"]
    with pytest.raises(ps.InvalidRequest, match=r"dense_name is 'dense.1', which is an embedding's table"):
        ServerOptimizer(model, dense=[(of(layer, "weight"), ps.SGD()), (of(layer, "bias"), ps.SGD())], client=client)


# --- None for what is dense ------------------------------------------------------------------------------------------------------


def test_none_leaves_the_dense_parameters_to_torch(client: ps.Client, cluster: InProcess) -> None:
    model = Towers()
    start = copy.deepcopy(model.layer.state_dict())
    optimizer = ServerOptimizer(model, dense=None, sparse=ps.SGD(1.0), client=client)
    theirs = torch.optim.SGD(model.layer.parameters(), lr=0.5)
    assert optimizer.dense == ()
    assert [group["table"] for group in optimizer.param_groups] == ["user", "item"]
    model(IDS).sum().backward()
    gradient = model.layer.weight.grad
    assert gradient is not None
    gradient = gradient.clone()
    for rule in (optimizer, theirs):
        rule.step()
        rule.zero_grad()
    torch.testing.assert_close(model.layer.weight.detach(), start["weight"] - 0.5 * gradient, rtol=0, atol=0)
    assert asked_ids(cluster, Push, "user") == {1, 2}
    assert asked_ids(cluster, Push, "dense") == asked_ids(cluster, Pull, "dense") == set()
    with pytest.raises(ps.UnknownTable):
        client.spec("dense")
    model(IDS)  # no hook brings other weights
    torch.testing.assert_close(model.layer.weight.detach(), start["weight"] - 0.5 * gradient, rtol=0, atol=0)
    model.layer.load_state_dict(start)  # not refused


def test_none_looks_at_no_frozen_parameter(client: ps.Client) -> None:
    model = Towers()
    model.layer.requires_grad_(False)
    optimizer = ServerOptimizer(model, dense=None, sparse=ps.SGD(1.0), client=client)
    model.layer.requires_grad_(True)
    model(IDS).sum().backward()
    optimizer.step()
    assert client.clock == 1


def test_none_takes_out_the_hooks_of_an_optimizer_before(client: ps.Client) -> None:
    model = Towers()
    first = trained(client, model)
    ServerOptimizer(model, dense=None, sparse=ps.SGD(1.0), client=client)
    with torch.no_grad():
        model.layer.weight.fill_(7.0)
    client.end_step()
    model(IDS)
    assert model.layer.weight.flatten().tolist() == [7.0] * 4
    with pytest.raises(ps.InvalidRequest, match="ServerOptimizer is replaced by a newer one of its model"):
        first.step()


def test_none_without_embeddings_is_refused(client: ps.Client) -> None:
    with pytest.raises(ps.InvalidRequest, match=r"model is Linear, but must be a module with embeddings of ps.nn\."):
        ServerOptimizer(nn.Linear(1, 1), dense=None, client=client)


# --- a mapping for what is sparse ------------------------------------------------------------------------------------------------


def test_a_mapping_gives_each_table_its_own() -> None:
    assert sparse_optimizers({"a": ps.SGD(), "b": ps.Adam()}, ["b", "a"]) == {"b": ps.Adam(), "a": ps.SGD()}
    assert sparse_optimizers({"a": ps.SGD(), "*": ps.Adam()}, ["a", "b", "c"]) == {"a": ps.SGD(), "b": ps.Adam(), "c": ps.Adam()}
    assert sparse_optimizers({"*": ps.Adam()}, []) == {}
    assert list(sparse_optimizers({"b": ps.SGD(), "a": ps.SGD()}, ["a", "b"])) == ["a", "b"]  # the model's order


@pytest.mark.parametrize(
    ("sparse", "words"),
    [
        ({"user": ps.SGD()}, r"sparse is a mapping without table 'item', but must be one with all of \['user', 'item'\], or with '\*'"),
        ({"*": ps.SGD(), "usr": ps.SGD()}, r"sparse is a mapping with 'usr', but must be one of the model's tables, \['user', 'item'\]"),
        ({"*": 0.1}, r"sparse\['\*'\] is 0.1, but must be a server-side optimizer"),
        ({}, r"sparse is a mapping without table 'user'"),
        (None, r"sparse is None, but must be a server-side optimizer"),
        ([ps.SGD()], r"sparse is \[SGD.*\], but must be a server-side optimizer"),
    ],
)
def test_a_mapping_that_does_not_fit_the_tables_is_refused(sparse: Any, words: str) -> None:
    with pytest.raises(ps.InvalidRequest, match=words):
        sparse_optimizers(sparse, ["user", "item"])


def test_tables_with_optimizers_of_their_own_train_by_them(client: ps.Client) -> None:
    model = Towers()
    optimizer = ServerOptimizer(
        model, dense=ps.SGD(1.0), sparse={"item": ps.ClippedByValue(ps.SGD(1.0), clip_value=0.25), "*": ps.SGD(0.5)}, client=client
    )
    _, user, item = optimizer.param_groups
    assert user["lr"] == 0.5
    assert "clip_value" not in user
    assert (item["lr"], item["clip_value"]) == (1.0, 0.25)
    for clip in (0.25, 0.125):
        item["clip_value"] = clip
        before = client.pull("item", [1])
        (model.item_rows(IDS) * 100).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        np.testing.assert_array_equal(before - client.pull("item", [1]), np.full((1, 2), clip, np.float32))


# --- names and models ------------------------------------------------------------------------------------------------------------


def test_a_wrapped_model_has_the_same_dense_table(client: ps.Client) -> None:
    model = layers()
    first = trained(client, nn.DataParallel(model))
    wrapped = torch.compile(model, backend="eager")
    assert isinstance(wrapped, nn.Module)
    again = trained(client, wrapped)  # a layout of other names would be refused
    assert [blocks.name for blocks in again.dense] == [blocks.name for blocks in first.dense] == ["dense"]


def test_two_models_in_one_job_need_two_dense_names(client: ps.Client) -> None:
    first = layers()
    trained(client, first)
    with pytest.raises(ps.InvalidRequest, match="or another dense_name"):
        trained(client, nn.Linear(3, 1))
    with pytest.raises(ps.InvalidRequest, match=r"dense_name is 'dense', which is the table of another model in this process"):
        trained(client, layers())
    with pytest.raises(ps.InvalidRequest, match=r"the table of another model"):
        trained(client, copy.deepcopy(first))
    ServerOptimizer(nn.Linear(3, 1), dense=ps.SGD(1.0), dense_name="second", client=client)


def test_a_model_that_is_gone_leaves_its_dense_name(client: ps.Client) -> None:
    def train_and_drop() -> list[float]:
        model = layers()
        optimizer = trained(client, model)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.fetch()
        return values(model)

    weight = train_and_drop()
    model = layers()
    trained(client, model)
    assert values(model) == weight  # what the servers have goes on


def test_a_second_optimizer_of_a_model_takes_the_firsts_place(client: ps.Client, cluster: InProcess) -> None:
    model = Towers()
    first = trained(client, model)
    optimizer = ServerOptimizer(model, dense=ps.SGD(0.5), sparse=ps.SGD(0.5), client=client)
    before = client.pull("user", [1])
    for _ in range(2):
        cluster.calls.clear()
        model(IDS).sum().backward()
    assert len([body for _, body in cluster.calls if isinstance(body, Pull) and any(part.table == "dense" for part in body.tables)]) == 0
    ((_, gradient),) = optimizer.tables["user"].leaves.in_order()[:1]
    optimizer.step()
    np.testing.assert_array_equal(client.pull("user", [1]), before - np.float32(0.5) * 2 * gradient[:1].numpy())
    with pytest.raises(ps.InvalidRequest, match="replaced by a newer one of its model, but must be the newest one that was made"):
        first.step()


def test_an_optimizer_of_a_part_of_what_another_trains_is_refused(client: ps.Client) -> None:
    model = layers()
    trained(client, model)
    with pytest.raises(ps.InvalidRequest, match="model is a part of what is trained in table 'dense'"):
        ServerOptimizer(model[0], dense=ps.SGD(1.0), dense_name="part", client=client)

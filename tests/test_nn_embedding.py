"""ps.nn.Embedding beside torch.nn.Embedding, and what all modules over tables have in common."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from beside_torch import asked_ids, assert_same, backward, give_rows, gradient_of, trained
from inprocess import InProcess
from ps_proto.requests import Pull, Push

ROWS, DIM = 10, 3


def beside(client: ps.Client, **options: Any) -> tuple[ps.nn.Embedding, nn.Embedding]:
    """Return ours and torch's, with the same rows."""
    torch.manual_seed(3)
    plain, module = nn.Embedding(ROWS, DIM, **options), ps.nn.Embedding(ROWS, DIM, name="rows", **options)
    trained(client, module)
    give_rows(client, "rows", plain.weight)
    return module, plain


# --- as torch --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[7, 3, 7, 9, 0], [[1, 2, 1], [2, 2, 8]], [[[5]], [[6]]], [], 4], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_outputs_and_gradients_are_torchs(client: ps.Client, ids: Any, dtype: torch.dtype) -> None:
    module, plain = beside(client)
    given = torch.tensor(ids, dtype=dtype)
    assert_same(module, plain, module(given), plain(given))


def test_uint64_ids_read_as_int64_ones_do(client: ps.Client) -> None:
    module, plain = beside(client)
    given = torch.tensor([7, 3, 7])
    assert_same(module, plain, module(given.to(torch.uint64)), plain(given))


@pytest.mark.parametrize("ids", [[2, 5, 2, 5, 1], [[5, 5], [3, 5]], [5, 5]], ids=str)
@pytest.mark.parametrize("padding_idx", [5, -5])
def test_padding_reads_as_zeros_and_is_never_pulled_or_pushed(joined: tuple[InProcess, ps.Client], ids: Any, padding_idx: int) -> None:
    cluster, client = joined
    module, plain = beside(client, padding_idx=padding_idx)
    optimizer = trained(client, module)
    cluster.calls.clear()
    given = torch.tensor(ids)
    assert module.padding_idx == plain.padding_idx == 5
    assert_same(module, plain, module(given), plain(given))
    optimizer.step()
    wanted = set(given.flatten().tolist()) - {5}
    assert asked_ids(cluster, Pull, "rows") == asked_ids(cluster, Push, "rows") == wanted


def test_padding_may_be_any_uint64(client: ps.Client) -> None:
    module = ps.nn.Embedding(None, DIM, padding_idx=2**64 - 1, name="rows")
    trained(client, module)
    output = module(torch.tensor([-1, 1]))
    assert not output[0].any()
    assert output[1].any()


def test_without_a_number_every_id_is_legal(client: ps.Client) -> None:
    module = ps.nn.Embedding(None, 1, name="rows", initializer=ps.Zeros())
    trained(client, module)
    extremes = [0, 2**63 - 1, 2**63, 2**64 - 1]
    client.assign("rows", np.array(extremes, np.uint64), np.arange(4, dtype=np.float32).reshape(4, 1))
    assert module(torch.tensor(extremes, dtype=torch.uint64)).flatten().tolist() == [0, 1, 2, 3]
    assert module(torch.tensor([-1, -(2**63)])).flatten().tolist() == [3, 2]  # int64, bit for bit


@pytest.mark.parametrize("id", [ROWS, -1, 2**40])
def test_an_id_outside_is_an_index_error_as_in_torch(joined: tuple[InProcess, ps.Client], id: int) -> None:
    cluster, client = joined
    module, plain = beside(client)
    cluster.calls.clear()
    with pytest.raises(IndexError):
        plain(torch.tensor([1, id]))
    with pytest.raises(IndexError, match=rf"id {id} is outside of table 'rows' of {ROWS} embeddings"):
        module(torch.tensor([1, id]))
    assert cluster.calls == []


def test_unread_rows_are_normal_as_torchs_are(client: ps.Client) -> None:
    module = ps.nn.Embedding(None, 64, name="rows", seed=5)
    trained(client, module)
    rows = module(torch.arange(1000))
    assert abs(rows.mean().item()) < 0.02
    assert abs(rows.std().item() - 1) < 0.02


def test_sparse_is_accepted_and_changes_nothing(client: ps.Client) -> None:
    module = ps.nn.Embedding(ROWS, DIM, name="rows", sparse=True)
    trained(client, module)
    module(torch.tensor([1])).sum().backward()
    ((_, gradient),) = module.tables["rows"].leaves.in_order()
    assert not gradient.is_sparse


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ps.nn.Embedding(10, 3), r"name is missing, but must be the table's name, as in Embedding\(10, 3, name='user'\)"),
        (lambda: ps.nn.EmbeddingBag(10, 3), r"as in EmbeddingBag\(10, 3, name='user'\)"),
        (lambda: ps.nn.Embedding(10, 3, max_norm=1.0, norm_type=1.0, name="a"), r"norm_type is 1.0, but must be 2.0: .* Euclidean norm"),
        (lambda: ps.nn.EmbeddingBag(10, 3, 1.0, norm_type=3.0, name="a"), r"norm_type is 3.0"),
        (lambda: ps.nn.EmbeddingBag(10, 3, -1.0, name="a"), r"TableSpec.max_norm is -1.0"),
        (lambda: ps.nn.Embedding(10, 3, name="a", table_dtype="float16"), r"TableSpec.dtype is 'float16', but must be one of"),
        (lambda: ps.nn.EmbeddingBagCollection(3, {"a": "A"}, table_dtype="half"), r"TableSpec.dtype is 'half'"),
        (lambda: ps.nn.EmbeddingBag(10, 3, name="a", wire="int4"), r"TableSpec.wire is 'int4', but must be one of"),
        (lambda: ps.nn.Embedding(10, 0, name="a"), r"TableSpec.dim is 0"),
        (lambda: ps.nn.Embedding(0, 3, name="a"), r"num_embeddings is 0"),
        (lambda: ps.nn.Embedding("user", 3, name="a"), r"num_embeddings is 'user'"),  # type: ignore[arg-type]
        (lambda: ps.nn.Embedding(10, 3, padding_idx=10, name="a"), r"padding_idx is 10, but must be None or a whole number from -10 to 9"),
        (lambda: ps.nn.Embedding(None, 3, padding_idx=2**64, name="a"), r"padding_idx is 18446744073709551616"),
        (lambda: ps.nn.Embedding(None, 3, name=""), r"TableSpec.name is ''"),
        (lambda: ps.nn.Embedding(None, 3, name="a", seed=-1), r"TableSpec.seed is -1"),
        (lambda: ps.nn.Embedding(None, 3, name="a", initializer=0.1), r"TableSpec.initializer is 0.1"),  # type: ignore[arg-type]
        (lambda: ps.nn.Embedding(None, 3, name="a").weight, r"weight is on the servers; it can be read with client.export"),
        (lambda: pickle.dumps(ps.nn.Embedding(None, 3, name="a")), r"A pickle of table 'a' is asked for"),
        (lambda: ps.nn.Embedding(None, 3, name="a")(torch.tensor([1])), r"call ps.init\(\)"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ps.InvalidRequest, match=words):
        make()


@pytest.mark.parametrize("ids", [[1, 2], np.array([1]), torch.tensor([1.0]), torch.tensor([True])], ids=lambda ids: type(ids).__name__)
def test_ids_that_are_no_tensor_of_integers_are_refused(client: ps.Client, ids: Any) -> None:
    module, _ = beside(client)
    with pytest.raises(ps.InvalidRequest, match=r"ids of 'rows' is .*, but must be a tensor of int64 or uint64 ids"):
        module(ids)


# --- where rows go ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_to_a_dtype_moves_the_rows_and_their_gradients_come_back_as_float32(client: ps.Client, dtype: torch.dtype) -> None:
    module, plain = beside(client)
    optimizer = trained(client, module)
    nn.Sequential(module).to(dtype)  # as a part of a model
    given = torch.tensor([1, 2, 1])
    output = module(given)
    assert output.dtype == dtype
    torch.testing.assert_close(output, plain(given).to(dtype))
    output.sum().backward()
    optimizer.step()
    moved = np.zeros((ROWS, DIM), np.float32)
    moved[[1, 2]] = [[2], [1]]
    np.testing.assert_array_equal(client.pull("rows", np.arange(ROWS)), plain.weight.detach().numpy() - moved)


def test_half_and_double_move_the_place_and_a_state_dict_has_none_of_it() -> None:
    module = ps.nn.Embedding(None, DIM, name="rows")
    assert module.half()._place.dtype == torch.float16
    assert module.double()._place.dtype == torch.float64
    assert module.to("meta")._place.device.type == "meta"
    assert not any("_place" in name for name in module.state_dict())


# --- leaves ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_a_forward_without_grad_keeps_no_leaf(client: ps.Client, guard: Callable[[], Any]) -> None:
    module, plain = beside(client)
    with guard():
        output = module(torch.tensor([1, 2]))
    assert not output.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        output.sum().backward()
    torch.testing.assert_close(output, plain(torch.tensor([1, 2])), rtol=0, atol=0)


def test_eval_reads_the_same_rows_and_gradients_still_flow(client: ps.Client) -> None:
    module, plain = beside(client)
    assert_same(module.eval(), plain, module(torch.tensor([1, 2])), plain(torch.tensor([1, 2])))


def test_a_module_used_twice_in_a_forward_adds_up(client: ps.Client) -> None:
    module, plain = beside(client)

    def both(embedding: nn.Module) -> Tensor:
        return embedding(torch.tensor([1, 2, 3])) * embedding(torch.tensor([3, 1, 1]))  # type: ignore[no-any-return]

    assert_same(module, plain, both(module), both(plain))


def test_two_modules_of_one_name_are_one_table(client: ps.Client) -> None:
    torch.manual_seed(0)
    plain = nn.Embedding(ROWS, DIM)
    towers = nn.ModuleList([ps.nn.Embedding(ROWS, DIM, name="item"), ps.nn.Embedding(None, DIM, name="item")])
    optimizer = trained(client, towers)
    give_rows(client, "item", plain.weight)
    backward(towers[0](torch.tensor([1, 2])) + towers[1](torch.tensor([2, 4])))
    backward(plain(torch.tensor([1, 2])) + plain(torch.tensor([2, 4])))
    assert list(optimizer.tables) == ["item"]
    torch.testing.assert_close(gradient_of(optimizer.tables["item"], ROWS), plain.weight.grad)


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: ps.nn.Embedding(None, 3, name="rows", **options),
        lambda **options: ps.nn.EmbeddingBag(None, 3, name="rows", **options),
        lambda **options: ps.nn.EmbeddingBagCollection(3, {"a": "rows"}, **options),
    ],
    ids=["embedding", "bag", "collection"],
)
def test_how_servers_keep_rows_and_how_they_travel_is_of_the_table(client: ps.Client, make: Callable[..., nn.Module]) -> None:
    trained(client, make(table_dtype="bfloat16", wire="int8", max_norm=0.5, initializer=ps.Constant(1.0)))
    spec = client.spec("rows")
    assert (spec.dtype, spec.wire, spec.max_norm) == ("bfloat16", "int8", 0.5)
    assert np.linalg.norm(client.pull("rows", [7])) == pytest.approx(0.5, rel=2**-8)
    twin = copy.deepcopy(make(table_dtype="bfloat16", wire="int8", max_norm=0.5, initializer=ps.Constant(1.0)))
    trained(client, twin)  # the same table


@pytest.mark.parametrize(
    "option",
    [
        {"embedding_dim": 4},
        {"seed": 1},
        {"initializer": ps.Zeros()},
        {"mode": ps.Async()},
        {"table_dtype": "bfloat16"},
        {"max_norm": 1.0},
        {"wire": "int8"},
    ],
    ids=str,
)
def test_two_modules_of_one_name_that_want_different_tables_are_refused(client: ps.Client, option: dict[str, Any]) -> None:
    one = ps.nn.Embedding(None, 3, name="item")
    other = ps.nn.Embedding(**{"num_embeddings": None, "embedding_dim": 3, "name": "item", **option})
    with pytest.raises(ps.InvalidRequest, match=r"of table 'item' is .*, as in another module of that name"):
        trained(client, nn.ModuleList([one, other]))


def test_a_frozen_module_reads_and_does_not_train(client: ps.Client) -> None:
    module, _ = beside(client)
    module.requires_grad_(False)
    assert not module(torch.tensor([1])).requires_grad
    module.requires_grad_()
    assert module(torch.tensor([1])).requires_grad


def test_a_deep_copy_reads_the_same_rows_and_trains_nothing(client: ps.Client) -> None:
    rows, layer = ps.nn.Embedding(ROWS, DIM, name="rows"), nn.Linear(DIM, 1)
    model = nn.Sequential(rows, layer)
    optimizer = trained(client, model)
    model(torch.tensor([1])).sum().backward()
    twin, twin_rows, twin_layer = copy.deepcopy((model, rows, layer))
    torch.testing.assert_close(twin(torch.tensor([1, 2])), model(torch.tensor([1, 2])), rtol=0, atol=0)
    twin(torch.tensor([1, 2])).sum().backward()
    table = optimizer.tables["rows"]
    assert twin_rows.tables["rows"] is not table
    assert twin_rows.tables["rows"].leaves.in_order() == []
    assert len(table.leaves.in_order()) == 1
    before = twin_layer.weight.clone()
    optimizer.step()
    optimizer.zero_grad()
    model(torch.tensor([1]))  # fetches the dense weights of the step, for the model alone
    torch.testing.assert_close(twin_layer.weight, before, rtol=0, atol=0)
    assert not torch.equal(layer.weight, before)


def test_hasattr_says_that_there_is_no_weight() -> None:
    assert not hasattr(ps.nn.Embedding(None, 3, name="a"), "weight")


def test_torchs_other_arguments_are_taken_or_refused() -> None:
    embedding = ps.nn.Embedding(10, 3, name="a", norm_type=2.0, scale_grad_by_freq=False, device="cpu", dtype=torch.float64)
    assert embedding._place.dtype == torch.float64
    with pytest.raises(ps.InvalidRequest, match="scale_grad_by_freq"):
        ps.nn.EmbeddingBag(10, 3, name="a", scale_grad_by_freq=True)

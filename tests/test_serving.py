"""ps.to_torch: the same outputs as the model that is trained, in plain torch, without a cluster."""

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from inprocess import InProcess
from kept import IDS_COUNT, SPREAD, batch, model_of, optimizer_of, spread, train
from ps_proto.errors import InvalidRequest
from ps_worker.keeping.lookup import PlainEmbedding, RowLookup
from ps_worker.nn import RowModule

DIM = 3
HELD = [3, 7, 9, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
UNKNOWN = 4
Client = ps.Client


@pytest.fixture
def client() -> Iterator[Client]:
    with InProcess(2).connect(0, 1, ps.Sync()) as client:
        yield client


def scripted(module: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch advises torch.export; serving stacks still take scripts
        return torch.jit.script(module)


def rows_of(ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(5).standard_normal((len(ids), DIM), np.float32)


def held(client: Client, module: RowModule) -> RowModule:
    """Let every table of the module hold rows for HELD; bind it to the client."""
    optimizer_of(module, client)
    for name in module.tables:
        client.assign(name, np.array(HELD, np.uint64), rows_of(HELD))
    return module


def signed(*ids: int) -> Tensor:
    return torch.from_numpy(np.array(ids, np.uint64).view(np.int64))


def assert_serves_the_same(module: RowModule, *inputs: Any) -> None:
    served = ps.to_torch(module)
    wanted = module(*inputs)
    assert not [part for part in served.modules() if isinstance(part, RowModule)]
    for answer in (served(*inputs), scripted(served)(*inputs)):
        torch.testing.assert_close(answer, wanted, rtol=0, atol=1e-6)


# --- modules ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding_idx", [None, 7, 2**64 - 1, -2], ids=str)
def test_an_embedding_serves_the_same_on_ids_from_all_over(client: Client, padding_idx: int | None) -> None:
    module = held(client, ps.nn.Embedding(None, DIM, padding_idx, name="word"))
    assert_serves_the_same(module, signed(*HELD))
    assert_serves_the_same(module, signed(*HELD[:6]).reshape(1, 2, 3).expand(2, 2, 3))
    assert_serves_the_same(module, torch.empty(0, 2, dtype=torch.int64))
    served = ps.to_torch(module)
    assert torch.equal(served(torch.from_numpy(np.array(HELD, np.uint64))), module(signed(*HELD)))
    assert torch.equal(served(torch.tensor([3, 9], dtype=torch.int32)), module(torch.tensor([3, 9])))


def test_unknown_ids_read_zeros(client: Client) -> None:
    module = held(client, ps.nn.Embedding(None, DIM, name="word", initializer=ps.Constant(5.0)))
    assert module(torch.tensor([UNKNOWN])).tolist() == [[5.0] * DIM]
    served = ps.to_torch(module)
    assert served(torch.tensor([UNKNOWN, -(2**62), 2**62, 3])).tolist() == [[0.0] * DIM] * 3 + [rows_of(HELD)[0].tolist()]


def test_a_table_without_rows_reads_zeros(client: Client) -> None:
    module = ps.nn.Embedding(None, DIM, name="word")
    optimizer_of(module, client)
    served = ps.to_torch(module)
    for each in (served, scripted(served)):
        assert each(torch.tensor([[3, 4]])).tolist() == [[[0.0] * DIM] * 2]


@pytest.mark.parametrize("padding_idx", [None, 7, -1], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_serves_the_same(client: Client, mode: str, padding_idx: int | None) -> None:
    module = held(client, ps.nn.EmbeddingBag(None, DIM, mode=mode, padding_idx=padding_idx, name="word"))
    values = signed(3, 7, 3, 2**64 - 1, 7, 7)
    assert_serves_the_same(module, values.reshape(2, 3))
    assert_serves_the_same(module, values, torch.tensor([0, 2, 2, 5]))  # an empty bag, and one of padding alone
    assert_serves_the_same(module, torch.empty(2, 0, dtype=torch.int64))
    assert_serves_the_same(module, torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
    if mode == "sum":
        weights = torch.tensor([1.0, 2.0, -0.5, 4.0, 0.0, 3.0])
        assert_serves_the_same(module, values.reshape(3, 2), None, weights.reshape(3, 2))
        assert_serves_the_same(module, values, torch.tensor([0, 4]), weights)


def test_a_bag_with_its_last_offset_serves_the_same(client: Client) -> None:
    module = held(client, ps.nn.EmbeddingBag(None, DIM, include_last_offset=True, name="word"))
    assert_serves_the_same(module, signed(3, 7, 9), torch.tensor([0, 1, 3]))


def test_an_unknown_id_counts_as_zeros_in_a_bag(client: Client) -> None:
    module = held(client, ps.nn.EmbeddingBag(None, DIM, mode="mean", name="word"))
    served = ps.to_torch(module)
    torch.testing.assert_close(served(torch.tensor([[3, UNKNOWN]])), torch.from_numpy(rows_of(HELD)[:1]) / 2)


@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
def test_a_collection_serves_the_same(client: Client, pooling: str) -> None:
    module = held(client, ps.nn.EmbeddingBagCollection(DIM, {"a": "word", "b": "other", "c": "word"}, pooling))
    ids, values, offsets = signed(3, 7), signed(9, 2**63, 3), torch.tensor([0, 2])
    assert_serves_the_same(module, {"a": ids, "b": ids, "c": ids.flip(0)})
    assert_serves_the_same(module, {"a": values.reshape(1, 3), "b": ids[:1], "c": ids[:1]})
    assert_serves_the_same(module, dict.fromkeys("abc", (values, offsets)))
    if pooling == "sum":
        assert_serves_the_same(module, dict.fromkeys("abc", (values, offsets, torch.tensor([0.5, 2.0, -1.0]))))


class Mixed(nn.Module):
    """Features of several kinds: in a script the dict's type must be declared."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = ps.nn.EmbeddingBagCollection(DIM, {"a": "word", "b": "word"})

    def forward(self, sparse: dict[str, Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        pooled: Tensor = self.bags(sparse)
        return pooled


def test_features_of_several_kinds_serve_the_same(client: Client) -> None:
    model = Mixed()
    held(client, model.bags)
    served = ps.to_torch(model)
    pair = (signed(9, 3), torch.tensor([0, 1]))
    for b in (pair, (*pair, torch.tensor([2.0, 3.0]))):
        sparse: Any = {"a": signed(3, 7), "b": b}
        for each in (served, scripted(served)):
            torch.testing.assert_close(each(sparse), model(sparse), rtol=0, atol=1e-6)


def test_what_is_no_dict_of_features_is_refused_by_a_script(client: Client) -> None:
    served = scripted(ps.to_torch(held(client, ps.nn.EmbeddingBagCollection(DIM, {"a": "word"}))))
    with pytest.raises(torch.jit.Error, match="features must be a dict"):
        served([signed(3)])


def test_a_module_that_it_does_not_know_is_named(client: Client) -> None:
    class Own(ps.nn.RowModule):
        pass

    own = Own(list(ps.nn.Embedding(None, DIM, name="word").tables.values()))
    optimizer_of(own, client)
    with pytest.raises(InvalidRequest, match="with a Own, but must be of Embedding, EmbeddingBag and EmbeddingBagCollection"):
        ps.to_torch(own)


# --- models -----------------------------------------------------------------------------------------------------------------------


def all_known(client: Client) -> tuple[Tensor, Tensor]:
    """Return ids that both tables of the model hold."""
    user, item = (set(client.export(table)[0].tolist()) for table in ("user", "item"))
    ids = spread(torch.arange(IDS_COUNT))
    a = [id for id in ids.tolist() if id % 2**64 in user]
    b = [id for id in ids.tolist() if id % 2**64 in item]
    count = min(len(a), len(b))
    assert count > 8
    return torch.tensor(a[:count]), torch.tensor(b[:count])


def test_a_trained_model_serves_the_same_without_its_cluster(tmp_path: Any) -> None:
    with InProcess(3).connect(0, 1, ps.Sync()) as client:
        model = model_of(seed=1)
        train(model, optimizer_of(model, client), range(5))
        model.eval()
        served = ps.to_torch(model)
        a, b = all_known(client)
        wanted = model(a, b).detach()
    assert SPREAD > 2**63
    torch.testing.assert_close(served(a, b), wanted, rtol=0, atol=1e-6)
    scripted(served).save(str(tmp_path / "served.pt"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loaded = torch.jit.load(str(tmp_path / "served.pt"))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loaded(a, b), wanted, rtol=0, atol=1e-6)
    torch.save(served, tmp_path / "served.pkl")
    torch.testing.assert_close(torch.load(tmp_path / "served.pkl", weights_only=False)(a, b), wanted, rtol=0, atol=1e-6)


def test_dense_parameters_have_their_newest_values_and_the_model_trains_on(client: Client) -> None:
    model = model_of(seed=1)
    optimizer = optimizer_of(model, client)
    train(model, optimizer, range(2))  # the last step is not fetched by any forward
    served = ps.to_torch(model)
    newest = torch.from_numpy(client.pull("dense", [0])[0])
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in served.parameters() if parameter.requires_grad])
    assert torch.equal(flat, newest[: flat.numel()])
    kept = {name: value.clone() for name, value in served.state_dict().items()}
    train(model, optimizer, range(2, 4))
    assert all(torch.equal(value, kept[name]) for name, value in served.state_dict().items())
    assert not torch.equal(model.out.weight, kept["out.weight"])


def test_a_module_used_twice_stays_one(client: Client) -> None:
    model = nn.ModuleDict()
    model["user"] = held(client, ps.nn.Embedding(None, DIM, name="word"))
    model["item"] = model["user"]
    model["other"] = ps.nn.Embedding(None, DIM, name="word")
    optimizer_of(model, client)
    served = ps.to_torch(model)
    assert isinstance(served, nn.ModuleDict)
    assert served["user"] is served["item"]
    one, other = served["user"], served["other"]
    assert isinstance(one, PlainEmbedding)
    assert isinstance(other, PlainEmbedding)
    assert one.lookup.weight.data_ptr() == other.lookup.weight.data_ptr(), "a table's rows are held once"


@pytest.mark.parametrize("to", [nn.Module.half, nn.Module.double], ids=["half", "double"])
def test_the_dtype_is_that_of_the_module(client: Client, to: Callable[[nn.Module], nn.Module]) -> None:
    module = held(client, ps.nn.Embedding(None, DIM, name="word"))
    to(module)
    served = ps.to_torch(module)
    assert served(signed(3)).dtype == module(signed(3)).dtype
    assert served(signed(*HELD)).tolist() == module(signed(*HELD)).tolist()


def test_every_rank_may_call_it_alone() -> None:
    cluster = InProcess(2)

    def work(rank: int) -> list[float]:
        with cluster.connect(rank, 2, ps.Sync()) as client:
            model = model_of(seed=1)
            optimizer = optimizer_of(model, client)
            train(model, optimizer, range(3), rank)
            a, b, _ = batch(0, 0)
            answer: list[float] = ps.to_torch(model).eval()(a, b).tolist() if rank == 1 else []
            train(model, optimizer, range(3, 5), rank)
            return answer

    with ThreadPoolExecutor(2) as ranks:
        _, answer = ranks.map(work, range(2))
    assert len(answer) == 8


def test_a_lookup_of_one_row_finds_it_and_nothing_else() -> None:
    lookup = RowLookup(torch.tensor([5]), torch.cat([torch.ones(1, 2), torch.zeros(2, 2)]))
    assert lookup.places(torch.tensor([4, 5, 6])).tolist() == [1, 0, 1]

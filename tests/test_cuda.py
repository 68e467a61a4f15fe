"""Everything of a model that computes on a GPU, beside the same on the CPU. It runs wherever torch finds a CUDA device."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from beside_torch import give_rows, gradient_of, one_worker, trained
from inprocess import InProcess
from ps_proto.requests import Pull
from ps_worker.optim import ServerOptimizer
from ps_worker.optim.dense import BLOCK, DenseBlocks
from ps_worker.optim.gradients import gradients, on_host
from ps_worker.resume.packing import pack, unpack
from ps_worker.resume.rngs import rng_states, set_rng_states
from towers import IDS, Towers, row, rows_model, servers_values

DEVICE = "cuda"
ROWS, DIM = 12, 4

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch finds none"),
    # torch.compile looks at the .grad of all inputs and hides the warning from being shown, not from being an error.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Multiply float32 as float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Note the shape of whatever is copied to the GPU from memory that is not pinned, or by a copy that is waited for."""
    found: list[tuple[int, ...]] = []
    plain_to = Tensor.to

    def to(self: Tensor, *args: Any, **options: Any) -> Tensor:
        there = plain_to(self, *args, **options)
        if self.device.type == "cpu" and there.is_cuda and not (self.is_pinned() and options.get("non_blocking", False)):
            found.append(tuple(self.shape))
        return there

    monkeypatch.setattr(Tensor, "to", to)
    return found


class Net(nn.Module):
    """A collection, an embedding and layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.bags = ps.nn.EmbeddingBagCollection(DIM, {"a": "A", "b": "B"}, seed=1)
        self.user = ps.nn.Embedding(None, DIM, name="user", seed=2)
        self.top = nn.Sequential(nn.Linear(3 * DIM, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = self.top(torch.cat([self.bags({"a": a, "b": b}), self.user(b)], dim=1)).squeeze(1)
        return result


def batch(step: int, size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    a, b = (torch.randint(0, ROWS, (size,), generator=generator) for _ in range(2))
    return a, b


def train(device: str, take: Callable[[Net, ServerOptimizer, ps.Client], list[float]]) -> tuple[list[float], dict[str, Any]]:
    """Return the losses, and all that the servers hold, of a Net that was trained on a device."""
    with one_worker() as (_, client):
        model = Net().to(device)
        optimizer = ServerOptimizer(model, dense=ps.Adam(0.01), sparse=ps.Adagrad(0.1), client=client)
        losses = take(model, optimizer, client)
        held = {table: client.pull(table, np.arange(ROWS)) for table in ("A", "B", "user")}
        return losses, {**held, "dense": np.array(servers_values(client, optimizer))}


def plainly(model: Net, optimizer: ServerOptimizer, _: ps.Client) -> list[float]:
    device = next(model.parameters()).device
    losses = []
    for step in range(5):
        a, b = batch(step)
        loss = model(a.to(device), b.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def assert_close(ours: tuple[list[float], dict[str, Any]], plain: tuple[list[float], dict[str, Any]], rtol: float, atol: float) -> None:
    np.testing.assert_allclose(ours[0], plain[0], rtol=rtol, atol=atol)
    for name, values in plain[1].items():
        np.testing.assert_allclose(ours[1][name], values, rtol=rtol, atol=atol, err_msg=name)


# --- embeddings ------------------------------------------------------------------------------------------------------------------


Make = Callable[[], tuple[ps.nn.RowModule, nn.Module, tuple[Any, ...]]]


def embedding() -> tuple[ps.nn.RowModule, nn.Module, tuple[Any, ...]]:
    ids = torch.tensor([[1, 2, 1], [7, 0, 3]])
    return ps.nn.Embedding(ROWS, DIM, padding_idx=7, name="rows"), nn.Embedding(ROWS, DIM, padding_idx=7), (ids,)


def bag(mode: str) -> Make:
    def make() -> tuple[ps.nn.RowModule, nn.Module, tuple[Any, ...]]:
        values, offsets = torch.tensor([1, 2, 1, 5, 5, 9]), torch.tensor([0, 3, 3])
        weights = (torch.rand(6, generator=torch.Generator().manual_seed(1)),) if mode == "sum" else ()
        inputs = (values, offsets, *weights)
        return ps.nn.EmbeddingBag(ROWS, DIM, mode=mode, name="rows"), nn.EmbeddingBag(ROWS, DIM, mode=mode), inputs

    return make


@pytest.mark.parametrize("make", [embedding, bag("sum"), bag("mean"), bag("max")], ids=["embedding", "sum", "mean", "max"])
def test_an_embedding_is_torchs_on_the_cpu(client: ps.Client, make: Make) -> None:
    module, plain, inputs = make()
    optimizer = trained(client, module.to(DEVICE))
    give_rows(client, "rows", plain.weight)  # type: ignore[arg-type]
    there, here = module(*[item.to(DEVICE) for item in inputs]), plain(*inputs)
    assert there.device.type == DEVICE
    torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-6)
    factors = torch.randn(here.shape, generator=torch.Generator().manual_seed(2))
    (there * factors.to(DEVICE)).sum().backward()
    (here * factors).sum().backward()
    torch.testing.assert_close(gradient_of(optimizer.tables["rows"], ROWS), plain.weight.grad, rtol=1e-5, atol=1e-6)
    optimizer.step()
    want = plain.weight - plain.weight.grad  # type: ignore[operator]
    np.testing.assert_allclose(client.pull("rows", [1, 2]), want[1:3].detach().numpy(), rtol=1e-5, atol=1e-6)


def test_ids_may_stay_where_they_are_and_rows_go_through_pinned_memory(client: ps.Client, unpinned: list[tuple[int, ...]]) -> None:
    model = ps.nn.Embedding(None, DIM, name="rows").to(DEVICE)
    optimizer = trained(client, model)
    output = model(IDS)
    assert output.device.type == DEVICE
    assert (2, DIM) not in unpinned  # the rows
    output.sum().backward()
    optimizer.step()


def test_a_model_trains_as_on_the_cpu() -> None:
    assert_close(train(DEVICE, plainly), train("cpu", plainly), rtol=1e-3, atol=1e-4)


def test_training_twice_has_the_same_bits() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        runs = [train(DEVICE, plainly) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert runs[0][0] == runs[1][0]
    for name, values in runs[0][1].items():
        np.testing.assert_array_equal(values, runs[1][1][name])


# --- dense parameters ------------------------------------------------------------------------------------------------------------


def test_parameters_on_a_gpu_and_beside_it_are_loaded_and_read() -> None:
    model = nn.Sequential(nn.Linear(3, 2).to(DEVICE), nn.Linear(3, 2))
    dense = DenseBlocks(list(model.named_parameters()), "dense", None)
    dense.load(np.arange(BLOCK, dtype=np.float32).reshape(1, BLOCK))
    assert [number for parameter in model.parameters() for number in parameter.flatten().tolist()] == list(range(16))
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    assert gradients([], [dense])["dense"][1].flatten()[:16].tolist() == list(range(16))


def test_a_steps_gradients_come_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.full((2, 3), float(number), device=DEVICE) for number in range(5)]
    tensors.append(torch.ones(2, dtype=torch.float16, device=DEVICE))
    copies: list[Tensor] = []
    plain = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda self: copies.append(self) or plain(self))  # type: ignore[func-returns-value]
    arrays = on_host([*tensors, torch.ones(1)], 0.5)
    assert [array.tolist() for array in arrays] == [[number / 2] * 6 for number in range(5)] + [[0.5, 0.5], [0.5]]
    assert len(copies) == 1


def test_clipping_is_the_cpus(client: ps.Client) -> None:
    model, twin = Towers().to(DEVICE), Towers()
    trained(client, model)
    with one_worker() as (_, other):
        trained(other, twin)
        for net in (model, twin):
            for ids in (IDS, torch.tensor([2, 5])):
                net(ids).sum().backward()
        norms = [ps.clip_grad_norm_(net, 0.5).item() for net in (model, twin)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
        pairs = ((model.user_rows, twin.user_rows), (model.item_rows, twin.item_rows))
        for there, here in [(ours.tables[ours.table_name], theirs.tables[theirs.table_name]) for ours, theirs in pairs]:
            torch.testing.assert_close(gradient_of(there, 6), gradient_of(here, 6), rtol=1e-4, atol=1e-6)


# --- prefetch --------------------------------------------------------------------------------------------------------------------


def prefetched(device: str, batches_of: str = "cpu") -> Callable[[Net, ServerOptimizer, ps.Client], list[float]]:
    def take(model: Net, optimizer: ServerOptimizer, _: ps.Client) -> list[float]:
        losses = []
        batches = [tuple([ids.to(batches_of) for ids in batch(step)]) for step in range(5)]
        for a, b in ps.prefetch(
            batches, ids=lambda given: {model.bags: {"a": given[0], "b": given[1]}, model.user: given[1]}, device=device
        ):
            assert a.device.type == b.device.type == device
            loss = model(a, b).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    return take


def test_prefetch_moves_batches_and_their_rows_through_pinned_memory(unpinned: list[tuple[int, ...]]) -> None:
    ours = train(DEVICE, prefetched(DEVICE))
    assert (16,) not in unpinned  # the batches
    assert not [shape for shape in unpinned if shape[-1:] == (DIM,)]  # the rows
    assert_close(ours, train("cpu", plainly), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("batches_of", ["cpu", DEVICE])
def test_prefetch_of_large_batches_trains_as_without_it(monkeypatch: pytest.MonkeyPatch, batches_of: str) -> None:
    monkeypatch.setattr("ps_worker.prefetch.planning.BESIDE_MIN", 1)  # each batch is large
    assert_close(train(DEVICE, prefetched(DEVICE, batches_of)), train("cpu", plainly), rtol=1e-3, atol=1e-4)


def test_a_moved_batch_finds_its_rows(client: ps.Client, cluster: InProcess) -> None:
    model = Net().to(DEVICE)
    optimizer = trained(client, model, lr=0.01)
    cluster.calls.clear()
    prefetched(DEVICE)(model, optimizer, client)
    asked = Counter((address, body.fence.clock) for address, body in cluster.calls if isinstance(body, Pull) and body.tables)
    assert set(asked.values()) == {1}


# --- mixed precision -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unscales", [False, True], ids=["by step", "by unscale_"])
def test_autocast_with_a_gradient_scaler_trains_nearly_as_the_cpu_does(unscales: bool) -> None:
    def mixed(model: Net, optimizer: ServerOptimizer, _: ps.Client) -> list[float]:
        scaler = torch.amp.GradScaler(DEVICE, init_scale=256.0)
        losses = []
        for step in range(5):
            a, b = (item.to(DEVICE) for item in batch(step))
            with torch.autocast(DEVICE, dtype=torch.float16):
                output = model(a, b)
                assert output.dtype == torch.float16
                loss = output.float().square().mean()
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(optimizer)
                ps.clip_grad_norm_(model, 1e6)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert scaler.get_scale() == 256.0
        return losses

    # Adam's first steps are of the size of its rate whatever the gradient, so a sign that rounding turns costs two of them a step.
    assert_close(train(DEVICE, mixed), train("cpu", plainly), rtol=0.05, atol=0.11)


def test_a_step_with_an_inf_pushes_nothing_and_ends(client: ps.Client) -> None:
    model, optimizer = rows_model(client)
    model.to(DEVICE)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    for step, factor in enumerate((1.0, float("inf"), 1.0)):
        scaler.scale(model(IDS.to(DEVICE)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert row(client) == (-2, -2, -4)[step]
        assert client.clock == step + 1
        assert scaler.get_scale() == (1024, 512, 512)[step]


def test_a_step_without_any_gradient_does_not_make_the_scaler_raise(client: ps.Client) -> None:
    model = ps.nn.Embedding(None, 1, name="rows", initializer=ps.Zeros()).to(DEVICE)
    optimizer = trained(client, model)
    scaler = torch.amp.GradScaler(DEVICE)
    scaler.scale(torch.zeros((), device=DEVICE))
    for _ in range(2):
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert client.clock == 2


def test_a_model_in_half_precision_is_unscaled_in_float32(client: ps.Client) -> None:
    model = ps.nn.Embedding(None, 1, name="rows", initializer=ps.Zeros()).to(DEVICE).half()
    optimizer = trained(client, model)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**20)
    output = model(IDS.to(DEVICE))
    assert output.dtype == torch.float16
    scaler.scale((output.float() * 2.0**-26).sum()).backward()
    scaler.step(optimizer)
    assert row(client, 2) == -(2.0**-26)


# --- torch.compile ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_model_trains_as_on_the_cpu(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "inductor":
        pytest.importorskip("triton", reason="inductor needs triton for a GPU")
        from torch._inductor import config

        monkeypatch.setattr(config, "compile_threads", 1)  # no pool of processes

    def compiled(model: Net, optimizer: ServerOptimizer, client: ps.Client) -> list[float]:
        model.compile(backend=backend)
        return plainly(model, optimizer, client)

    torch._dynamo.reset()
    try:
        assert_close(train(DEVICE, compiled), train("cpu", plainly), rtol=1e-3, atol=1e-4)
    finally:
        torch._dynamo.reset()


def test_a_copy_of_a_model_on_a_gpu_serves_there(client: ps.Client) -> None:
    model = Net().to(DEVICE)
    optimizer = trained(client, model, lr=0.01)
    plainly(model, optimizer, client)
    served = copy.deepcopy(ps.to_torch(model))
    a, b = (item.to(DEVICE) for item in batch(1))
    with torch.no_grad():
        torch.testing.assert_close(served(a, b), model(a, b), rtol=1e-5, atol=1e-5)


# --- going on after a restart -----------------------------------------------------------------------------------------------


def test_the_generator_of_a_gpu_goes_on_where_it_was() -> None:
    torch.rand(3, device=DEVICE)
    states = unpack(pack(rng_states()))
    first = torch.randn(1000, device=DEVICE)
    set_rng_states(states)
    assert torch.equal(torch.randn(1000, device=DEVICE), first)


def test_tensors_in_a_state_come_back_to_their_gpu() -> None:
    tensor = torch.randn(3, 4, device=DEVICE).T
    back = unpack(pack({"scale": tensor}))["scale"]
    assert back.device == tensor.device
    assert torch.equal(back, tensor)

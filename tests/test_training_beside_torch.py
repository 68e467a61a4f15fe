"""Synchronous training with two ranks is plain torch on the joined batch, and the same bits on any number of servers."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import ps_worker as ps
from beside_torch import give_rows
from inprocess import InProcess
from jobs import checksum
from ps_worker.optim import ServerOptimizer
from small_dlrm import DIM, FEATURES, ROWS, PlainBags, SmallDlrm, batch_of

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, BATCH, WORLD = 50, 32, 2
OPTIMIZERS: dict[str, tuple[ps.Optimizer, Callable[..., torch.optim.Optimizer], float]] = {
    "sgd": (ps.SGD(0.1), lambda weights: torch.optim.SGD(weights, lr=0.1), 1e-6),
    "adagrad": (ps.Adagrad(0.05), lambda weights: torch.optim.Adagrad(weights, lr=0.05), 2e-4),
    "adam": (ps.Adam(0.01), lambda weights: torch.optim.Adam(weights, lr=0.01), 2e-4),
    "nesterov": (
        ps.SGD(0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
        1e-6,
    ),
    "rmsprop": (ps.RMSprop(0.002), lambda weights: torch.optim.RMSprop(weights, lr=0.002), 2e-4),
    "adamw": (ps.AdamW(0.01, amsgrad=True), lambda weights: torch.optim.AdamW(weights, lr=0.01, amsgrad=True), 2e-4),
}


def start() -> SmallDlrm:
    torch.manual_seed(11)
    return SmallDlrm(PlainBags())


def train_plain(make: Callable[..., torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return every weight after STEPS steps on whole batches."""
    model = start()
    optimizer = make(model.parameters())
    scheduler = StepLR(optimizer, step_size=10, gamma=0.8)
    for step in range(STEPS):
        batch = batch_of(step, BATCH)
        nn.functional.binary_cross_entropy_with_logits(model(batch.counts, batch.sparse), batch.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def train_rank(client: ps.Client, plain: SmallDlrm, optimizer_of: ps.Optimizer) -> SmallDlrm:
    """Train a rank's part of each batch; rank 0's start values count."""
    model = SmallDlrm(ps.nn.EmbeddingBagCollection(DIM, FEATURES, initializer=ps.Zeros()))
    if client.rank == 0:
        model.bottom, model.top = copy.deepcopy((plain.bottom, plain.top))
    optimizer = ServerOptimizer(model, dense=optimizer_of, sparse=optimizer_of, client=client)
    if client.rank == 0:
        for table in optimizer.tables:
            give_rows(client, table, plain.bags.weight(table))  # type: ignore[operator]
    client.barrier()
    scheduler = StepLR(optimizer, step_size=10, gamma=0.8)
    assert client.rank is not None
    for step in range(STEPS):
        batch = batch_of(step, BATCH).part(client.rank, WORLD)
        nn.functional.binary_cross_entropy_with_logits(model(batch.counts, batch.sparse), batch.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    client.flush()
    model.state_dict()  # fetches
    return model


def train(servers: int, optimizer_of: ps.Optimizer) -> tuple[dict[str, Tensor], str]:
    """Return every weight after STEPS steps of two ranks, named as plain torch's, and the checksum of all that the servers hold."""
    cluster, plain = InProcess(servers), start()

    def rank(number: int) -> tuple[dict[str, Tensor], dict[str, tuple[Any, Any]]]:
        with cluster.connect(number, WORLD, ps.Sync()) as client:
            model = train_rank(client, plain, optimizer_of)
            held = {table: client.export(table) for table in ("C1", "shared", "dense")}
            client.barrier()
        return {name: parameter.detach() for name, parameter in model.named_parameters()}, held

    with ThreadPoolExecutor(WORLD) as pool:
        (dense, held), (other, _) = pool.map(rank, range(WORLD))
    assert all(torch.equal(dense[name], other[name]) for name in dense)
    rows: dict[str, Tensor] = {}
    for table in dict.fromkeys(FEATURES.values()):
        ids, values = held[table]
        assert ids.tolist() == list(range(ROWS))
        rows[f"bags.tables.{table}.weight"] = torch.from_numpy(values)
    return {**dense, **rows}, checksum(held)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_ranks_train_what_plain_torch_trains_on_the_joined_batch(name: str) -> None:
    optimizer_of, make, most = OPTIMIZERS[name]
    plain, (ours, _) = train_plain(make), train(2, optimizer_of)
    assert ours.keys() == plain.keys()
    moved = {key: _distance(parameter.detach(), plain[key]) for key, parameter in start().named_parameters()}
    apart = {key: _distance(ours[key], plain[key]) for key in plain}
    assert min(moved.values()) > 100 * most, moved  # it did train
    assert max(apart.values()) <= most, apart


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_the_bits_do_not_depend_on_the_number_of_servers(name: str) -> None:
    assert len({train(servers, OPTIMIZERS[name][0])[1] for servers in (1, 2, 5)}) == 1


def _distance(ours: Tensor, plain: Tensor) -> float:
    return float(np.linalg.norm(ours.numpy() - plain.numpy()) / np.linalg.norm(plain.numpy()))

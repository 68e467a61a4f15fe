"""ServerOptimizer and ps.prefetch in a job with backup workers (R9): what a step uses is all of one step, or the step is late."""

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from inprocess import InProcess
from ps_proto.values import SGD, Sync, Zeros
from ps_worker.optim.dense import BLOCK

IDS = torch.arange(40)
MODE = Sync(backup_workers=1)


class Model(nn.Module):
    """A row and a weight that are both zero at the start; the quick rank takes one from each in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = ps.nn.Embedding(None, 1, name="rows", initializer=Zeros())
        self.top = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.top.weight.zero_()

    def forward(self, ids: Tensor) -> Tensor:
        product: Tensor = self.rows(ids) * self.top.weight
        return product


@dataclass
class Quick:
    """Rank 0: pushes ones to all rows and weights, with a client alone."""

    client: ps.Client
    stop: threading.Event = field(default_factory=threading.Event)

    def create(self) -> None:
        self.optimizer = optimizer_of(Model(), self.client)

    def go_on(self, steps: int = 1) -> None:
        ids = IDS.numpy()
        for _ in range(steps):
            self.client.pull({"rows": ids, "dense": np.arange(1)})
            self.client.push({"rows": (ids, np.ones((ids.size, 1), np.float32)), "dense": ([0], np.ones((1, BLOCK), np.float32))})
            self.client.end_step()
        self.client.flush()

    def run(self) -> None:
        while not self.stop.is_set():
            self.go_on()


def optimizer_of(model: Model, client: ps.Client) -> ps.optim.ServerOptimizer:
    return ps.optim.ServerOptimizer(model, dense=SGD(lr=1.0), sparse=SGD(lr=1.0), client=client)


def values(model: Model) -> set[float]:
    """Return what the model has read: one value where all is of one step."""
    return {value.item() for value in model.rows(IDS).flatten()} | {model.top.weight.item()}


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_late_step_raises_nothing_and_its_gradients_count_nowhere(prefetched: bool) -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 2, MODE) as client, cluster.connect(1, 2, MODE) as slow:
        quick = Quick(client)
        quick.create()
        model = Model()
        optimizer = optimizer_of(model, slow)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        loader = [IDS] * 4
        seen = []
        for ids in ps.prefetch(loader, ids=lambda ids: {model.rows: ids}, client=slow) if prefetched else loader:
            (model(ids) + 7 * model.top.weight).sum().backward()
            seen.append((slow.clock, model.top.weight.item()))
            quick.go_on(3)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        assert seen == [(0, 0.0), (3, -3.0), (6, -6.0), (9, -9.0)]
        assert (slow.turn, slow.clock, slow.late_steps) == (4, 12, 4)
        assert quick.client.pull("rows", [7]).tolist() == [[-12.0]]


def test_a_step_whose_weights_were_fetched_before_its_rows_is_of_one_step_or_late() -> None:
    """The others go on between the two."""
    cluster = InProcess(2)
    with cluster.connect(0, 2, MODE) as client, cluster.connect(1, 2, MODE) as slow:
        quick = Quick(client)
        quick.create()
        model = Model()
        optimizer = optimizer_of(model, slow)
        optimizer.fetch()
        quick.go_on(2)
        assert len(values(model)) == 2
        model(IDS).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert (slow.late_steps, slow.clock) == (1, 2)
        model(IDS)
        assert values(model) == {-2.0}


@pytest.mark.parametrize("depth", [1, 3])
def test_whatever_goes_on_beside_it_a_step_in_time_is_of_one_step(depth: int) -> None:
    """The quick rank runs in a thread of its own as fast as it can."""
    cluster = InProcess(3)
    with cluster.connect(0, 2, MODE) as client, cluster.connect(1, 2, MODE) as slow:
        quick = Quick(client)
        quick.create()
        model = Model()
        optimizer = optimizer_of(model, slow)
        thread = threading.Thread(target=quick.run)
        thread.start()
        try:
            torn: list[tuple[int, set[float]]] = []
            clocks: list[int] = []
            for ids in ps.prefetch([IDS] * 60, ids=lambda ids: {model.rows: ids}, depth=depth, client=slow):
                late = slow.late_steps
                rows = model.rows(ids)
                (0 * model(ids)).sum().backward()  # no gradient, so that the quick rank alone moves them
                read = {value.item() for value in rows.flatten()} | {model.top.weight.item()}
                clocks.append(slow.clock)
                optimizer.step()
                optimizer.zero_grad()
                if slow.late_steps == late and len(read) > 1:
                    torn.append((clocks[-1], read))
        finally:
            quick.stop.set()
            thread.join(30)
        assert torn == []
        assert slow.turn == 60
        assert clocks == sorted(set(clocks))

"""A process that trains W5's model when it is told to, on one thread.

    python -m benchmarks.trainer ROLE SIZE SEED [ADDRESS RANK WORLD_SIZE]

ROLE  compute: the layers alone, on embeddings that are there.     plain: torch's own EmbeddingBag, one for all categories, with sparse
gradients.     worker: a rank of an asynchronous job at ADDRESS.

Each line of its input is a number of steps; it takes them and prints the seconds that they took. At the end of the input it ends.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

import torch
from torch import nn

import ps_worker as ps
from benchmarks.categories import CATEGORIES, DIM, IDS
from benchmarks.click_model import Batch, Layers, batches, endless

LEARNING_RATE = 0.01
TABLE = "categories"

Run = Callable[[int], None]


def compute(size: int, seed: int) -> Run:
    """Return the layers' part of so many steps."""
    layers, source = Layers(), endless(batches(size, seed))
    optimizer = torch.optim.Adagrad(layers.parameters(), lr=LEARNING_RATE)
    embedded, criterion = torch.randn(size, CATEGORIES * DIM), nn.BCEWithLogitsLoss()

    def run(steps: int) -> None:
        for _ in range(steps):
            batch = next(source)
            leaf = embedded.clone().requires_grad_()
            criterion(layers(batch.counts, leaf), batch.labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def plain(size: int, seed: int) -> Run:
    """Return so many steps of plain torch."""
    layers = Layers()
    source = cycle([(batch, batch.ids.t().reshape(-1)) for batch in batches(size, seed)])  # as the fused bag wants them, made beforehand
    bag = nn.EmbeddingBag(CATEGORIES * IDS, DIM, mode="sum", sparse=True)
    optimizers = [torch.optim.Adagrad(module.parameters(), lr=LEARNING_RATE) for module in (layers, bag)]
    offsets, criterion = torch.arange(CATEGORIES * size), nn.BCEWithLogitsLoss()

    def run(steps: int) -> None:
        for _ in range(steps):
            batch, ids = next(source)
            embedded = bag(ids, offsets).view(size, CATEGORIES * DIM)
            criterion(layers(batch.counts, embedded), batch.labels).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    return run


class Clicks(nn.Module):
    """The model with its embeddings on servers."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = ps.nn.EmbeddingBagCollection(DIM, {f"C{number}": TABLE for number in range(CATEGORIES)})
        self.layers = Layers()

    def forward(self, batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = self.layers(batch.counts, self.bags(sparse(batch)))
        return logits


def sparse(batch: Batch) -> dict[str, torch.Tensor]:
    """Return the ids by feature."""
    return {f"C{number}": ids for number, ids in enumerate(batch.ids)}


@contextmanager
def worker(size: int, seed: int, address: str, rank: int, world_size: int) -> Iterator[Run]:
    """Give so many steps of a rank, whose rows and pushes travel while it computes."""
    with ps.connect(address, rank=rank, world_size=world_size, mode=ps.Async()) as client:
        model, criterion = Clicks(), nn.BCEWithLogitsLoss()
        adagrad = ps.Adagrad(lr=LEARNING_RATE)
        optimizer = ps.optim.ServerOptimizer(model, dense=adagrad, sparse=adagrad, overlap_pushes=True, client=client)
        source = iter(ps.prefetch(endless(batches(size, seed, rank)), ids=lambda batch: {model.bags: sparse(batch)}, client=client))

        def run(steps: int) -> None:
            for _ in range(steps):
                batch = next(source)
                criterion(model(batch), batch.labels).backward()
                optimizer.step()
                optimizer.zero_grad()
            client.flush()

        yield run


def obey(run: Run) -> None:
    """Take as many steps as each line of the input says."""
    print("ready", flush=True)
    for line in sys.stdin:
        begin_s = time.perf_counter()
        run(int(line))
        print(time.perf_counter() - begin_s, flush=True)


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    role, size, seed, *job = arguments
    torch.manual_seed(int(seed))
    if role == "worker":
        address, rank, world_size = job
        with worker(int(size), int(seed), address, int(rank), int(world_size)) as run:
            obey(run)
    else:
        obey({"compute": compute, "plain": plain}[role](int(size), int(seed)))


if __name__ == "__main__":
    main(sys.argv[1:])

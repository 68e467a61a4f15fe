"""A synchronous DLRM job whose every bit depends on all before: shuffled batches, dropout, a schedule of learning rates.

Run under `rowstead launch`: `dlrm_job.py [STEP FILE]`. Rank 0 prints the checksum of all rows in the end. With STEP and FILE, rank 1 is
killed once one server, whose name is then in FILE, has heard that it finished STEP.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import ps_worker as ps
from jobs import checksum
from procs.torn import tear
from small_dlrm import DIM, FEATURES, Batch, SmallDlrm, batch_of

EPOCHS, BATCHES, BATCH, WORLD = 2, 30, 16, 2
STEPS = EPOCHS * BATCHES
STEP_S = 0.03  # so that a job of so few steps lasts long enough to be killed within it
MEETS_EVERY = 6
DENSE = "dense"


class Dropping(nn.Module):
    """A small DLRM some of whose counts are dropped, by torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = ps.nn.EmbeddingBagCollection(DIM, FEATURES, initializer=ps.Uniform(-0.1, 0.1), seed=5)
        self.drop = nn.Dropout(0.3)
        self.scorer = SmallDlrm(self.bags)

    def forward(self, batch: Batch) -> Tensor:
        logits: Tensor = self.scorer(self.drop(batch.counts), batch.sparse)
        return logits


def samples(rank: int) -> list[Batch]:
    """Return a rank's samples, one by one."""
    joined = [batch_of(number, WORLD * BATCH).part(rank, WORLD) for number in range(BATCHES)]
    return [
        Batch(batch.counts[at : at + 1], {name: ids[at : at + 1] for name, ids in batch.sparse.items()}, batch.labels[at : at + 1])
        for batch in joined
        for at in range(BATCH)
    ]


def collate(samples: list[Batch]) -> Batch:
    sparse = {name: torch.cat([sample.sparse[name] for sample in samples]) for name in FEATURES}
    return Batch(torch.cat([sample.counts for sample in samples]), sparse, torch.cat([sample.labels for sample in samples]))


def evaluate(session: ps.Session, model: Dropping, batch: Batch) -> None:
    """Read, and meet the other rank, more than once: a worker that dies here does not come to what is left of it."""
    for _ in range(2):
        time.sleep(STEP_S)
        with torch.no_grad():
            model(batch)  # draws for the dropout
        session.barrier()


def main() -> None:
    with ps.init(mode=ps.Sync()) as session:
        if session.rank == 1 and sys.argv[1:]:
            tear(session.client, int(sys.argv[1]), Path(sys.argv[2]))
        torch.manual_seed(100 + session.rank)
        model = Dropping()
        optimizer = ps.optim.ServerOptimizer(model, dense=ps.Adam(lr=1e-2), sparse=ps.Adagrad(lr=0.05), dense_name=DENSE)
        scheduler = StepLR(optimizer, step_size=7, gamma=0.9)
        session.register("scheduler", scheduler)
        loader = DataLoader[Any](samples(session.rank), batch_size=BATCH, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]  # a list does
        for _ in range(EPOCHS):
            for batch in ps.prefetch(loader, ids=lambda batch: {model.bags: batch.sparse}):
                print(f"step {session.client.clock} of {STEPS}", flush=True)
                time.sleep(STEP_S)
                loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch.labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                if session.client.clock % MEETS_EVERY == 0:
                    evaluate(session, model, batch)
        session.client.flush()
        session.barrier()
        if session.rank == 0:
            names = [DENSE, *dict.fromkeys(FEATURES.values())]
            print("checksum", checksum({name: session.client.export(name) for name in names}), flush=True)
        session.barrier()


if __name__ == "__main__":
    main()

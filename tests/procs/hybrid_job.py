"""A hybrid job, as each of its ranks runs it: `python hybrid_job.py RESULT MODE [STEP]`.

Rank 0 writes to RESULT what the job came to. The table is called as the mode is, so that a cluster may have several such jobs, one after
the other. MODE "clipped" is synchronous too, and clips all gradients as one vector. With a STEP, rank 1 is killed in that step, between
its forward and its backward.
"""

import os
import signal
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ps_worker as ps

IDS_COUNT, DIM, BATCH, STEPS = 40, 4, 16, 12
LR = 0.2
MAX_NORM = 0.1
MODES: dict[str, ps.Mode] = {"sync": ps.Sync(), "async": ps.Async(), "clipped": ps.Sync()}


class Scorer(nn.Module):
    """Two features of one table into an MLP; the `bags` may be ours or torch's."""

    def __init__(self, bags: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.bags = bags
        self.top = nn.Sequential(nn.Linear(2 * DIM, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        scores: Tensor = self.top(self.bags(features))
        return scores.squeeze(1)


def batch_of(rank: int, step: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return features, ids int64[BATCH] each, and what to predict, float32[BATCH]."""
    generator = torch.Generator().manual_seed(1_000 * step + rank)
    features = {name: torch.randint(0, IDS_COUNT, (BATCH,), generator=generator) for name in ("user", "item")}
    return features, torch.randn(BATCH, generator=generator)


def check_copies(model: nn.Module) -> None:
    """Fail where the ranks' dense parameters differ in a bit."""
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    least, greatest = mine.clone(), mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    assert torch.equal(least, greatest)


def main(result: str, table: str, killed_at: int | None) -> None:
    dist.init_process_group("gloo")
    with ps.init(mode=MODES[table], wait_timeout_s=30.0) as session:
        bags = ps.nn.EmbeddingBagCollection(DIM, {"user": table, "item": table}, initializer=ps.Uniform(-0.5, 0.5), seed=1)
        model = DistributedDataParallel(Scorer(bags))
        rows = ps.optim.ServerOptimizer(model, dense=None, sparse=ps.SGD(lr=LR))
        dense = torch.optim.SGD(model.parameters(), lr=LR)
        ids = np.arange(IDS_COUNT)
        start = session.client.pull(table, ids)
        losses = []
        for step in range(STEPS):
            features, wanted = batch_of(session.rank, step)
            loss = nn.functional.mse_loss(model(features), wanted)
            if session.rank == 1 and step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()  # type: ignore[no-untyped-call]
            if table == "clipped":
                ps.clip_grad_norm_(model, MAX_NORM)
            losses.append(loss.item())
            rows.step()
            dense.step()
            rows.zero_grad()
            dense.zero_grad()
        session.client.flush()
        check_copies(model)
        if session.rank == 0:
            weights = {name: weight.numpy() for name, weight in model.module.top.state_dict().items()}
            np.savez(result, start=start, rows=session.client.pull(table, ids), losses=losses, **weights)
        session.barrier()
    del model  # before its group: the last to go waits in torch for a thread that may wait for the interpreter
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else None)

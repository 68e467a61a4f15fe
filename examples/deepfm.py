"""DeepFM (Guo et al., IJCAI 2017): a factorisation machine and a deep network over the same embeddings, on a made-up click log.

    python examples/deepfm.py                                         alone, with a small cluster of its own
    rowstead launch --servers 2 --workers 2 examples/deepfm.py

You will see log loss and AUC on held-out rows before training and after each of two passes, beside the best that can be reached.

The idea to take away: two tables under one set of ids, of dim 1 (the linear part) and of dim 8 (factors, which both the machine and the
network read); both travel in one request per server.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import ps_worker as ps
from click_batches import FEATURES, ClickData, measure
from click_log import COUNTS
from measuring import standstill

DIM = 8
EPOCHS = 2
BATCH = 128  # of each rank


class DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = ps.nn.Embedding(None, 1, name="weight", initializer=ps.Zeros())
        self.factors = ps.nn.Embedding(None, DIM, name="factor", initializer=ps.Normal(std=0.05))
        self.counts = nn.Linear(COUNTS, 1)
        self.deep = nn.Sequential(nn.Linear(COUNTS + len(FEATURES) * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, counts: Tensor, sparse: Mapping[str, Tensor]) -> Tensor:
        """Return the logits, float32[B]."""
        ids = torch.stack([sparse[feature] for feature in FEATURES], dim=1)
        factors = self.factors(ids)
        linear = self.weights(ids).sum(dim=1) + self.counts(counts)
        # Rendle, ICDM 2010, lemma 3.1: the dot products of all pairs from two sums, in linear time.
        pairs = 0.5 * (factors.sum(dim=1) ** 2 - (factors**2).sum(dim=1)).sum(dim=1, keepdim=True)
        logits: Tensor = linear + pairs + self.deep(torch.cat([counts, factors.flatten(start_dim=1)], dim=1))
        return logits.squeeze(1)


def run(data: ClickData) -> None:
    torch.manual_seed(0)
    with ps.init(mode=ps.Sync()) as session:
        model = DeepFM()
        optimizer = ps.optim.ServerOptimizer(model, dense=ps.Adam(lr=1e-3), sparse=ps.Adagrad(lr=0.02))
        criterion = nn.BCEWithLogitsLoss()
        for epoch in range(EPOCHS + 1):
            if epoch > 0:
                for batch in data.batches(BATCH * session.world_size, session.rank, session.world_size):
                    if len(batch) > 0:
                        criterion(model(batch.counts, batch.sparse), batch.labels).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            with standstill(session) as measures:
                if measures:
                    print("after {} passes: log loss {:.4f}, AUC {:.4f}".format(epoch, *measure(model, data)), flush=True)
        if session.rank == 0 and data.best is not None:
            print(f"best reachable: log loss {data.best.log_loss:.4f}, AUC {data.best.auc:.4f}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Train DeepFM on a made-up click log.")
    parser.add_argument("--rows", type=int, default=60_000, help="rows of the log (default 60,000)")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run(ClickData.made_up(Path(folder), chosen.rows, seed=0))


if __name__ == "__main__":
    main(sys.argv[1:])

"""The same DLRM in plain torch, one process and no parameter server: what train_dlrm.py has to match.

    python examples/plain_dlrm.py --train day_0.gz --test day_1.gz

You will see its log loss and AUC on held-out rows. It starts from the very weights of train_dlrm.py with the same seed: the rows are read
once from a server, which computes initial values from (seed, table, id, column), and the MLPs come from the same torch seed. It needs every
id beforehand, those of the held-out rows too; an id that never got a gradient keeps its initial value, as on a server.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ps_worker as ps
from click_batches import FEATURES, ClickData, measure
from dlrm import DIM, DLRM
from train_dlrm import DENSE, INITIALIZER, SPARSE, TABLE

Ids = npt.NDArray[np.uint64]


class PlainBags(nn.Module):
    """One embedding for all features, over a fixed vocabulary. `ids` uint64[n], ascending; `rows` float32[n, DIM], of each."""

    def __init__(self, ids: Ids, rows: npt.NDArray[np.float32]) -> None:
        super().__init__()
        self.ids = ids
        self.rows = nn.Parameter(torch.from_numpy(rows))

    def forward(self, sparse: Mapping[str, Tensor]) -> Tensor:
        """Return float32[B, DIM * n_features]."""
        asked = torch.stack([sparse[feature] for feature in FEATURES], dim=1).numpy().view(np.uint64)
        return F.embedding(torch.from_numpy(np.searchsorted(self.ids, asked)), self.rows, sparse=True).flatten(start_dim=1)


def vocabulary(data: ClickData) -> Ids:
    """Return every id of the log, ascending."""
    seen = [
        np.unique(torch.stack([*batch.sparse.values()]).numpy()) for source in (data.batches(4_096), data.held_out()) for batch in source
    ]
    return np.unique(np.concatenate(seen).view(np.uint64))


def initial_rows(ids: Ids, seeds: Sequence[int]) -> dict[int, npt.NDArray[np.float32]]:
    """Return, for each seed, what train_dlrm.py's table reads as before anybody pushed: float32[n, DIM]."""
    rows = {}
    for seed in seeds:
        with ps.local_cluster(servers=1) as cluster, ps.connect(cluster.address, rank=0, world_size=1, mode=ps.Async()) as client:
            client.create_table(ps.TableSpec(TABLE, DIM, optimizer=SPARSE, initializer=INITIALIZER, seed=seed))
            rows[seed] = client.pull(TABLE, ids)
    return rows


def train(data: ClickData, batch: int, seed: int, ids: Ids, rows: npt.NDArray[np.float32]) -> DLRM:
    """Return the model after one pass over the data, from these initial rows."""
    torch.manual_seed(seed)
    bags = PlainBags(ids, rows.copy())
    model = DLRM(bags)
    dense = torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], lr=DENSE.lr)
    sparse = torch.optim.Adagrad(bags.parameters(), lr=SPARSE.lr)
    criterion = nn.BCEWithLogitsLoss()
    with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]  # Adagrad warns unless it is told
        for step in data.batches(batch):
            criterion(model(step.counts, step.sparse), step.labels).backward()
            for optimizer in (dense, sparse):
                optimizer.step()
                optimizer.zero_grad()
    return model


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Train DLRM in plain torch.")
    parser.add_argument("--train", type=Path, required=True, help="log to train on, in Criteo's format, plain or .gz")
    parser.add_argument("--test", type=Path, help="log to measure on (default: the last tenth of the rows to train on)")
    parser.add_argument("--batch", type=int, default=512, help="rows of a step (default 512)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights (default 0)")
    chosen = parser.parse_args(arguments)
    data = ClickData.of(chosen.train, chosen.test)
    ids = vocabulary(data)
    model = train(data, chosen.batch, chosen.seed, ids, initial_rows(ids, [chosen.seed])[chosen.seed])
    print("log loss {:.4f}, AUC {:.4f}".format(*measure(model, data)))


if __name__ == "__main__":
    main(sys.argv[1:])

"""A click log as torch batches: what to train on, what to measure on, and each rank's part of a step."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from click_log import CATEGORIES, Block, count_rows, read_blocks
from metrics import auc, log_loss
from planted_log import write_planted_log

FEATURES = tuple(f"C{number}" for number in range(1, CATEGORIES + 1))
MEASURED_AT_ONCE = 4_096


@dataclass(frozen=True)
class Batch:
    """Some rows: labels float32[B] of 0 and 1, counts float32[B, 13] as log(1 + count), sparse: feature -> ids int64[B]."""

    labels: Tensor
    counts: Tensor
    sparse: dict[str, Tensor]

    @classmethod
    def of(cls, block: Block) -> "Batch":
        ids = torch.from_numpy(block.ids.view(np.int64))
        return cls(torch.from_numpy(block.labels), torch.from_numpy(block.counts), dict(zip(FEATURES, ids.unbind(dim=1), strict=True)))

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Best:
    """What the model that drew a made-up log's clicks scores on the rows to measure on: no other is better on average."""

    log_loss: float
    auc: float


@dataclass(frozen=True)
class ClickData:
    """Rows [0, train_rows) of `train` to train on; to measure on, those of `test` from `test_begin` on."""

    train: Path
    train_rows: int
    test: Path
    test_begin: int
    best: Best | None = None

    @classmethod
    def of(cls, train: Path, test: Path | None) -> "ClickData":
        """Return the data of a log, the last tenth of which is held out where there is no `test`.

        Raises OSError, MalformedLog, and ValueError where there are too few rows.
        """
        rows = count_rows(train)
        train_rows = rows if test else rows - rows // 10
        data = cls(train, train_rows, test or train, 0 if test else train_rows)
        labels = np.concatenate([np.empty(0, np.float32), *(batch.labels.numpy() for batch in data.held_out())])
        if train_rows == 0 or np.unique(labels).size < 2:
            found = f"{train_rows:,} rows to train on and {labels.size:,} held out, {labels.sum():.0f} of them clicks"
            raise ValueError(f"{train} has {found}. Rows to train on are needed, and held-out rows of both labels.")
        return data

    @classmethod
    def made_up(cls, folder: Path, rows: int, seed: int) -> "ClickData":
        """Write a log of `rows` rows to `folder` and return its data; a pure function of (rows, seed), so each rank may make its own."""
        planted = write_planted_log(folder / "made-up.tsv", rows, seed)
        data = cls.of(folder / "made-up.tsv", None)
        labels, logits = planted.labels[data.test_begin :], planted.logits[data.test_begin :]
        return cls(data.train, data.train_rows, data.test, data.test_begin, Best(log_loss(labels, logits), auc(labels, logits)))

    def batches(self, batch: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield a rank's share of one pass: of `batch` rows that all ranks take in a step, every world_size-th.

        `batch` is a multiple of world_size. Every rank gets equally many batches; the last one can be shorter, even empty.
        """
        blocks = read_blocks(self.train, batch // world_size, rank=rank, world_size=world_size, rows_end=self.train_rows)
        return map(Batch.of, blocks)

    def held_out(self) -> Iterator[Batch]:
        """Yield the rows to measure on."""
        return map(Batch.of, read_blocks(self.test, MEASURED_AT_ONCE, rows_begin=self.test_begin))


def measure(model: torch.nn.Module, data: ClickData) -> tuple[float, float]:
    """Return (log loss, AUC) of a model, called as model(counts, sparse), on the held-out rows."""
    labels, logits = [], []
    device = next(model.parameters(), torch.empty(0)).device
    model.eval()
    with torch.no_grad():
        for batch in data.held_out():
            labels.append(batch.labels.numpy())
            logits.append(model(batch.counts.to(device), batch.sparse).cpu().numpy())
    model.train()
    return log_loss(np.concatenate(labels), np.concatenate(logits)), auc(np.concatenate(labels), np.concatenate(logits))

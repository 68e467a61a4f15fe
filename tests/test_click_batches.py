"""A click log as torch batches: who gets which rows, and what is held out."""

from pathlib import Path

import numpy as np
import pytest
import torch

from click_batches import FEATURES, Batch, ClickData, measure
from click_log import read_blocks
from planted_log import write_planted_log

ROWS = 103


@pytest.fixture
def log(tmp_path: Path) -> Path:
    write_planted_log(tmp_path / "log.tsv", ROWS, seed=1)
    return tmp_path / "log.tsv"


class FirstCount(torch.nn.Module):
    """Scores a row by its first count."""

    def forward(self, counts: torch.Tensor, sparse: dict[str, torch.Tensor]) -> torch.Tensor:
        return counts[:, 0]


def test_a_batch_has_the_columns_of_the_log(log: Path) -> None:
    (block,) = read_blocks(log, ROWS)
    batch = Batch.of(block)
    assert len(batch) == ROWS
    assert batch.labels.dtype == batch.counts.dtype == torch.float32
    assert list(batch.sparse) == list(FEATURES) == [f"C{number}" for number in range(1, 27)]
    assert batch.sparse["C3"].dtype == torch.int64
    np.testing.assert_array_equal(batch.sparse["C3"].numpy().view(np.uint64), block.ids[:, 2])


def test_the_last_tenth_is_held_out(log: Path) -> None:
    data = ClickData.of(log, None)
    assert (data.train_rows, data.test_begin) == (93, 93)
    assert sum(len(batch) for batch in data.batches(10)) == 93
    assert sum(len(batch) for batch in data.held_out()) == 10


def test_a_test_log_leaves_all_rows_to_train_on(log: Path) -> None:
    data = ClickData.of(log, log)
    assert (data.train_rows, data.test_begin) == (ROWS, 0)
    assert sum(len(batch) for batch in data.held_out()) == ROWS


def test_the_ranks_shares_of_a_step_make_up_the_step(log: Path) -> None:
    data = ClickData.of(log, None)
    alone = list(data.batches(10))
    shares = [list(data.batches(10, rank, 2)) for rank in range(2)]
    assert [len(share) for share in shares] == [len(alone), len(alone)] == [10, 10]
    for whole, first, second in zip(alone, *shares, strict=True):  # dealt out in turn; the last step has 3 rows: 2 and 1
        dealt = torch.empty_like(whole.counts)
        dealt[0::2], dealt[1::2] = first.counts, second.counts
        assert torch.equal(dealt, whole.counts)


def test_a_made_up_log_is_the_same_for_every_rank_and_knows_the_best_scores(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one, two = (ClickData.made_up(folder, 2_000, seed=3) for folder in folders)
    assert one.train.read_bytes() == two.train.read_bytes()
    assert one.best == two.best
    assert one.best is not None
    log_loss, auc = measure(FirstCount(), one)
    assert 0.2 < one.best.log_loss < log_loss
    assert auc < 0.65 < one.best.auc < 1.0


@pytest.mark.parametrize("labels", ["", "1", "0" * 20])
def test_a_log_without_rows_to_train_or_measure_on_is_refused(tmp_path: Path, labels: str) -> None:
    log = tmp_path / "log.tsv"
    log.write_text("".join(label + "\t" * 39 + "\n" for label in labels))
    with pytest.raises(ValueError, match="rows of both labels"):
        ClickData.of(log, None)

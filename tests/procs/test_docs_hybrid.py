"""The script of docs/hybrid-training.md, as two launched ranks: from nothing, and then from what it saved, in mixed precision."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pages import Page
from procs.launched import launched

PAGE = Page.read("docs/hybrid-training.md")
SCRIPT, MIXED_STEP = [block.text for block in PAGE.blocks if block.language == "python"]
STEP = re.compile(r"^def train_step\(.*?(?=^def main)", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"^worker-(\d) \| rank (\d): (\d+) steps, loss (\S+) to (\S+)$", re.MULTILINE)
SHORTEST = 140  # batches of the rank that has the fewest


def losses(script: str, folder: Path) -> list[tuple[float, float]]:
    """Return each rank's first and last loss."""
    with launched(folder, script, flags=("--log-level=warning",)) as launch:
        assert launch.wait() == 0, launch.err
        said = SAID.findall(launch.out)
    assert sorted((worker, rank, steps) for worker, rank, steps, *_ in said) == [(name, name, str(SHORTEST)) for name in ("0", "1")]
    return [(float(first), float(last)) for *_, first, last in said]


@pytest.mark.usefixtures("hasty")
def test_it_trains_and_goes_on_from_what_it_saved_in_mixed_precision_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert all(first > 0.6 and last < 0.35 for first, last in losses(SCRIPT, tmp_path))  # a coin's is 0.69
    mixed = STEP.sub(lambda _: MIXED_STEP.replace("init_scale=1024.0", "init_scale=2.0**30") + "\n\n\n", SCRIPT)
    assert mixed.count("def train_step") == mixed.count("init_scale=2.0**30") == 1  # the first steps overflow
    assert all(first < 0.35 and last < 0.35 for first, last in losses(mixed, tmp_path))


def scales(rank: int, scale: torch.Tensor, turn: Barrier) -> list[float]:
    """Return a rank's scale after each of 20 steps of the page's; in step 7 the rows of rank 0 overflow. `scale`: float32[2], shared."""

    def all_reduce(own: torch.Tensor, op: Any) -> None:
        assert op == dist.ReduceOp.MIN
        scale[rank] = own
        turn.wait()
        own.fill_(scale.min())
        turn.wait()

    names: dict[str, Any] = {"torch": torch, "dist": SimpleNamespace(all_reduce=all_reduce, ReduceOp=dist.ReduceOp)}
    exec(MIXED_STEP.replace("init_scale=1024.0", "init_scale=1024.0, growth_interval=5"), names)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    row, weight = (torch.ones(4, device=device, requires_grad=True) for _ in range(2))
    rows, dense = torch.optim.SGD([row]), torch.optim.SGD([weight])
    seen = []
    for step in range(1, 21):
        handle = row.register_hook(lambda gradient: gradient * torch.inf) if (rank, step) == (0, 7) else None  # type: ignore[no-untyped-call]
        names["train_step"](lambda features: (row + weight) * features, rows, dense, torch.ones(4, device=device), weight.detach() * 0)
        if handle is not None:
            handle.remove()
        seen.append(names["scaler"].get_scale())
    return seen


def test_scales_stay_alike_and_grow_again_after_the_rows_of_one_rank_overflowed() -> None:
    shared, turn = torch.zeros(2), Barrier(2, timeout=30.0)
    with ThreadPoolExecutor(2) as ranks:
        one, other = ranks.map(lambda rank: scales(rank, shared, turn), range(2))
    assert one == other == [1024.0] * 4 + [2048.0] * 2 + [1024.0] * 5 + [2048.0] * 5 + [4096.0] * 4

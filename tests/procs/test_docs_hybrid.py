"""The script of docs/hybrid-training.md, as two launched ranks: from nothing, and then from what it saved, in mixed precision."""

import re
from pathlib import Path

import pytest

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


def test_it_trains_and_goes_on_from_what_it_saved_in_mixed_precision_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert all(first > 0.6 and last < 0.35 for first, last in losses(SCRIPT, tmp_path))  # a coin's is 0.69
    mixed = STEP.sub(lambda _: MIXED_STEP.replace("init_scale=1024.0", "init_scale=2.0**30") + "\n\n\n", SCRIPT)
    assert mixed.count("def train_step") == mixed.count("init_scale=2.0**30") == 1  # the first steps overflow
    assert all(first < 0.35 and last < 0.35 for first, last in losses(mixed, tmp_path))

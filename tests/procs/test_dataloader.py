"""Children of a DataLoader, forked or spawned, that never touch us: nothing is sent by them, no connection of ours is closed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ps_worker as ps

SCRIPT = """
import json
import sys

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

import ps_worker as ps


class Clicks(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([index, index % 7]), torch.tensor([float(index % 2)])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = ps.nn.EmbeddingBag(None, 4, name="rows")
        self.top = torch.nn.Linear(4, 1)

    def forward(self, ids):
        return self.top(self.rows(ids))


def connections():
    return sorted(str(item.laddr) + str(item.raddr) for item in psutil.Process().net_connections() if item.raddr)


def main(address, options):
    with ps.init(ps.Sync(), address=address, rank=0, world_size=1) as session:
        model = Model()
        optimizer = ps.optim.ServerOptimizer(model)
        session.client.stats()  # so that every server has been talked to
        loader = DataLoader(Clicks(), batch_size=8, **options)
        before, start = connections(), session.client.clock
        for epoch in range(5):
            for ids, label in ps.prefetch(loader, ids=lambda batch: {model.rows: batch[0]}):
                torch.nn.functional.binary_cross_entropy_with_logits(model(ids), label).backward()
                optimizer.step()
                optimizer.zero_grad()
        print(json.dumps({"steps": session.client.clock - start, "connections": len(before), "kept": before == connections()}))


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
"""
FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}  # ten children, two for each epoch
SPAWNED = {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True}  # each imports torch: two are enough
RUN_TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    with ps.local_cluster(servers=2) as it:
        yield it


@dataclass(frozen=True)
class Run:
    """What a run of the script said, and what it asked of each server."""

    said: dict[str, Any]
    asked: list[dict[str, float]]


def run(cluster: ps.LocalCluster, folder: Path, options: dict[str, Any]) -> Run:
    """Train five epochs with these options of the DataLoader; the rows go on from the run before."""
    path = folder / "script.py"
    path.write_text(SCRIPT)
    before = counted(cluster)
    command = [sys.executable, str(path), json.dumps([cluster.address, options])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    after = counted(cluster)
    return Run(json.loads(done.stdout), [{name: new[name] - old[name] for name in new} for new, old in zip(after, before, strict=True)])


def counted(cluster: ps.LocalCluster) -> list[dict[str, float]]:
    """Return what each server has been asked so far."""
    with ps.connect(cluster.address) as observer:
        return [
            {name: stats.server[name] for name in ("pulls", "pushes", "folds", "refused")} for _, stats in sorted(observer.stats().items())
        ]


@pytest.fixture(scope="module")
def alone(cluster: ps.LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the run of a DataLoader without children."""
    return run(cluster, tmp_path_factory.mktemp("alone"), {})


@pytest.mark.parametrize("options", [FORKED, SPAWNED], ids=["forked", "spawned"])
def test_children_change_nothing(cluster: ps.LocalCluster, alone: Run, tmp_path: Path, options: dict[str, Any]) -> None:
    assert alone.said == {"steps": 40, "connections": 3, "kept": True}
    assert all(asked["folds"] == 40 and asked["pushes"] >= 40 and asked["refused"] == 0 for asked in alone.asked)
    assert run(cluster, tmp_path, options) == alone

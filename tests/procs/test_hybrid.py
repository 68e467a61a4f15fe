"""Tables on servers and dense parameters under DDP: two ranks as processes, under `rowstead launch`, under torchrun and by hand."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from procs.hasty_script import hasty_environment
from procs.hybrid_job import LR, MAX_NORM, STEPS, Scorer, batch_of
from procs.started import ROWSTEAD
from ps_worker.launch.rendezvous import Rendezvous

JOB = str(Path(__file__).with_name("hybrid_job.py"))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
RUN_TIMEOUT_S = 60.0
KILLED_AT = 3

Arrays = Mapping[str, Any]


class PlainBags(nn.Module):
    """What the job's bags are, in torch; `start` float32[ids, dim]."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(start)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        """Return float32[B, dim * n_features]."""
        return torch.cat([nn.functional.embedding(ids, self.rows) for ids in features.values()], dim=1)


def ran(folder: Path, *command: str, **more: str) -> Arrays:
    """Run the synchronous job to its end and return what it came to."""
    result = folder / "result.npz"
    done = subprocess.run(
        [*command, JOB, str(result), "sync"],
        env=hasty_environment(**more),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(result) as arrays:
        return dict(arrays)


def ran_by_hand(address: str, *arguments: str) -> list[tuple[int, str]]:
    """Run the job as two processes, with the environment that docs/hybrid-training.md names; return each one's exit code and stderr."""
    with Rendezvous() as rendezvous:
        place = {**rendezvous.variables({}), "ROWSTEAD_COORDINATOR": address, "WORLD_SIZE": "2"}
        ranks = [
            subprocess.Popen(
                [sys.executable, JOB, *arguments], env=hasty_environment(**place, RANK=str(rank)), stderr=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=RUN_TIMEOUT_S)[1] for rank in ranks]
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    return ran(tmp_path_factory.mktemp("launched"), *ROWSTEAD, "launch", "--servers=2", "--workers=2", "--log-level=warning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    with ps.local_cluster(servers=1) as it:
        yield it


def test_two_ranks_are_one_plain_torch_process_on_the_joined_batch(synchronous: Arrays) -> None:
    bags = PlainBags(torch.from_numpy(synchronous["start"].copy()))
    model = Scorer(bags)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS):
        (mine, wanted), (others, others_wanted) = batch_of(0, step), batch_of(1, step)
        joined = {name: torch.cat([mine[name], others[name]]) for name in mine}
        nn.functional.mse_loss(model(joined), torch.cat([wanted, others_wanted])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: weight.numpy() for name, weight in model.top.state_dict().items()}
    for name, want in {**weights, "rows": bags.rows.detach().numpy()}.items():
        np.testing.assert_allclose(synchronous[name], want, rtol=1e-4, atol=1e-6, err_msg=name)
    assert np.abs(synchronous["rows"] - synchronous["start"]).max() > 0.01  # else there is nothing to compare


def test_under_torchrun_with_another_number_of_servers_it_is_the_same_bits(
    synchronous: Arrays, cluster: ps.LocalCluster, tmp_path: Path
) -> None:
    again = ran(tmp_path, *TORCHRUN, ROWSTEAD_COORDINATOR=cluster.address)
    assert again.keys() == synchronous.keys()
    assert [name for name in again if again[name].tobytes() != synchronous[name].tobytes()] == []


def test_rows_may_be_asynchronous(synchronous: Arrays, cluster: ps.LocalCluster, tmp_path: Path) -> None:
    ranks = ran_by_hand(cluster.address, str(tmp_path / "result.npz"), "async")
    assert [code for code, _ in ranks] == [0, 0], ranks
    with np.load(tmp_path / "result.npz") as arrays:
        moved = [np.abs(job["rows"] - job["start"]).sum() for job in (arrays, synchronous)]
    assert 1.2 * moved[1] < moved[0] < np.inf  # each rank's gradient is applied whole, where synchronous mode applies their mean


def distance(arrays: Arrays) -> float:
    """Return how far a job has moved all its weights."""
    begin = Scorer(nn.Identity()).top.state_dict()
    squares = [np.square(arrays[name] - weight.numpy()).sum() for name, weight in begin.items()]
    return float(np.sqrt(sum(squares) + np.square(arrays["rows"] - arrays["start"]).sum()))


def test_clipping_all_gradients_as_one_vector_leaves_the_dense_copies_alike(
    synchronous: Arrays, cluster: ps.LocalCluster, tmp_path: Path
) -> None:
    ranks = ran_by_hand(cluster.address, str(tmp_path / "result.npz"), "clipped")  # which compares the copies
    assert [code for code, _ in ranks] == [0, 0], ranks
    with np.load(tmp_path / "result.npz") as arrays:
        assert 0.01 < distance(arrays) <= 1.01 * STEPS * LR * MAX_NORM < distance(synchronous)


def test_a_rank_that_dies_ends_the_others_and_leaves_the_servers(tmp_path: Path) -> None:
    with ps.local_cluster(servers=1) as cluster:
        (code, said), (killed, _) = ran_by_hand(cluster.address, str(tmp_path / "result.npz"), "sync", str(KILLED_AT))
        assert (code, killed) == (1, -9), said
        assert said.count("Traceback") == 1
        assert "RuntimeError" in said
        assert "gloo" in said
        with ps.connect(cluster.address) as observer:  # the servers go on, with the rows of the steps that all ranks finished
            ids, _ = observer.export("sync")
            pushed = [features for rank in range(2) for step in range(KILLED_AT) for features in batch_of(rank, step)[0].values()]
            assert set(ids.tolist()) == set(torch.cat(pushed).tolist())

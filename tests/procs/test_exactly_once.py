"""Real processes, behind a proxy that loses and doubles or over lanes that are cut: asynchronous and bounded runs sum to exactly what was
pushed, per id."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

import ps_worker as ps
from cut_lanes import FATES, CutLanes
from jobs import counting_table
from procs.proxied import ProxiedCluster, proxied_cluster
from procs.ranks import run_ranks

WORKERS, STEPS, IDS = 3, 20, 500


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    with proxied_cluster(tmp_path_factory.mktemp("proxied"), servers=2, seed=23, lose=0.15, double=0.15) as it:
        yield it


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    with ps.local_cluster(servers=2) as it:
        yield it


def check_each_push_counts_once(address: str, table: str, mode: ps.Mode, transport: str) -> None:
    """Push from all ranks to a new table and compare; then see that some push arrived again under its name."""
    pushed: list[Counter[int]] = [Counter() for _ in range(WORKERS)]

    def work(rank: int) -> None:
        rng = np.random.default_rng([5, rank])
        with ps.connect(address, rank=rank, world_size=WORKERS, mode=mode, transport=transport) as client:
            client.create_table(counting_table(table))
            for _ in range(STEPS):
                ids = rng.integers(0, IDS, 100).astype(np.uint64)  # of all ranks, with repeats
                client.pull(table, ids)
                times = rng.integers(1, 4, ids.size)
                client.push(table, ids, np.repeat(times[:, None], 2, axis=1).astype(np.float32))
                for id, count in zip(ids.tolist(), times.tolist(), strict=True):
                    pushed[rank][id] += count
                client.end_step()

    run_ranks(WORKERS, work)
    with ps.connect(address, transport=transport) as observer:
        ids, rows = observer.export(table)
        repeated = sum(stats.tables[table]["rows_repeated"] for stats in observer.stats().values())
    total = sum(pushed, Counter())
    assert {int(id): -float(row[0]) for id, row in zip(ids, rows, strict=True)} == {id: float(count) for id, count in total.items()}
    assert (rows[:, 0] == rows[:, 1]).all()
    assert repeated > 0, "some push arrived again under its name"


@pytest.mark.parametrize("mode", [ps.Async(), ps.BoundedStaleness(2)], ids=str)
def test_each_push_counts_once_through_a_faulty_network(proxied: ProxiedCluster, mode: ps.Mode) -> None:
    kinds = ("request lost", "answer lost", "request doubled")
    before = {kind: proxied.faults(kind) for kind in kinds}
    check_each_push_counts_once(proxied.address, f"counts {mode}", mode, "grpc")
    for kind in kinds:
        assert proxied.faults(kind) > before[kind], kind


@pytest.mark.parametrize(
    ("transport", "mode"), [("arena", ps.Async()), ("unix", ps.BoundedStaleness(2)), ("tcp", ps.Async())], ids=["arena", "unix", "tcp"]
)
def test_each_push_counts_once_over_lanes_that_are_cut(
    cluster: ps.LocalCluster, transport: str, mode: ps.Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = CutLanes(seed=29, share=0.2, monkeypatch=monkeypatch)
    check_each_push_counts_once(cluster.address, f"counts {transport}", mode, transport)
    assert all([lanes.faults[fate] > 0 for fate in FATES]), lanes.faults

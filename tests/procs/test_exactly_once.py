"""Real processes behind a proxy that loses and doubles: asynchronous and bounded runs sum to exactly what was pushed, per id."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ps_worker as ps
from jobs import counting_table
from procs.proxied import proxied_cluster
from procs.ranks import run_ranks

WORKERS, STEPS, IDS = 3, 20, 500


@pytest.mark.parametrize("mode", [ps.Async(), ps.BoundedStaleness(2)], ids=str)
def test_each_push_counts_once(mode: ps.Mode, tmp_path: Path) -> None:
    pushed: list[Counter[int]] = [Counter() for _ in range(WORKERS)]

    def work(rank: int) -> None:
        rng = np.random.default_rng([5, rank])
        with ps.connect(cluster.address, rank=rank, world_size=WORKERS, mode=mode) as client:
            client.create_table(counting_table("counts"))
            for _ in range(STEPS):
                ids = rng.integers(0, IDS, 100).astype(np.uint64)  # of all ranks, with repeats
                client.pull("counts", ids)
                times = rng.integers(1, 4, ids.size)
                client.push("counts", ids, np.repeat(times[:, None], 2, axis=1).astype(np.float32))
                for id, count in zip(ids.tolist(), times.tolist(), strict=True):
                    pushed[rank][id] += count
                client.end_step()

    with proxied_cluster(tmp_path, servers=2, seed=23, lose=0.15, double=0.15) as cluster:
        run_ranks(WORKERS, work)
        with ps.connect(cluster.address) as observer:
            ids, rows = observer.export("counts")
            repeated = sum(stats.tables["counts"]["rows_repeated"] for stats in observer.stats().values())
    total = sum(pushed, Counter())
    assert {int(id): -float(row[0]) for id, row in zip(ids, rows, strict=True)} == {id: float(count) for id, count in total.items()}
    assert (rows[:, 0] == rows[:, 1]).all()
    for kind in ("request lost", "answer lost", "request doubled"):
        assert cluster.faults(kind) > 0, kind
    assert repeated > 0, "some push arrived again under its name"

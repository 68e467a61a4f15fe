"""Real sockets through a proxy that delays, cuts, half-opens and reorders: every push counts once, and nobody hangs."""

from collections import Counter

import numpy as np
import pytest

import ps_worker as ps
from cut_proxy import FATES, LATE, CutProxy
from jobs import counting_table
from procs.ranks import run_ranks
from served_cluster import proxied_cluster

WORKERS, STEPS, IDS = 2, 15, 400
RPC_TIMEOUT_S = 0.4


def pushed_and_held(address: str, mode: ps.Mode, transport: str) -> tuple[Counter[int], dict[int, float], float]:
    """Train with both ranks; return how often each id was pushed, what the rows say of it, and how many rows came again."""
    pushed: list[Counter[int]] = [Counter() for _ in range(WORKERS)]

    def work(rank: int) -> None:
        rng = np.random.default_rng([5, rank])
        with ps.connect(address, rank=rank, world_size=WORKERS, mode=mode, transport=transport, rpc_timeout_s=RPC_TIMEOUT_S) as client:
            client.create_table(counting_table("counts"))
            for _ in range(STEPS):
                ids = np.flatnonzero(rng.random(IDS) < 0.5).astype(np.uint64)
                client.pull("counts", ids)
                client.push("counts", ids, np.ones((ids.size, 2), np.float32))
                pushed[rank].update(ids.tolist())
                client.end_step()

    run_ranks(WORKERS, work)
    with ps.connect(address, transport=transport, rpc_timeout_s=RPC_TIMEOUT_S) as observer:
        ids, rows = observer.export("counts")
        repeated = sum(stats.tables["counts"]["rows_repeated"] for stats in observer.stats().values())
    assert (rows[:, 0] == rows[:, 1]).all()
    return sum(pushed, Counter()), {int(id): -float(row[0]) for id, row in zip(ids, rows, strict=True)}, repeated


@pytest.mark.parametrize(("transport", "mode"), [("grpc", ps.Async()), ("tcp", ps.BoundedStaleness(1)), ("tcp", ps.Sync())], ids=str)
def test_each_push_counts_once_through_a_network_that_treats_connections_badly(transport: str, mode: ps.Mode) -> None:
    fates = FATES * 2
    lanes = fates if transport == "tcp" else ()
    with CutProxy(31, () if lanes else fates) as by_grpc, CutProxy(37, lanes) as by_lane, proxied_cluster(by_grpc, by_lane) as address:
        pushed, held, repeated = pushed_and_held(address, mode, transport)
        faults = by_grpc.faults + by_lane.faults
    share = 1 / WORKERS if isinstance(mode, ps.Sync) else 1  # of a rank's gradient in a step
    assert held == {id: times * share for id, times in pushed.items()}
    if by_lane.faults[LATE] and not isinstance(mode, ps.Sync):
        assert repeated > 0, "what was held back arrived behind what was sent again, by another lane"
    assert all(faults[fate] > 0 for fate in FATES), faults

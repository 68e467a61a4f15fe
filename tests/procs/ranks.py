"""Several ranks of a job as threads of the test, each with a client of its own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ps_worker as ps
from jobs import TABLES, gradients_of, halves, ids_of


def run_ranks(world_size: int, work: Callable[[int], None]) -> None:
    """Run work(rank) for every rank at once; raise the first error."""
    with ThreadPoolExecutor(world_size) as ranks:
        for outcome in [ranks.submit(work, rank) for rank in range(world_size)]:
            outcome.result(timeout=100)


def train(
    address: str, world_size: int, steps: int, part_size_bytes: int = 1 << 20, rpc_timeout_s: float = 10.0, transport: str = "grpc"
) -> dict[str, tuple[object, object]]:
    """Run the synchronous job of jobs.py; return all rows as an observer exports them."""
    how: Any = {"part_size_bytes": part_size_bytes, "rpc_timeout_s": rpc_timeout_s, "transport": transport}

    def work(rank: int) -> None:
        with ps.connect(address, rank=rank, world_size=world_size, mode=ps.Sync(), **how) as client:
            for spec in TABLES:
                client.create_table(spec)
            for step in range(steps):
                ids = {spec.name: ids_of(rank, step, spec.name) for spec in TABLES}
                rows = client.pull(ids)
                gradients = {name: gradients_of(rank, step, ids[name], rows[name]) for name in ids}
                for half in (0, 1):
                    client.push(
                        {name: (ids[name][halves(ids[name].size)[half]], gradients[name][halves(ids[name].size)[half]]) for name in ids}
                    )
                client.end_step()

    run_ranks(world_size, work)
    with ps.connect(address, **how) as observer:
        return {spec.name: observer.export(spec.name) for spec in TABLES}

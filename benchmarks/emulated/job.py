"""One server and so many emulated workers, for the length of a `with` block."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

import numpy as np

import ps_worker as ps
from benchmarks.bed import check_rows
from benchmarks.case import WrongAnswer
from benchmarks.categories import DIM
from benchmarks.cpu_time import cpu_s
from benchmarks.emulated.batches import id_batches
from benchmarks.emulated.delays import Stragglers
from benchmarks.emulated.due import due_after_pushes, due_after_steps
from benchmarks.emulated.ran import Ran
from benchmarks.emulated.worker import ADAGRAD, TABLE, Order, Taken
from benchmarks.told import Told


class Job:
    """Its workers take the same number of steps, all beginning at once; `steps` counts those that each has taken."""

    def __init__(self, cluster: ps.LocalCluster, workers: list[Told], observer: ps.Client, mode: str, samples: int, seed: int) -> None:
        self._cluster = cluster
        self._workers = workers
        self._observer = observer
        self._mode, self._samples, self._seed = mode, samples, seed
        self.steps = 0

    def run(self, steps: int, accelerator_s: float, stragglers: Stragglers = "none", *, lead: int) -> Ran:
        """Let every worker take so many steps, and `lead` before them that do not count; returns when all have."""
        server, workers = [self._cluster.pids["server-0"]], [worker.process.pid for worker in self._workers]
        before, server_s, workers_s, began_s = self._stats(), cpu_s(server), cpu_s(workers), time.perf_counter()
        order = json.dumps(asdict(Order(self.steps, lead + steps, accelerator_s, stragglers, self._seed)))
        for worker in self._workers:
            worker.tell(order)
        taken = [Taken(**json.loads(worker.hear())) for worker in self._workers]
        passed_s = time.perf_counter() - began_s
        server_s, workers_s = cpu_s(server) - server_s, cpu_s(workers) - workers_s
        self.steps += lead + steps
        after = self._stats()
        pulls = after["pulls"] - before["pulls"]
        return Ran.of(
            taken,
            lead,
            held_back_s=(after["wait_s"] - before["wait_s"]) / pulls,
            staleness=(after["staleness_sum"] - before["staleness_sum"]) / pulls,
            server_share=server_s / passed_s,
            workers_share=workers_s / passed_s,
        )

    def _stats(self) -> Mapping[str, float]:
        (stats,) = self._observer.stats().values()
        return stats.server

    def check(self) -> None:
        """Raise WrongAnswer unless every push of every worker is in the rows, once."""
        batches = [id_batches(self._samples, self._seed, rank) for rank in range(len(self._workers))]
        due = due_after_steps if self._mode == "sync" else due_after_pushes
        want_ids, values = due(batches, self.steps, ADAGRAD)
        ids, rows = self._observer.export(TABLE)
        if not np.array_equal(ids, want_ids):
            raise WrongAnswer(f"the server has {ids.size} rows where {want_ids.size} others were due")
        check_rows(rows, np.repeat(values[:, None], DIM, axis=1))


@contextmanager
def job(workers: int, mode: str, samples: int, seed: int) -> Iterator[Job]:
    """Run a server, and workers that have joined. `mode`: "async", "sync" or a staleness bound."""
    with ExitStack() as stack:
        cluster = stack.enter_context(ps.local_cluster(servers=1, log_level="warning"))
        observer = stack.enter_context(ps.connect(cluster.address))
        told = [
            stack.enter_context(Told("benchmarks.emulated.worker", cluster.address, str(rank), str(workers), mode, str(samples), str(seed)))
            for rank in range(workers)
        ]
        for worker in told:
            worker.hear()
        yield Job(cluster, told, observer, mode, samples, seed)

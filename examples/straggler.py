"""A job with one slow worker, without and with a backup worker.

    python examples/straggler.py

You will see, for `ps.Sync()` and for `ps.Sync(backup_workers=1)`, the time per step, how many of the slow worker's steps came too late,
how many pushes were dropped, and the loss on data that nobody trained on, after the same number of steps.

The idea to take away: in synchronous mode a step takes as long as its slowest worker. With a backup worker of n, the first n - 1 gradients
make up a step and the last one is dropped (Chen et al., "Revisiting distributed synchronous SGD", 2016). So a step costs what the second
slowest takes, and what that buys is paid for: each step is of less data, the slow worker's share of the data hardly counts, and two runs no
longer end with the same bits. It pays where now one worker is slow and now another; a machine that always is slow is better replaced.

The workers are threads of this process, each with a client of its own; their computing is emulated: the gradient of a small logistic
regression, and a sleep of --step-ms, or --slow-ms in the last one.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import ps_worker as ps

FEATURES = 2_000
PER_SAMPLE = 8
BATCH = 128  # of each worker
TABLE = ps.TableSpec("weights", dim=1, optimizer=ps.Adagrad(lr=0.5))

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def draw(count: int, random: np.random.Generator) -> tuple[Ids, Floats]:
    """Return samples of a made-up world: ids int64[count, PER_SAMPLE] and labels [count], 0 or 1."""
    truth = np.random.default_rng(7).normal(size=FEATURES)
    ids = random.integers(0, FEATURES, (count, PER_SAMPLE))
    return ids, (random.random(count) < sigmoid(truth[ids].sum(axis=1))).astype(np.float64)


def sigmoid(logits: Floats) -> Floats:
    chances: Floats = 1.0 / (1.0 + np.exp(-logits))
    return chances


def train(address: str, rank: int, world_size: int, mode: ps.Mode, steps: int, compute_s: float) -> int:
    """Train until the job has done so many steps; return how many of this worker's came too late."""
    random = np.random.default_rng(rank)
    with ps.connect(address, rank=rank, world_size=world_size, mode=mode) as client:
        client.create_table(TABLE)
        client.barrier()
        while client.clock < steps:
            ids, labels = draw(BATCH, random)
            weights = client.pull("weights", ids.reshape(-1))
            errors = sigmoid(weights.reshape(ids.shape).sum(axis=1)) - labels
            time.sleep(compute_s)  # stands for a larger model
            gradients = np.repeat(errors / BATCH, PER_SAMPLE).astype(np.float32).reshape(-1, 1)
            client.push("weights", ids.reshape(-1), gradients)
            client.end_step()
        return client.late_steps


@dataclass(frozen=True)
class Outcome:
    step_ms: float
    late_steps: int  # of the slow worker
    dropped: int  # pushes that came for a step that was over, or were not among the first
    loss: float


def run(mode: ps.Mode, workers: int, steps: int, step_s: float, slow_s: float) -> Outcome:
    """Train once, in a cluster of its own; the last worker is the slow one."""
    with ps.local_cluster(servers=2) as cluster, ThreadPoolExecutor(workers) as threads:
        started_s = time.monotonic()
        ranks = [
            threads.submit(train, cluster.address, rank, workers, mode, steps, slow_s if rank == workers - 1 else step_s)
            for rank in range(workers)
        ]
        late = [rank.result() for rank in ranks]
        took_s = time.monotonic() - started_s
        with ps.connect(cluster.address) as observer:
            ids, labels = draw(20_000, np.random.default_rng(2**32))
            chances = sigmoid(observer.pull("weights", ids.reshape(-1)).reshape(ids.shape).sum(axis=1).astype(np.float64))
            numbers = observer.stats()["server-0"].server  # of one server: each push has a part for it
        loss = -np.mean(np.log(np.where(labels == 1.0, chances, 1.0 - chances)))
    return Outcome(1e3 * took_s / steps, late[-1], int(numbers["pushes_late"] + numbers["contributions_dropped"]), float(loss))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Train with one slow worker, without and with a backup worker.")
    parser.add_argument("--workers", type=int, default=4, help="workers, of which the last is slow (default 4)")
    parser.add_argument("--steps", type=int, default=100, help="steps of the job (default 100)")
    parser.add_argument("--step-ms", type=float, default=5.0, help="what a gradient takes, in milliseconds (default 5)")
    parser.add_argument("--slow-ms", type=float, default=60.0, help="what it takes the slow worker (default 60)")
    chosen = parser.parse_args(arguments)
    if chosen.workers < 2:
        parser.error("--workers must be at least 2: one of them is slow")
    print(f"{chosen.workers} workers for {chosen.steps} steps; the last one takes {chosen.slow_ms:g} ms where the others take", end=" ")
    print(f"{chosen.step_ms:g} ms (a sleep)\n\n{'mode':<26}{'a step takes':>14}{'late steps':>12}{'pushes dropped':>16}{'loss':>8}")
    for mode in (ps.Sync(), ps.Sync(backup_workers=1)):
        name = f"ps.Sync({f'backup_workers={mode.backup_workers}' if mode.backup_workers else ''})"
        outcome = run(mode, chosen.workers, chosen.steps, chosen.step_ms / 1e3, chosen.slow_ms / 1e3)
        print(f"{name:<26}{outcome.step_ms:>11.1f} ms{outcome.late_steps:>12}{outcome.dropped:>16}{outcome.loss:>8.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

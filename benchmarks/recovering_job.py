"""The script of a job that is disturbed: it trains until it is ended, and writes down what it comes to, and when.

    recovering_job.py FOLDER torch|numpy

Each line of FOLDER/worker-<rank>: the seconds of the system's monotonic clock, this process's id, `started`, `imported`, `joined` or
`reads`, and the step. A rank that reads at step t shows that all steps before t are folded. With `torch` it is a script as a user writes
it; with `numpy` it imports no torch and has one table.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PAUSE_S = 0.01  # in each step: a model that computes for as long
IDS = 1_000
STEPS_MAX = 1 << 30


def main(folder: str, kind: str) -> None:
    with Path(folder, f"worker-{os.environ['RANK']}").open("a", buffering=1) as notes:

        def note(what: str, step: int) -> None:
            notes.write(f"{time.monotonic()} {os.getpid()} {what} {step}\n")

        note("started", 0)
        train(kind, note)


def train(kind: str, note: Callable[[str, int], None]) -> None:
    import ps_worker as ps

    if kind == "torch":
        import torch

        _ = ps.nn.EmbeddingBag, ps.optim.ServerOptimizer, torch
    note("imported", 0)
    with ps.init(mode=ps.Sync()) as session:
        note("joined", session.client.clock)
        steps = torch_steps if kind == "torch" else numpy_steps
        for step in steps():
            note("reads", step)
            time.sleep(PAUSE_S)


def numpy_steps() -> Iterator[int]:
    """Yield at each step when its rows are read, and push once whoever asks goes on."""
    import numpy as np

    import ps_worker as ps

    session = ps.session()
    session.client.create_table(ps.TableSpec("rows", dim=16, optimizer=ps.Adagrad(lr=0.1)))
    for step in session.steps(STEPS_MAX):
        ids = np.random.default_rng((step, session.rank)).integers(0, IDS, 256)
        rows = session.client.pull("rows", ids)
        yield step
        session.client.push("rows", ids, rows + np.float32(0.1))
        session.client.end_step()


def torch_steps() -> Iterator[int]:
    """Do the same with a model of torch."""
    import torch

    import ps_worker as ps

    session = ps.session()
    model = torch.nn.Sequential(ps.nn.EmbeddingBag(None, 16, mode="sum", name="rows"), torch.nn.Linear(16, 1))
    optimizer = ps.optim.ServerOptimizer(model, dense=ps.Adam(lr=1e-2), sparse=ps.Adagrad(lr=0.1))
    for step in session.steps(STEPS_MAX):
        generator = torch.Generator().manual_seed(session.world_size * step + session.rank)
        loss = model(torch.randint(0, IDS, (64, 4), generator=generator)).square().mean()
        yield step
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How far each curve goes."""

from dataclasses import dataclass

from benchmarks import sizes as path_sizes


@dataclass(frozen=True, slots=True)
class ScalingSizes:
    """`path`: those of the shared cases, of which the pulls are made.

    rows_held     sizes of the growing table.     rows_ids  of each pull and push of it.     rows_batch  ids of the pushes that fill it.
    server_rows   rows of 64 floats, shared out over the servers; each pull asks for `path.batch` of them.
    samples       of each emulated worker's batches.
    worker_steps  of each round, after `lead_steps` that are not counted.
    """

    path: path_sizes.Sizes
    ids: tuple[int, ...]
    rows_held: tuple[int, ...]
    rows_ids: int
    rows_batch: int
    servers: tuple[int, ...]
    server_rows: int
    workers: tuple[int, ...]
    samples: tuple[int, ...]
    accelerator_s: float
    lead_steps: int
    worker_steps: int
    worker_rounds: int


FULL = ScalingSizes(
    path=path_sizes.FULL,
    ids=(100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    rows_held=(10_000, 100_000, 1_000_000, 10_000_000, 30_000_000),
    rows_ids=10_000,
    rows_batch=100_000,
    servers=(1, 2, 3, 4, 6, 8),
    server_rows=1_000_000,
    workers=(1, 2, 4, 8, 12, 16),
    samples=(512, 2_048),
    accelerator_s=0.050,
    lead_steps=10,
    worker_steps=60,
    worker_rounds=3,
)
QUICK = ScalingSizes(
    path=path_sizes.QUICK,
    ids=(100, 1_000),
    rows_held=(1_000, 4_000),
    rows_ids=500,
    rows_batch=1_000,
    servers=(2,),
    server_rows=5_000,
    workers=(2,),
    samples=(16,),
    accelerator_s=0.005,
    lead_steps=2,
    worker_steps=6,
    worker_rounds=1,
)

"""How much work a case is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rounds are of those cases that repeat quickly; `slow_rounds` of training and start-up, which take seconds."""

    rounds: int
    warm_ups: int
    slow_rounds: int
    start_ups: tuple[str, ...]
    table_rows: int
    batch: int  # ids of a pull or push
    dense_rows: int
    latency_calls: int
    growth_rows: int
    growth_batch: int
    training_steps: int
    training_batch: int
    checkpoint_steps: int  # of a job whose processes are killed: a checkpoint at each multiple
    recovers_torch: bool  # whether its script imports torch


FULL = Sizes(
    rounds=21,
    warm_ups=5,
    slow_rounds=5,
    start_ups=("warm", "cold"),
    table_rows=4_000_000,
    batch=100_000,
    dense_rows=32_768,  # of 512 floats: 64 MiB
    latency_calls=2_000,
    growth_rows=10_000_000,
    growth_batch=100_000,
    training_steps=40,
    training_batch=4_096,
    checkpoint_steps=100,
    recovers_torch=True,
)
QUICK = Sizes(
    rounds=2,
    warm_ups=1,
    slow_rounds=1,
    start_ups=("warm",),
    table_rows=20_000,
    batch=5_000,  # more than the fewest ids of which a pull is remembered
    dense_rows=256,
    latency_calls=50,
    growth_rows=20_000,
    growth_batch=5_000,
    training_steps=2,
    training_batch=64,
    checkpoint_steps=20,
    recovers_torch=False,
)

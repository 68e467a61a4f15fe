"""How many workers and steps."""

from dataclasses import dataclass

from benchmarks.emulated.delays import Stragglers


@dataclass(frozen=True, slots=True)
class StalenessSizes:
    """`steps` by the stragglers: those that come by chance need more of them.

    lead_steps  before those that count: with one slow rank, the others are as far ahead as the largest bound lets them be after 3/2 of it.
    samples     of a worker's batch.
    """

    modes: tuple[str, ...]
    workers: int
    samples: int
    accelerator_s: float
    lead_steps: int
    steps: dict[Stragglers, int]


FULL = StalenessSizes(
    modes=("sync", "1", "2", "4", "8", "16", "async"),
    workers=8,
    samples=512,
    accelerator_s=0.050,
    lead_steps=26,
    steps={"none": 60, "one": 40, "random": 160},
)
QUICK = StalenessSizes(
    modes=("sync", "2"),
    workers=2,
    samples=16,
    accelerator_s=0.002,
    lead_steps=4,
    steps={"none": 5, "one": 5, "random": 20},
)

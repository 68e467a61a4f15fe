"""What became of an order to all workers of a job: times of steps, who waited how long, processors used."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.emulated.worker import Taken

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ran:
    """Of each step that counts, float64[workers, steps] each as worker.py's Taken says.

    held_back_s   how long the server kept a pull waiting for other ranks, the mean over all pulls.
    staleness     in steps: a worker's clock less the slowest one's, the mean over all pulls as they were answered.
    server_share  of one processor, that the server used.     workers_share  the workers together: 2.0 is two processors.
    """

    step_s: Seconds
    accelerator_s: Seconds
    blocked_s: Seconds
    sending_s: Seconds
    held_back_s: float
    staleness: float
    server_share: float
    workers_share: float

    @classmethod
    def of(cls, taken: Sequence[Taken], lead: int, **others: float) -> "Ran":
        """Make it of what each rank took, without the first `lead` steps, in which the workers find their pace; `others`: the rest."""
        values: dict[str, Any] = {field.name: np.array([getattr(rank, field.name)[lead:] for rank in taken]) for field in fields(Taken)}
        return cls(**(values | others))

    @property
    def per_second(self) -> float:
        """How many steps all workers take in a second, together: each at its own pace, which it keeps while all are at work."""
        return float((1.0 / self.step_s.mean(axis=1)).sum())

    @property
    def per_second_until_last(self) -> float:
        """All steps over the time of the worker that took longest: where processors are short, some are done before others."""
        return float(self.step_s.size / self.step_s.sum(axis=1).max())

    @property
    def slowest_s(self) -> float:
        """The slowest accelerator's time, the mean over the steps: who waits for all in each step is no faster."""
        return float(self.accelerator_s.max(axis=0).mean())

    @property
    def blocked_share(self) -> float:
        """The share of all workers' time that they waited for rows."""
        return float(self.blocked_s.sum() / self.step_s.sum())

    @property
    def blocked_shares(self) -> list[float]:
        """The same for each rank alone."""
        shares: list[float] = (self.blocked_s.sum(axis=1) / self.step_s.sum(axis=1)).tolist()
        return shares

    @property
    def sending_share(self) -> float:
        """The share of all workers' time that they waited for pushes."""
        return float(self.sending_s.sum() / self.step_s.sum())

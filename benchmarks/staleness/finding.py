"""What is found of one mode with some stragglers."""

from dataclasses import dataclass
from typing import Any

from benchmarks.emulated.delays import HICCUP_CHANCE, HICCUP_TIMES, SLOW_TIMES, STRAGGLERS, Stragglers
from benchmarks.emulated.ran import Ran
from benchmarks.staleness.modes import OSDI_14_IDLE, spoken

SPOKEN: dict[Stragglers, str] = {
    "none": "no stragglers",
    "one": f"one worker {SLOW_TIMES:g} times slower all along",
    "random": f"{HICCUP_CHANCE:.0%} of all steps {HICCUP_TIMES:g} times slower, by chance",
}
assert tuple(SPOKEN) == STRAGGLERS

HEAD = (
    f"{'mode':<10} {'step':>8} {'accelerator':>12} {'slowest':>9} {'idle':>7} {'[by worker]':>16} {'OSDI-14':>8} {'held back':>10} "
    f"{'pushing':>8} {'staleness':>10}"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Of all workers over the steps that count.

    step_ms         the number of workers over the steps that they take in a second, together.
    accelerator_ms  of it the sleep, which the mode cannot change.     slowest_ms  the slowest sleep in each step.
    idle            the share of all workers' time in which they waited for rows; idle_of by rank.
    held_back_ms    how long the server kept a pull waiting for other ranks, also while its worker computed, the mean over all pulls.
    pushing         the share of their time in which they waited for pushes.
    staleness       of what they read, in steps.
    """

    mode: str
    stragglers: Stragglers
    step_ms: float
    accelerator_ms: float
    slowest_ms: float
    idle: float
    idle_of: list[float]
    held_back_ms: float
    pushing: float
    staleness: float

    @classmethod
    def of(cls, mode: str, stragglers: Stragglers, ran: Ran) -> "Finding":
        workers = len(ran.step_s)
        return cls(
            mode,
            stragglers,
            step_ms=1e3 * workers / ran.per_second,
            accelerator_ms=1e3 * float(ran.accelerator_s.mean()),
            slowest_ms=1e3 * ran.slowest_s,
            idle=ran.blocked_share,
            idle_of=ran.blocked_shares,
            held_back_ms=1e3 * ran.held_back_s,
            pushing=ran.sending_share,
            staleness=ran.staleness,
        )

    def line(self) -> str:
        """Return a line of the table under HEAD."""
        osdi = OSDI_14_IDLE.get(self.mode) if self.stragglers == "none" else None
        beside = "" if osdi is None else f"{osdi:.1%}"
        times = f"{self.step_ms:>5.1f} ms {self.accelerator_ms:>9.1f} ms {self.slowest_ms:>6.1f} ms"
        by_worker = f"[{min(self.idle_of):.1%}..{max(self.idle_of):.1%}]"
        waits = f"{self.idle:>7.1%} {by_worker:>16} {beside:>8} {self.held_back_ms:>7.1f} ms {self.pushing:>8.1%}"
        return f"{spoken(self.mode):<10} {times} {waits} {self.staleness:>10.1f}"

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

"""The processor time that processes have used."""

import time
from collections.abc import Iterable

CPU_CLOCK = 2  # Linux's CPUCLOCK_SCHED: with the complement of a pid above it, the clock of what that process has used, in nanoseconds


def cpu_s(pids: Iterable[int]) -> float:
    """Return the seconds that these processes have used so far, together."""
    return sum([_cpu_s(pid) for pid in pids])


def _cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | CPU_CLOCK)

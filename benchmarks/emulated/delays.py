"""How long each step's emulated accelerator takes: everywhere the same, or with stragglers (W8)."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Stragglers = Literal["none", "one", "random"]
STRAGGLERS: tuple[Stragglers, ...] = get_args(Stragglers)

SLOW_RANK, SLOW_TIMES = 0, 3.0
HICCUP_CHANCE, HICCUP_TIMES = 0.05, 10.0


def delays(stragglers: Stragglers, accelerator_s: float, rank: int, steps: int, seed: int) -> npt.NDArray[np.float64]:
    """Return the seconds of each step, float64[steps].

    none     all take `accelerator_s`.     one  rank 0 takes 3 times as long all along.
    random   each step of each rank takes 10 times as long with a chance of 5 %, drawn from the seed and the rank.
    """
    took = np.full(steps, accelerator_s)
    match stragglers:
        case "one" if rank == SLOW_RANK:
            took *= SLOW_TIMES
        case "random":
            took[np.random.default_rng([seed, rank, 1]).random(steps) < HICCUP_CHANCE] *= HICCUP_TIMES
    return took

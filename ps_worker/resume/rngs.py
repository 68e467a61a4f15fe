"""The states of the random generators that a script has without asking: Python's, numpy's global one, torch's on the CPU and each GPU."""

import random
import sys
from typing import Any

import numpy as np


def rng_states() -> dict[str, Any]:
    """Return the states as plain data, some 10 KB; torch's only where it is loaded, a GPU's only where it is in use."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": (version, np.array(words, np.uint32), gauss),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002  # the global generator is what scripts use
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_rng_states(states: dict[str, Any]) -> None:
    """Set what `rng_states` gave; of GPUs those that this process has."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(states["numpy"])  # noqa: NPY002  # as above
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        for index, state in enumerate(states.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, index)

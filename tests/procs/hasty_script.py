"""The environment of scripts that import torch and are run for what they compute, not for how their processes end."""

import os
from pathlib import Path

_HASTY = str(Path(__file__).with_name("hasty"))


def hasty_environment(**more: str) -> dict[str, str]:
    """Return this process's environment and `more`, for a script that is to cost little, and whatever it starts.

    It computes in one torch thread: more of them spin where others want the cores, and they cut its sums elsewhere. Half of what it takes
    to import torch and its compiler, and to end again, is the collector's looking through them, which it does not (hasty/sitecustomize.py).
    """
    path = os.pathsep.join([_HASTY, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}

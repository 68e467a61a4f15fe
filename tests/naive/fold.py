"""The fold of a step, one number at a time."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
Pushed = tuple[int, int, dict[int, Row]]  # rank, seq, the gradient of each id


def fold(pushes: Iterable[Pushed], ranks_count: int) -> dict[int, list[np.float32]]:
    """Return each id's mean gradient over the roster: summed by (rank, seq) from the first on, then times float32(1 / ranks_count)."""
    sums: dict[int, list[np.float32]] = {}
    for _, _, gradients in sorted(pushes, key=lambda push: push[:2]):
        for id, row in gradients.items():
            sums[id] = [a + b for a, b in zip(sums[id], row, strict=True)] if id in sums else list(row)
    factor = np.float32(1 / ranks_count)
    return {id: [value * factor for value in row] for id, row in sums.items()}

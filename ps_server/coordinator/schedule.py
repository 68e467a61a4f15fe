"""When checkpoints are taken without anybody asking, and how many stay."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is set about checkpoints.

    root         where they go that are taken without anybody asking, and those that name no root; "": nowhere.
    every_steps  one at each multiple of so many steps of a running job, 0: none.     every_s  one after so many seconds, 0: none.
    keep         how many complete ones stay under `root`, beside those that they need.
    full_every   of so many in a row, one has all rows; the others have those touched since the one before.
    """

    root: str = ""
    every_steps: int = 0
    every_s: float = 0.0
    keep: int = 3
    full_every: int = 10

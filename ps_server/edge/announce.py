"""Tell whoever started this process at which address it listens."""

import os
from pathlib import Path


def announce(target: str, address: str) -> None:
    """Write `address` and a newline to the file descriptor whose number `target` is, then close it, or else to the file named so.

    The file appears whole or not at all. Raises OSError.
    """
    if target.isascii() and target.isdigit():
        with os.fdopen(int(target), "w") as pipe:
            pipe.write(f"{address}\n")
        return
    unfinished = Path(f"{target}.{os.getpid()}")
    unfinished.write_text(f"{address}\n")
    unfinished.replace(target)

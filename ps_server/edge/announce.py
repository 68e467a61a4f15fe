"""Tell whoever started this process at which address it listens."""

import errno
import os
from pathlib import Path

FD_MAX = 2**31 - 1  # a descriptor is a C int


class CannotAnnounce(Exception):
    """A file or descriptor that the address cannot be written to; prints a sentence that names it."""


def announce(target: str, address: str) -> None:
    """Write `address` and a newline to the file descriptor whose number `target` is, then close it, or else to the file named so.

    The file appears whole or not at all. Raises CannotAnnounce.
    """
    try:
        _write(target, f"{address}\n")
    except OSError as error:
        why = str(error.strerror).lower()
        raise CannotAnnounce(f"announce is {target!r}, which cannot be written to: {why}. Name another with --announce.") from None


def _write(target: str, line: str) -> None:
    if target.isascii() and target.isdigit():
        number = int(target)
        if number > FD_MAX:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        with os.fdopen(number, "w") as pipe:
            pipe.write(line)
        return
    unfinished = Path(f"{target}.{os.getpid()}")
    unfinished.write_text(line)
    unfinished.replace(target)

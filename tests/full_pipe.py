"""A pipe that takes no more, since nobody reads it."""

import os
import select
from types import TracebackType
from typing import Self

FILLER = b"\0"


class FullPipe:
    """`writer` is what a process gets as its stdout; every write to it waits until read_all()."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._data = b""
        while not self.is_full():
            os.write(self.writer, FILLER * select.PIPE_BUF)

    def is_full(self) -> bool:
        return not select.select([], [self.writer], [], 0)[1]

    def read_all(self) -> bytes:
        """Return all that was written so far, but for what filled it, without waiting."""
        while select.select([self._reader], [], [], 0)[0] and (data := os.read(self._reader, 65_536)):
            self._data += data.replace(FILLER, b"")
        return self._data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.read_all()  # what still waits to write gets through
        os.close(self.writer)
        os.close(self._reader)

"""One of our own streams, which may have a reader that does not read."""

import os
import threading
import time
from collections.abc import Callable

PATIENCE_S = 1.0
POLL_S = 0.05  # how soon hurry() is noticed: a signal handler calls it, and may take no lock to tell of it


class Stream:
    """Writes what any thread hands it, one piece after another, in a thread of its own.

    That thread alone may get stuck where nobody reads. Those who write wait for it, as they would in a plain write, but can stop waiting.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()  # guards _piece and _is_stuck
        self._piece: bytes | None = None  # what is being written
        self._is_hurried = self._is_stuck = False
        threading.Thread(target=self._write_pieces, name=f"rowstead-stream-{descriptor}", daemon=True).start()

    def write(self, piece: bytes, patience_s: float | None = None) -> None:
        """Write `piece` and wait until it is out; give up after `patience_s`, or after hurry(), and leave out what was not begun."""
        with self._changed:
            if self._wait(lambda: self._piece is None, patience_s):
                self._piece = piece
                self._changed.notify_all()
                self._wait(lambda: self._piece is not piece, patience_s)

    def hurry(self) -> None:
        """Let nobody wait longer than PATIENCE_S from now on, those who wait already included; a signal handler may call this."""
        self._is_hurried = True

    def _wait(self, is_so: Callable[[], bool], patience_s: float | None) -> bool:
        begin_s = time.monotonic()
        while not is_so():
            waited_s = time.monotonic() - begin_s
            # What one found out holds for all: else each of many lines would cost its own PATIENCE_S.
            if self._is_hurried and (self._is_stuck or waited_s >= PATIENCE_S):
                self._is_stuck = True
                return False
            if patience_s is not None and waited_s >= patience_s:
                return False
            self._changed.wait(POLL_S)
        return True

    def _write_pieces(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._piece is not None)
                piece = self._piece
            assert piece is not None
            _write_all(self._descriptor, piece)
            with self._changed:
                self._piece, self._is_stuck = None, False
                self._changed.notify_all()


def _write_all(descriptor: int, data: bytes) -> None:
    """Write without the buffer of sys.stdout, whose flush at the end of the interpreter would complain of a reader that went away."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return

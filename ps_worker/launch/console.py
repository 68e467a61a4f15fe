"""Our own stdout and stderr, shared by many processes line by line."""

import os
import threading
from collections.abc import Iterable, Mapping

from ps_worker.launch.stream import PATIENCE_S, Stream

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # of the terminal; no red, which is for errors
OWN_NAME = "launch"
STDOUT, STDERR = 1, 2


class Console:
    """Writes lines as `name | line`, whole, from any thread; names have colours where the stream is a terminal.

    A reader that went away, as in `rowstead launch ... | head`, is no reason to stop: its lines are dropped. One that does not
    read, as a pager that waits for a key, is waited for, but not by our own lines, nor after hurry().
    """

    def __init__(self, environment: Mapping[str, str], stdout: int = STDOUT, stderr: int = STDERR) -> None:
        has_colours = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
        self._is_coloured = [has_colours and os.isatty(descriptor) for descriptor in (stdout, stderr)]
        # One Stream where both are the same terminal, pipe or file: lines that two write at once would not stay whole.
        out = Stream(stdout)
        self._streams = [out, out if _is_same_file(stdout, stderr) else Stream(stderr)]
        self._colours: dict[str, int] = {}
        self._lock = threading.Lock()  # guards _colours

    def say(self, text: str) -> None:
        """Write lines of our own to stderr; leave them out where it takes none for PATIENCE_S."""
        self.write(OWN_NAME, text.encode(errors="replace").splitlines(), is_error=True, patience_s=PATIENCE_S)

    def write(self, name: str, lines: Iterable[bytes], is_error: bool, patience_s: float | None = None) -> None:
        """Write lines of the process `name` to stderr or stdout, within `patience_s` or else not."""
        head = self._head(name, self._is_coloured[is_error])
        self._streams[is_error].write(b"".join([head + line + b"\n" for line in lines]), patience_s)

    def hurry(self) -> None:
        """Drop from now on what a stream does not take within PATIENCE_S; a signal handler may call this."""
        for stream in self._streams:
            stream.hurry()

    def _head(self, name: str, is_coloured: bool) -> bytes:
        with self._lock:
            colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return (f"\x1b[{colour}m{name} | \x1b[0m" if is_coloured else f"{name} | ").encode()


def _is_same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # one of them is closed
        return False

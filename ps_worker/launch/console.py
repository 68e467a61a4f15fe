"""Our own stdout and stderr, shared by many processes line by line."""

import os
import threading
from collections.abc import Iterable, Mapping

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # of the terminal; no red, which is for errors
OWN_NAME = "launch"
STDOUT, STDERR = 1, 2


class Console:
    """Writes lines as `name | line`, whole, from any thread; names have colours where the stream is a terminal.

    A reader that went away, as in `rowstead launch ... | head`, is no reason to stop: its lines are dropped.
    """

    def __init__(self, environment: Mapping[str, str], stdout: int = STDOUT, stderr: int = STDERR) -> None:
        has_colours = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
        self._is_coloured = {stream: has_colours and os.isatty(stream) for stream in (stdout, stderr)}
        self._stdout, self._stderr = stdout, stderr
        self._colours: dict[str, int] = {}
        self._lock = threading.Lock()  # guards the two streams and _colours

    def say(self, text: str) -> None:
        """Write lines of our own to stderr."""
        self.write(OWN_NAME, text.encode(errors="replace").splitlines(), is_error=True)

    def write(self, name: str, lines: Iterable[bytes], is_error: bool) -> None:
        """Write lines of the process `name` to stderr or stdout."""
        stream = self._stderr if is_error else self._stdout
        with self._lock:
            head = self._head(name, self._is_coloured[stream])
            _write_all(stream, b"".join([head + line + b"\n" for line in lines]))

    def _head(self, name: str, is_coloured: bool) -> bytes:
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return (f"\x1b[{colour}m{name} | \x1b[0m" if is_coloured else f"{name} | ").encode()


def _write_all(stream: int, data: bytes) -> None:
    """Write without the buffer of sys.stdout, whose flush at the end of the interpreter would complain of a reader that went away."""
    try:
        while data:
            data = data[os.write(stream, data) :]
    except OSError:
        return

"""Our own stdout and stderr, shared by many processes line by line."""

import os
import threading
from collections.abc import Iterable, Mapping

from ps_worker.launch.stream import PATIENCE_S, Stream

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # of the terminal; no red, which is for errors
OWN_NAME = "launch"
STDOUT, STDERR = 1, 2
WIPE = b"\r\x1b[2K"  # the row of the cursor


class Console:
    r"""Writes lines as `name | line`, whole, from any thread; names have colours where the stream is a terminal.

    A reader that went away, as in `rowstead launch ... | head`, is no reason to stop: its lines are dropped. One that does not
    read, as a pager that waits for a key, is waited for, but not by our own lines, nor after hurry(). On a terminal a line that ends in
    \r, an update of a progress bar, is drawn over by what comes next.
    """

    def __init__(self, environment: Mapping[str, str], stdout: int = STDOUT, stderr: int = STDERR) -> None:
        has_colours = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
        self._is_coloured = [has_colours and os.isatty(descriptor) for descriptor in (stdout, stderr)]
        # One Stream where both are the same terminal, pipe or file: lines that two write at once would not stay whole.
        out = Stream(stdout)
        self._streams = [out, out if _is_same_file(stdout, stderr) else Stream(stderr)]
        self._widths = [_width(descriptor) for descriptor in (stdout, stderr)]  # None: no terminal
        self._colours: dict[str, int] = {}
        self._bars: set[Stream] = set()  # those whose last line is a bar's
        self._lock = threading.Lock()  # guards _colours and _bars

    def say(self, text: str) -> None:
        """Write lines of our own to stderr; leave them out where it takes none for PATIENCE_S."""
        self.write(OWN_NAME, text.encode(errors="replace").splitlines(), is_error=True, patience_s=PATIENCE_S)

    def write(self, name: str, lines: Iterable[bytes], is_error: bool, patience_s: float | None = None) -> None:
        """Write lines of the process `name` to stderr or stdout, within `patience_s` or else not."""
        head, width = self._head(name, self._is_coloured[is_error]), self._widths[is_error]
        if width is None:
            piece = b"".join([head + line.removesuffix(b"\r") + b"\n" for line in lines])
        else:
            piece = self._drawn(self._streams[is_error], head, lines, width - len(name) - len(" | ") - 1)
        self._streams[is_error].write(piece, patience_s)

    def _drawn(self, stream: Stream, head: bytes, lines: Iterable[bytes], room: int) -> bytes:
        """Return what a terminal needs: an update of a bar takes one row of it, `room` wide, which the next line wipes."""
        pieces = []
        with self._lock:
            for line in lines:
                wipe = WIPE if stream in self._bars else b""
                if line.endswith(b"\r"):
                    pieces.append(wipe + head + line[:-1][: max(room, 0)])
                    self._bars.add(stream)
                else:
                    pieces.append(wipe + head + line + b"\n")
                    self._bars.discard(stream)
        return b"".join(pieces)

    def hurry(self) -> None:
        """Drop from now on what a stream does not take within PATIENCE_S; a signal handler may call this."""
        for stream in self._streams:
            stream.hurry()

    def _head(self, name: str, is_coloured: bool) -> bytes:
        with self._lock:
            colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return (f"\x1b[{colour}m{name} | \x1b[0m" if is_coloured else f"{name} | ").encode()


def _width(descriptor: int) -> int | None:
    try:
        return os.get_terminal_size(descriptor).columns or 80 if os.isatty(descriptor) else None
    except OSError:
        return None


def _is_same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # one of them is closed
        return False

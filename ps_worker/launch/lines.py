"""Whole lines from what a process prints, progress bars included."""

import re

UPDATE_EVERY_S = 1.0
LINE_BYTES_MAX = 65_536

_LINE_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")  # a \r that came last may be the first half of \r\n


class LineSplitter:
    r"""Cuts one stream of bytes into lines.

    A progress bar writes its line again and again, each time after a \r. Such an update is a line of its own here, which keeps a \r at its
    end, at most one each `update_every_s` seconds; those between are left out. The last state of it, which a \n ends, always comes.
    Longer lines than LINE_BYTES_MAX are cut.
    """

    def __init__(self, update_every_s: float = UPDATE_EVERY_S) -> None:
        self._update_every_s = update_every_s
        self._rest = b""
        self._updated_s: float | None = None
        self._left_out = b""  # the last update, where it is newer than the last line

    def feed(self, data: bytes, now_s: float) -> list[bytes]:
        r"""Return the lines that `data` ends, without their ends but the \r of an update; `now_s` is monotonic time."""
        data = self._rest + data
        lines: list[bytes] = []
        begin = 0
        for end in _LINE_END.finditer(data):
            text, begin = data[begin : end.start()], end.end()
            if end[0] != b"\r":
                lines.append(text)
                self._left_out = b""
            elif not text.strip():  # a bar that is wiped away, or the beginning of one
                self._left_out = b""
            elif self._updated_s is None or now_s - self._updated_s >= self._update_every_s:
                lines.append(text + b"\r")
                self._updated_s, self._left_out = now_s, b""
            else:
                self._left_out = text
        self._rest = data[begin:]
        while len(self._rest) > LINE_BYTES_MAX:
            lines.append(self._rest[:LINE_BYTES_MAX])
            self._rest = self._rest[LINE_BYTES_MAX:]
        return lines

    def end(self) -> list[bytes]:
        """Return what the stream ended with that no \\n ended."""
        rest = self._rest.rstrip(b"\r") or self._left_out
        self._rest = self._left_out = b""
        return [rest] if rest else []

"""What a process prints, streamed to the console while it runs."""

import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO

from ps_proto.errors import InvalidRequest
from ps_worker.launch.console import Console
from ps_worker.launch.lines import LineSplitter
from ps_worker.process_log import LAST_LINES

READ_BYTES = 65_536
DRAIN_S = 1.0  # for the last lines of a process that has ended; longer only where something that escaped it still holds its pipes


class PipedLog:
    """Two pipes a process, each with a thread that reads it; the lines go to the console and, where there is one, to `file`.

    A file that takes no more, as on a full disk, is said and left alone: what is printed must go on being read, or its process would fail.
    """

    def __init__(self, name: str, console: Console, file: BinaryIO | None) -> None:
        self._name = name
        self._console = console
        self._file = file
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        self._lock = threading.Lock()  # guards _last and _file
        self._threads: list[threading.Thread] = []

    def open(self) -> tuple[int, int]:
        self.drain()  # the lines of the process before are out before those of the next
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        with self._lock:
            self._last.clear()
        stdout = self._pipe(is_error=False)
        try:
            return stdout, self._pipe(is_error=True)
        except BaseException:
            os.close(stdout)
            raise

    def last_lines(self) -> list[str]:
        self.drain()
        with self._lock:
            return [line.decode(errors="replace") for line in self._last]

    def drain(self) -> None:
        """Wait until all that was printed is out, or DRAIN_S."""
        deadline_s = time.monotonic() + DRAIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def close(self) -> None:
        self.drain()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _pipe(self, is_error: bool) -> int:
        reader, writer = os.pipe()
        thread = threading.Thread(target=self._pump, args=(reader, is_error), name=f"rowstead-log-{self._name}", daemon=True)
        try:
            thread.start()
        except BaseException:
            os.close(reader)
            os.close(writer)
            raise
        self._threads.append(thread)
        return writer

    def _pump(self, reader: int, is_error: bool) -> None:
        splitter = LineSplitter()
        with open(reader, "rb", buffering=0) as pipe:
            while data := pipe.read(READ_BYTES):
                self._take(splitter.feed(data, time.monotonic()), is_error)
        self._take(splitter.end(), is_error)

    def _take(self, lines: list[bytes], is_error: bool) -> None:
        if not lines:
            return
        failed = None
        kept = [line.removesuffix(b"\r") for line in lines]
        with self._lock:
            self._last.extend(kept)
            if self._file is not None:
                try:
                    _write_all(self._file, b"".join([line + b"\n" for line in kept]))
                except OSError as error:
                    failed = error
                    self._file.close()
                    self._file = None
        if failed is not None:
            self._console.say(f"{self._name}.log takes no more lines ({failed.strerror}); they are only shown from here on.")
        self._console.write(self._name, lines, is_error)


def _write_all(file: BinaryIO, data: bytes) -> None:
    while data:  # without a buffer, a write may take a part
        data = data[file.write(data) :]


class PipedLogs:
    """A PipedLog for each process, which also writes `folder`/NAME.log where there is a folder; of() raises InvalidRequest if it cannot."""

    def __init__(self, console: Console, folder: Path | None) -> None:
        self._console = console
        self._folder = folder
        self._logs: list[PipedLog] = []

    def of(self, process: str) -> PipedLog:
        file = None
        if self._folder is not None:
            file = _open(self._folder / f"{process}.log")
        log = PipedLog(process, self._console, file)
        self._logs.append(log)
        return log

    def close(self) -> None:
        for log in self._logs:
            log.close()
        self._logs.clear()


def _open(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb", buffering=0)
    except OSError as error:
        got = f"{str(path.parent)!r} ({path.name}: {error.strerror})"
        raise InvalidRequest("log_dir", got, "a folder whose log files can be written") from None

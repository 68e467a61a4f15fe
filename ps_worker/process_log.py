"""What the processes that we start print: where it goes, and its last lines for the error that one ends in."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

LAST_LINES = 20


class ProcessLog(Protocol):
    """Takes what the processes of one name print, one after another."""

    def open(self) -> tuple[int, int]:
        """Return new file descriptors for the next one's stdout and stderr; the caller closes both once the process has them."""
        ...

    def last_lines(self) -> list[str]:
        """Return the last lines of the last of them, at most LAST_LINES."""
        ...


class Logs(Protocol):
    """Has a log for each process."""

    def of(self, process: str) -> ProcessLog:
        """Return a new log for the processes of that name."""
        ...

    def close(self) -> None:
        """Let go of what the logs needed, once all processes have ended."""
        ...


class FileLog:
    """A file that takes both stdout and stderr, of one process behind the other's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin: int | None = None  # of the last process's lines

    def open(self) -> tuple[int, int]:
        truncated = os.O_TRUNC if self._begin is None else 0
        log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | truncated, 0o644)
        self._begin = os.fstat(log).st_size
        return log, os.dup(log)

    def last_lines(self) -> list[str]:
        return self._path.read_bytes()[self._begin :].decode(errors="replace").splitlines()[-LAST_LINES:]


class FileLogs:
    """Files named for their processes in `folder`; without one in a temporary folder, which close() removes."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._temporary: Path | None = None

    def of(self, process: str) -> FileLog:
        return FileLog(self._made_folder() / f"{process}.log")

    def close(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _made_folder(self) -> Path:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            return self._folder
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="rowstead-"))
        return self._temporary

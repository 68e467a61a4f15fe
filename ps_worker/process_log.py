"""What the processes that we start print: where it goes, and its last lines for the error that one ends in."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

LAST_LINES = 20


class ProcessLog(Protocol):
    """Takes what one process prints."""

    def open(self) -> tuple[int, int]:
        """Return new file descriptors for its stdout and its stderr; the caller closes both once the process has them."""
        ...

    def last_lines(self) -> list[str]:
        """Return the last of its lines, at most LAST_LINES."""
        ...


class Logs(Protocol):
    """Has a log for each process."""

    def of(self, process: str) -> ProcessLog:
        """Return a new log for the process of that name."""
        ...

    def close(self) -> None:
        """Let go of what the logs needed, once all processes have ended."""
        ...


class FileLog:
    """A file that takes both stdout and stderr."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> tuple[int, int]:
        log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        return log, os.dup(log)

    def last_lines(self) -> list[str]:
        return self._path.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]


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

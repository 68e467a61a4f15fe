"""A disk that notes what is asked of it, and fails where a test says so."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from ps_server.storage.disk import RealDisk


class RecordedDisk(RealDisk):
    """Notes the calls that change something, with paths below `root`. `fails_at`: the number of the call that meets a full disk."""

    def __init__(self, root: Path, fails_at: int | None = None) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._root = root
        self._fails_at = fails_at
        self._files: dict[int, Path] = {}

    def _note(self, call: str, *paths: Path) -> None:
        if len(self.calls) == self._fails_at:
            self._fails_at = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.calls.append(" ".join([call, *[path.relative_to(self._root).as_posix() for path in paths]]))

    def make_folder(self, path: Path) -> bool:
        if not path.exists():
            self._note("make", path)
        return super().make_folder(path)

    def create(self, path: Path) -> int:
        self._note("create", path)
        file = super().create(path)
        self._files[file] = path
        return file

    def write(self, file: int, data: Sequence[bytes | memoryview]) -> None:
        self._note("write", self._files[file])
        super().write(file, data)

    def sync(self, file: int) -> None:
        self._note("sync", self._files[file])
        super().sync(file)

    def close(self, file: int) -> None:
        super().close(file)  # first, so that no test leaves a file open
        self._note("close", self._files.pop(file))

    def rename(self, old: Path, new: Path) -> None:
        self._note("rename", old, new)
        super().rename(old, new)

    def sync_folder(self, path: Path) -> None:
        self._note("sync folder", path)
        super().sync_folder(path)

    def remove(self, path: Path) -> None:
        self._note("remove", path)
        super().remove(path)

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)  # first: most of the folders that it is asked about are not empty
        self._note("remove folder", path)

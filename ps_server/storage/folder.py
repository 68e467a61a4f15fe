"""Checkpoints in a folder, also one that many machines mount. A put takes these steps, and a crash after any of them loses nothing:

    make the folders that are missing, and sync each one's parent     → name.tmp-1f2e3d4c: create, write, sync, close
    → rename it to name                                               → sync its folder: the name is durable, and so is the put

A crash before the end may leave a `name.tmp-…` behind; storage/retention.py removes it with the checkpoint that it was for.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from ps_proto.errors import StorageFailed
from ps_server.storage.disk import Disk, RealDisk
from ps_server.storage.store import Data, NotThere, Store, buffers_of


def _random_token() -> str:
    return secrets.token_hex(4)


class Folder(Store):
    """The store in the folder `path`, which the first put makes. `new_token`: 8 hex digits, other ones than any other writer's now."""

    def __init__(self, path: Path, disk: Disk | None = None, new_token: Callable[[], str] = _random_token) -> None:
        self.path = path
        self._disk = disk or RealDisk()
        self._new_token = new_token
        self._durable: set[Path] = set()  # folders below this one whose names were synced by this object

    def put(self, path: str, data: Data) -> None:
        file = self._at(path)
        temporary = file.with_name(f"{file.name}.tmp-{self._new_token()}")
        with self._named(path):
            self._make_folders(file.parent)
            try:
                self._write(temporary, buffers_of(data))
                self._disk.rename(temporary, file)
            except BaseException:  # also an interrupt: nothing half written stays
                with suppress(OSError):
                    self._disk.remove(temporary)
                raise
            self._disk.sync_folder(file.parent)

    def get(self, path: str) -> memoryview:
        with self._named(path):
            try:
                return self._disk.read(self._at(path))
            except FileNotFoundError:
                raise NotThere(str(self._at(path))) from None

    def list(self, prefix: str) -> dict[str, int]:
        with self._named(prefix):
            return {file.relative_to(self.path).as_posix(): size for file, size in self._disk.walk(self._at(prefix)).items()}

    def delete(self, paths: Sequence[str]) -> None:
        """Remove files as promised, and the folders that are empty then: stores of objects have none either."""
        touched: set[Path] = set()
        for path in paths:
            file = self._at(path)
            with self._named(path), suppress(FileNotFoundError):
                self._disk.remove(file)
                touched.add(file.parent)
        for folder in touched:
            with self._named(str(folder.relative_to(self.path))), suppress(FileNotFoundError):  # another process was faster
                self._disk.sync_folder(folder)
        for folder in touched:
            self._remove_empty(folder)

    def _remove_empty(self, folder: Path) -> None:
        """Remove the folder and its parents as far as they are empty. Not synced: an empty folder that comes back does no harm."""
        with suppress(OSError):
            while folder != self.path:
                self._disk.remove_folder(folder)
                self._durable.discard(folder)
                folder = folder.parent

    def _make_folders(self, folder: Path) -> None:
        """See that the folder is there, and that its name and those above it are durable.

        Another process may have made one a moment ago and not have synced it yet, so each object syncs all below its own path once.
        """
        self._make_root(self.path)
        below = [each for each in (folder, *folder.parents) if self.path in each.parents]
        for each in reversed(below):
            if self._disk.make_folder(each) or each not in self._durable:
                self._disk.sync_folder(each.parent)
                self._durable.add(each)

    def _make_root(self, folder: Path) -> None:
        try:
            is_new = self._disk.make_folder(folder)
        except FileNotFoundError:
            if folder.parent == folder:
                raise
            self._make_root(folder.parent)
            is_new = self._disk.make_folder(folder)
        if is_new:
            self._disk.sync_folder(folder.parent)

    def _write(self, path: Path, data: Sequence[bytes | memoryview]) -> None:
        file = self._disk.create(path)
        try:
            self._disk.write(file, data)
            self._disk.sync(file)
        finally:
            self._disk.close(file)

    def _at(self, path: str) -> Path:
        parts = PurePosixPath(path)
        assert not {"/", ".."}.intersection(parts.parts), f"{path} is no place below a root"
        return self.path / parts

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageFailed(str(self._at(path)), error.strerror or str(error)) from error

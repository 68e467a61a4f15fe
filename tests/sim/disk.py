"""A disk in memory that keeps what was synced and forgets of the rest what it likes, and that fails where a test says so.

disk = SimDisk(random.Random(7))
mount = disk.mount("server-0")             # a Disk: the files as one process sees them; all mounts see the same files
mount.dies_before = 12                     # the process dies before its call 12 that changes something: Died
disk.crash(mount)                          # what the process had not synced is gone, or partly, or torn

What a crash leaves: of a file's bytes those that were synced and a random share of what was written since, behind which there may be zeros;
of each folder's names those that were synced and a random choice of what was changed since, in which a rename is one change.
"""

import errno
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ps_server.storage.disk import Disk
from ps_server.storage.store import Buffer


class Died(BaseException):
    """The process is no more. No `except Exception` takes it for an error that could be answered."""


@dataclass(eq=False)
class _File:
    author: "Mount"
    data: bytes = b""
    synced: bytes = b""


@dataclass(eq=False)
class _Change:
    """Names of a folder that one call changed, all at once; None: gone."""

    author: "Mount"
    names: dict[str, "_Folder | _File | None"]


@dataclass(eq=False)
class _Folder:
    names: dict[str, "_Folder | _File"] = field(default_factory=dict)
    synced: dict[str, "_Folder | _File"] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)  # since it was synced

    def change(self, change: _Change) -> None:
        _apply(change, self.names)
        self.changes.append(change)

    def sync(self) -> None:
        self.synced, self.changes = dict(self.names), []


def _apply(change: _Change, names: dict[str, "_Folder | _File"]) -> None:
    for name, what in change.names.items():
        if what is None:
            names.pop(name, None)
        else:
            names[name] = what


@dataclass
class DiskFault:
    """The next call of this kind on a path with `part` in it fails with this errno."""

    call: str
    part: str
    code: int
    fired: bool = False


class SimDisk:
    """The files. `bytes_left`: how much fits on it yet, None: everything. `slow_s`: how long an object takes at most, for who asks."""

    def __init__(self, rng: random.Random, bytes_left: int | None = None, slow_s: float = 0.02) -> None:
        self.rng = rng
        self.bytes_left = bytes_left
        self.slow_s = slow_s
        self.crashes_count = 0
        self.lost_count = 0  # changes of names and unsynced bytes of files that did not outlive a crash
        self._root = _Folder()

    def mount(self, name: str) -> "Mount":
        """Return the files as a new process sees them."""
        return Mount(self, name)

    def crash(self, *dead: "Mount") -> None:
        """Let these processes be gone, with what they had not synced."""
        self.crashes_count += 1
        for mount in dead:
            mount.is_dead = True
        self._crash(self._root, set(dead))

    def _crash(self, folder: _Folder, dead: "set[Mount]") -> None:
        names, changes = dict(folder.synced), []
        for change in folder.changes:
            if change.author not in dead:
                changes.append(change)
            elif self.rng.random() < 0.5:
                _apply(change, folder.synced)
            else:
                self.lost_count += 1
                continue
            _apply(change, names)
        folder.names, folder.changes = names, changes
        for what in list(folder.names.values()):
            if isinstance(what, _Folder):
                self._crash(what, dead)
            elif what.author in dead and what.data != what.synced:
                self._tear(what)

    def _tear(self, file: _File) -> None:
        """Keep the first of a file's unsynced bytes, and zeros or nothing for the others: a length may be durable before what it is of."""
        self.lost_count += 1
        kept = self.rng.randint(len(file.synced), len(file.data))
        zeros = self.rng.choice((0, len(file.data) - kept))
        file.data = file.synced = file.data[:kept] + bytes(zeros)

    def find(self, path: Path) -> _Folder | _File:
        """Return what lies there; FileNotFoundError or NotADirectoryError as an operating system has them."""
        found: _Folder | _File = self._root
        for name in path.parts[1:]:
            if not isinstance(found, _Folder):
                raise _error(errno.ENOTDIR, path)
            if name not in found.names:
                raise _error(errno.ENOENT, path)
            found = found.names[name]
        return found

    def folder(self, path: Path) -> _Folder:
        """Return the folder that lies there."""
        found = self.find(path)
        if not isinstance(found, _Folder):
            raise _error(errno.ENOTDIR, path)
        return found


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


class Mount(Disk):
    """The disk as one process has it. `calls`: those that changed something; `dies_before`: the number of one that it never makes."""

    def __init__(self, disk: SimDisk, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.dies_before: int | None = None
        self.calls: list[str] = []
        self._disk = disk
        self._faults: list[DiskFault] = []
        self._handles: dict[int, tuple[Path, _File]] = {}
        self._numbers = itertools.count(3)

    def fail_next(self, call: str, part: str = "", code: int = errno.EIO) -> DiskFault:
        """Let the next call of this kind on a path with `part` in it fail."""
        fault = DiskFault(call, part, code)
        self._faults.append(fault)
        return fault

    def _note(self, call: str, path: Path, is_change: bool = True) -> None:
        if is_change and self.dies_before == len(self.calls):
            self.is_dead = True
        if self.is_dead:
            raise Died(f"{self.name} died before {call} {path}")
        for fault in self._faults:
            if not fault.fired and fault.call == call and fault.part in str(path):
                fault.fired = True
                raise _error(fault.code, path)
        if is_change:
            self.calls.append(f"{call} {path}")

    def make_folder(self, path: Path) -> bool:
        self._note("make folder", path)
        parent = self._disk.folder(path.parent)
        if path.name in parent.names or path == path.parent:
            return False
        parent.change(_Change(self, {path.name: _Folder()}))
        return True

    def create(self, path: Path) -> int:
        self._note("create", path)
        parent, file, handle = self._disk.folder(path.parent), _File(self), next(self._numbers)
        if path.name in parent.names:
            raise _error(errno.EEXIST, path)
        parent.change(_Change(self, {path.name: file}))
        self._handles[handle] = path, file
        return handle

    def write(self, file: int, data: Sequence[Buffer]) -> None:
        path, target = self._handles[file]
        self._note("write", path)
        added = b"".join(data)
        left = self._disk.bytes_left
        fitting = added if left is None else added[:left]
        target.data += fitting
        if left is not None:
            self._disk.bytes_left = left - len(fitting)
        if len(fitting) < len(added):
            raise _error(errno.ENOSPC, path)

    def sync(self, file: int) -> None:
        path, target = self._handles[file]
        self._note("sync", path)
        target.synced = target.data

    def close(self, file: int) -> None:
        del self._handles[file]
        if self.is_dead:
            raise Died(f"{self.name} is dead")

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent, "a change of two folders is not one"
        self._note("rename", new)
        folder, file = self._disk.folder(old.parent), self._disk.find(old)
        replaced = folder.names.get(new.name)
        if isinstance(replaced, _Folder):
            raise _error(errno.EISDIR, new)
        folder.change(_Change(self, {old.name: None, new.name: file}))
        self._give_back(replaced)

    def sync_folder(self, path: Path) -> None:
        self._note("sync folder", path)
        self._disk.folder(path).sync()

    def remove(self, path: Path) -> None:
        self._note("remove", path)
        file = self._disk.find(path)
        if isinstance(file, _Folder):
            raise _error(errno.EISDIR, path)
        self._disk.folder(path.parent).change(_Change(self, {path.name: None}))
        self._give_back(file)

    def remove_folder(self, path: Path) -> None:
        if self._disk.folder(path).names:
            raise _error(errno.ENOTEMPTY, path)
        self._note("remove folder", path)
        self._disk.folder(path.parent).change(_Change(self, {path.name: None}))

    def read(self, path: Path) -> memoryview:
        self._note("read", path, is_change=False)
        file = self._disk.find(path)
        if isinstance(file, _Folder):
            raise _error(errno.EISDIR, path)
        return memoryview(file.data)

    def walk(self, folder: Path) -> dict[Path, int]:
        self._note("walk", folder, is_change=False)
        try:
            return dict(_files(folder, self._disk.folder(folder)))
        except FileNotFoundError:
            return {}

    def _give_back(self, file: _Folder | _File | None) -> None:
        if isinstance(file, _File) and self._disk.bytes_left is not None:
            self._disk.bytes_left += len(file.data)


def _files(path: Path, folder: _Folder) -> Iterator[tuple[Path, int]]:
    for name, what in folder.names.items():
        if isinstance(what, _Folder):
            yield from _files(path / name, what)
        else:
            yield path / name, len(what.data)

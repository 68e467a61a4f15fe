"""What a folder of checkpoints needs of a disk, call by call, so that a test can hand in one that forgets what was not synced."""

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ps_server.storage.store import Buffer

_LENT_BYTES_MIN = 1 << 20  # smaller ones come from the heap, which is not fresh each time
_FREE_MAX = 2  # who reads files one after another holds one or two


class Disk(Protocol):
    """Files and folders. Nothing but what was synced outlives a crash: a file's bytes by `sync`, a name by `sync_folder` of its folder.

    What fails raises OSError, as Python's os does.
    """

    def make_folder(self, path: Path) -> bool:
        """Make a folder in one that is there; return whether it was new. FileNotFoundError where that one is not there."""
        ...

    def create(self, path: Path) -> int:
        """Make a file of a name that is free and return its handle, open for writing."""
        ...

    def write(self, file: int, data: Sequence[Buffer]) -> None:
        """Write all of the data behind what was written."""
        ...

    def sync(self, file: int) -> None:
        """Return once the file's bytes are durable."""
        ...

    def close(self, file: int) -> None:
        """Give the handle back."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, in place of the file that has it: at every instant one of both is there."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Return once the folder's names are durable, new ones, changed ones and those that are gone."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file."""
        ...

    def remove_folder(self, path: Path) -> None:
        """Remove a folder that is empty; another one raises OSError."""
        ...

    def read(self, path: Path) -> memoryview:
        """Return a file's bytes."""
        ...

    def walk(self, folder: Path) -> dict[Path, int]:
        """Return the size in bytes of each file below a folder; none where there is no such folder."""
        ...


class RealDisk(Disk):
    """This machine's."""

    def __init__(self) -> None:
        self._memory = _Memory()

    def make_folder(self, path: Path) -> bool:
        try:
            path.mkdir()
        except FileExistsError:
            return False
        return True

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, file: int, data: Sequence[Buffer]) -> None:
        for buffer in data:
            left = memoryview(buffer)
            while left:  # one call writes 2 GiB at most
                left = left[os.write(file, left) :]

    def sync(self, file: int) -> None:
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def sync_folder(self, path: Path) -> None:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        path.rmdir()

    def read(self, path: Path) -> memoryview:
        """As promised, into memory that numpy asks huge pages for: four times as fast as bytes, whose pages come 4 KiB at a time."""
        with path.open("rb", buffering=0) as file:
            left = data = self._memory.lend(os.fstat(file.fileno()).st_size)
            while left and (count := file.readinto(left)):
                left = left[count:]
        return data[: len(data) - len(left)]

    def walk(self, folder: Path) -> dict[Path, int]:
        """As promised, but without links to folders, and without other people's folders that this process may not read."""

        def on_error(error: OSError) -> None:
            is_foreign = isinstance(error, PermissionError) and error.filename != str(folder)
            if not is_foreign and not isinstance(error, FileNotFoundError):
                raise error

        sizes = {}
        for place, _, names in os.walk(folder, onerror=on_error):
            for name in names:
                path = Path(place, name)
                try:
                    sizes[path] = path.lstat().st_size
                except FileNotFoundError:
                    continue  # removed meanwhile
        return sizes


class _Memory:
    """Lends memory, and lends it again once nobody holds it: the system clears what is fresh, and reading takes half as long again then."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []

    def lend(self, size: int) -> memoryview:
        """Return memory of `size` bytes with anything in it."""
        if size < _LENT_BYTES_MIN:
            return np.empty(size, np.uint8).data
        memory = self._free.pop() if self._free else None
        if memory is None or memory.size < size:
            memory = np.empty(size, np.uint8)
        lent = memory[:size]
        # Each view of it, and each view of such a view, holds `lent`: none of them is handed out but as a view of its buffer.
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return lent.data

    def _take_back(self, memory: NDArray[np.uint8]) -> None:
        if len(self._free) < _FREE_MAX:
            self._free.append(memory)

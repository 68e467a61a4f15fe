"""The folder of a saved model: there whole or not at all, and every byte that is read is one that was written.

    model/index.json            what is where, with sizes and sha256; put in place last, by one rename
    model/data-1f2e3d4c/...     the files of one save

A save into a folder that has a model writes beside it, and lets the rename decide: a crash leaves the old one or the new one. The next save
removes what earlier ones wrote, file by file, and nothing else: people keep files of their own in such a folder, also in a `data-raw/`.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from ps_proto.errors import CorruptFile, InvalidRequest, NoSavedModel
from ps_worker.keeping.index import FileEntry, Index, parse

INDEX = "index.json"
MARKER = "rowstead-save.txt"  # written first, removed last: a folder that has it is one of ours, also where a crash cut the save short

_MARKER_TEXT = b"ps.save wrote this folder. A later ps.save to the same place removes the files that it wrote.\n"
_FOLDER = re.compile(r"data-[0-9a-f]{8}")
_FILE = re.compile(r"model\.safetensors|table-[0-9]+-part-[0-9]+\.safetensors")

Arrays = Mapping[str, npt.NDArray[Any]]


class ModelWriter:
    """Writes one save: `with` it, `write` files, `commit`. Left without a commit, it takes back what it wrote."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InvalidRequest("path", f"{str(self.path)!r}, a file", "a folder, or a name that is free")
        self._made = not self.path.exists()
        self._data = self.path / f"data-{secrets.token_hex(4)}"
        self._is_committed = False

    def __enter__(self) -> Self:
        self._data.mkdir(parents=True)  # outside: a folder that was there already is not ours to take back
        try:
            _write_through(self._data / MARKER, _MARKER_TEXT)
        except BaseException:
            self._take_back()
            raise
        return self

    def write(self, name: str, data: bytes) -> FileEntry:
        """Write a file and see it on disk."""
        assert _FILE.fullmatch(name), f"{name} would never be removed"
        _write_through(self._data / name, data)
        return FileEntry(file=f"{self._data.name}/{name}", size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def commit(self, index: Index) -> None:
        """Let the folder be this model from now on."""
        _sync(self._data)
        replaced = _folders_of(self.path)
        new = self._data / INDEX
        _write_through(new, index.model_dump_json(indent=1).encode() + b"\n")
        new.replace(self.path / INDEX)
        self._is_committed = True
        _sync(self.path)
        for other in self.path.iterdir():
            if other != self._data and _is_ours(other, replaced):
                _remove(other)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._is_committed:
            self._take_back()

    def _take_back(self) -> None:
        _remove(self._data)
        if self._made:
            with suppress(OSError):  # somebody else's file is in there by now
                self.path.rmdir()


class ModelReader:
    """Reads a saved model. Raises NoSavedModel where there is none, CorruptFile where a file is not as it was written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise NoSavedModel(str(self.path), "it is no folder" if self.path.exists() else "it does not exist")
        try:
            data = (self.path / INDEX).read_bytes()
        except FileNotFoundError:
            raise NoSavedModel(str(self.path), f"it has no {INDEX}") from None
        self.index = parse(data, str(self.path / INDEX))

    def read(self, entry: FileEntry) -> bytes:
        """Return a file's bytes, checked."""
        path = self.path / entry.file
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise CorruptFile(str(path), "it is missing") from None
        if len(data) != entry.size_bytes:
            raise CorruptFile(str(path), f"it has {len(data):,} bytes, not {entry.size_bytes:,}")
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise CorruptFile(str(path), "its sha256 is another")
        return data

    def arrays(self, entry: FileEntry) -> dict[str, npt.NDArray[Any]]:
        """Return a file's arrays by name."""
        try:
            return safetensors.numpy.load(self.read(entry))
        except SafetensorError as error:
            raise CorruptFile(str(self.path / entry.file), str(error)) from None

    def check(self) -> None:
        """Read every file once, so that nothing is loaded of a model that is not whole."""
        for entry in self.index.files():
            self.read(entry)


def to_bytes(arrays: Arrays) -> bytes:
    """Return the safetensors file of C-contiguous arrays."""
    return safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def _folders_of(path: Path) -> set[str]:
    """Return the names of the folders that the model in `path` lies in; none where there is no model that can be read."""
    try:
        index = ModelReader(path).index
    except (OSError, CorruptFile, InvalidRequest):
        return set()
    return {Path(entry.file).parts[0] for entry in index.files()}


def _is_ours(folder: Path, replaced: set[str]) -> bool:
    if not _FOLDER.fullmatch(folder.name) or folder.is_symlink():
        return False
    return folder.name in replaced or (folder / MARKER).is_file()


def _remove(folder: Path) -> None:
    """Remove what a save writes into a folder, and then the folder if it is empty. What cannot be removed stays."""
    with suppress(OSError):
        written = [file for file in folder.iterdir() if _FILE.fullmatch(file.name)]
        for file in [*written, folder / INDEX, folder / MARKER]:
            file.unlink(missing_ok=True)
        folder.rmdir()


def _write_through(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """See the folder's names on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

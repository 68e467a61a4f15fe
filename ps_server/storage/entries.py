"""What the JSON files of a checkpoint have beside ps_proto.entries: files and what they must be."""

from collections.abc import Iterable
from typing import Final

from pydantic import Field

from ps_proto.entries import Entry
from ps_proto.errors import CorruptFile
from ps_server.storage.arrays_file import checksum
from ps_server.storage.layout import PART_FILE
from ps_server.storage.store import Data, buffers_of

VERSION: Final = 1  # of the format, of parts and manifests alike


class FileEntry(Entry):
    """A file of a part: its path from the root, and what it must be."""

    file: str = Field(pattern=PART_FILE)
    size_bytes: int = Field(ge=0)
    checksum: str = Field(pattern=r"^[0-9a-f]{32}$")

    @classmethod
    def of(cls, file: str, data: Data) -> "FileEntry":
        """Return the entry of a file with these bytes."""
        return FileEntry(file=file, size_bytes=sum([len(buffer) for buffer in buffers_of(data)]), checksum=checksum(data))

    def check_size(self, size_bytes: int | None, root: str) -> None:
        """Raise CorruptFile unless the file has the bytes that it must; None: it is not there."""
        if size_bytes is None:
            raise CorruptFile(f"{root}/{self.file}", "it is missing")
        if size_bytes != self.size_bytes:
            raise CorruptFile(f"{root}/{self.file}", f"it has {size_bytes:,} bytes, not {self.size_bytes:,}")

    def check(self, data: memoryview, root: str) -> None:
        """Raise CorruptFile unless these are the file's bytes."""
        self.check_size(len(data), root)
        if checksum(data) != self.checksum:
            raise CorruptFile(f"{root}/{self.file}", "its checksum differs")


class RowsEntry(FileEntry):
    """A file with some rows of a table."""

    rows: int = Field(ge=0)


def check_distinct(what: str, values: Iterable[object]) -> None:
    """Raise ValueError where two of the values are one."""
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value!r} is there twice")
        seen.add(value)

"""The memory that files are read into: lent again, but never while somebody looks at it."""

from pathlib import Path

import numpy as np
import pytest

from ps_server.storage.arrays_file import decode, encode
from ps_server.storage.disk import RealDisk

BIG = 1 << 18  # words of a file that is read into lent memory


def write(path: Path, number: int, size: int = BIG) -> Path:
    path.write_bytes(b"".join(encode({"words": np.full(size, number, np.uint32)})))
    return path


def address_of(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def test_memory_is_lent_again_once_nobody_holds_it(tmp_path: Path) -> None:
    disk = RealDisk()
    first = disk.read(write(tmp_path / "1", 1))
    address = address_of(first)
    del first
    second = disk.read(write(tmp_path / "2", 2))
    assert address_of(second) == address
    assert bytes(second) == (tmp_path / "2").read_bytes()


def test_whoever_holds_a_view_of_a_view_keeps_it(tmp_path: Path) -> None:
    disk = RealDisk()
    words = decode(disk.read(write(tmp_path / "1", 1)), "1")["words"][1::2]
    others = [disk.read(write(tmp_path / "2", number)) for number in range(2, 6)]
    assert np.all(words == 1)
    assert [decode(data, "2")["words"][-1] for data in others] == [2, 3, 4, 5]


def test_a_longer_file_gets_more_memory_and_a_shorter_one_no_more_bytes_than_it_has(tmp_path: Path) -> None:
    disk = RealDisk()
    for size in (BIG, 3 * BIG, 2 * BIG, 4 * BIG):
        path = write(tmp_path / "file", size, size)
        assert bytes(disk.read(path)) == path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, BIG])
def test_a_file_of_any_size_is_read_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    assert bytes(RealDisk().read(path)) == b"x" * size

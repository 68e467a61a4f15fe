"""A folder of checkpoints: in which order it writes and syncs, and what is left where a disk fails."""

import os
from itertools import count
from pathlib import Path

import pytest

from ps_proto.errors import StorageFailed
from ps_server.storage.folder import Folder
from recorded_disk import RecordedDisk


def folder_of(tmp_path: Path, disk: RecordedDisk) -> Folder:
    numbers = count()
    return Folder(tmp_path / "root", disk, new_token=lambda: f"{next(numbers):08x}")


def test_a_put_is_durable_step_by_step(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path)
    folder_of(tmp_path, disk).put("c-1/shard-0/a", b"hello")
    assert disk.calls == [
        "make root",
        "sync folder .",
        "make root/c-1",
        "sync folder root",
        "make root/c-1/shard-0",
        "sync folder root/c-1",
        "create root/c-1/shard-0/a.tmp-00000000",
        "write root/c-1/shard-0/a.tmp-00000000",
        "sync root/c-1/shard-0/a.tmp-00000000",
        "close root/c-1/shard-0/a.tmp-00000000",
        "rename root/c-1/shard-0/a.tmp-00000000 root/c-1/shard-0/a",
        "sync folder root/c-1/shard-0",
    ]


def test_folders_are_synced_once_also_those_that_another_process_has_made(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path)
    folder = folder_of(tmp_path, disk)
    (tmp_path / "root" / "c-1").mkdir(parents=True)
    folder.put("c-1/a", b"hello")
    assert disk.calls[0] == "sync folder root"
    disk.calls.clear()

    folder.put("c-1/b", b"hello")

    assert [call for call in disk.calls if call.startswith(("make", "sync folder"))] == ["sync folder root/c-1"]


def test_deletions_are_durable_before_folders_go(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path)
    folder = folder_of(tmp_path, disk)
    for path in ("c-1/shard-0/a", "c-1/shard-0/b", "c-2/a"):
        folder.put(path, b"hello")
    disk.calls.clear()

    folder.delete(["c-1/shard-0/a", "c-1/shard-0/b"])

    assert disk.calls == [
        "remove root/c-1/shard-0/a",
        "remove root/c-1/shard-0/b",
        "sync folder root/c-1/shard-0",
        "remove folder root/c-1/shard-0",
        "remove folder root/c-1",
    ]
    assert os.listdir(tmp_path / "root") == ["c-2"]


def test_the_root_stays_where_its_last_file_goes(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "root")
    folder.put("a", b"hello")
    folder.delete(["a"])
    assert os.listdir(tmp_path) == ["root"]


def test_a_folder_that_was_removed_is_made_and_synced_again(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path)
    folder = folder_of(tmp_path, disk)
    folder.put("c-1/a", b"hello")
    folder.delete(["c-1/a"])
    disk.calls.clear()

    folder.put("c-1/a", b"hello")

    assert disk.calls[:2] == ["make root/c-1", "sync folder root"]

    folder.delete(["c-1/a"])
    (tmp_path / "root" / "c-1").mkdir()  # by another process
    disk.calls.clear()
    folder.put("c-1/a", b"hello")

    assert disk.calls[0] == "sync folder root"


def test_a_full_disk_at_any_call_leaves_the_old_object_or_the_new_one(tmp_path: Path) -> None:
    def put(root: Path, fails_at: int | None) -> RecordedDisk:
        disk = RecordedDisk(root, fails_at)
        folder_of(root, disk).put("c-1/a", b"the new one")
        return disk

    (tmp_path / "whole").mkdir()
    calls = len(put(tmp_path / "whole", None).calls)
    for fails_at in range(calls):
        root = tmp_path / str(fails_at)
        root.mkdir()
        with pytest.raises(StorageFailed, match=r"root/c-1/a cannot be read or written: No space left on device\. "):
            put(root, fails_at)
        assert Folder(root / "root").list("") in ({}, {"c-1/a": 11})
        put(root, None)
        assert bytes(Folder(root / "root").get("c-1/a")) == b"the new one"


def test_a_failed_put_keeps_what_was_there(tmp_path: Path) -> None:
    Folder(tmp_path / "root").put("a", b"the old one")
    for fails_at in range(4):  # create, write, sync, close
        with pytest.raises(StorageFailed, match="No space left"):
            folder_of(tmp_path, RecordedDisk(tmp_path, fails_at)).put("a", b"the new one")
        assert Folder(tmp_path / "root").list("") == {"a": 11}
        assert bytes(Folder(tmp_path / "root").get("a")) == b"the old one"


def test_a_file_where_a_folder_must_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    folder = Folder(tmp_path / "root")
    with pytest.raises(StorageFailed, match="Not a directory"):
        folder.put("a", b"hello")
    with pytest.raises(StorageFailed, match="Not a directory"):
        folder.list("")
    with pytest.raises(StorageFailed, match="Not a directory"):
        folder.get("a")


def test_links_are_listed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").write_bytes(b"hello")
    Folder(tmp_path / "root").put("b", b"hello")
    (tmp_path / "root" / "c").symlink_to(tmp_path / "elsewhere")
    assert Folder(tmp_path / "root").list("") == {"b": 5}


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b"])
def test_no_path_leaves_the_root(tmp_path: Path, path: str) -> None:
    with pytest.raises(AssertionError, match="is no place below a root"):
        Folder(tmp_path).get(path)

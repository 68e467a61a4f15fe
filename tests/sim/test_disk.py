"""The disk that forgets, tested: what is synced outlives every crash, what is not may be there, torn or gone."""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.disk import Died, Mount, SimDisk

FILE, OTHER = Path("/file"), Path("/other")
SEEDS = range(40)


def written(mount: Mount, path: Path, data: bytes, *, syncs: bool) -> None:
    handle = mount.create(path)
    mount.write(handle, [data])
    if syncs:
        mount.sync(handle)
    mount.close(handle)


def after_crash(prepare: Callable[[Mount], None], path: Path = FILE) -> set[bytes | None]:
    """Return what a file may hold after a crash, None: it is gone, over many crashes."""
    found: set[bytes | None] = set()
    for seed in SEEDS:
        disk = SimDisk(random.Random(seed))
        mount = disk.mount("one")
        prepare(mount)
        disk.crash(mount)
        try:
            found.add(bytes(disk.mount("again").read(path)))
        except FileNotFoundError:
            found.add(None)
    return found


def test_what_is_written_is_there_for_everybody() -> None:
    disk = SimDisk(random.Random(1))
    written(disk.mount("one"), FILE, b"hello", syncs=False)
    other = disk.mount("other")
    assert bytes(other.read(FILE)) == b"hello"
    assert other.walk(Path("/")) == {FILE: 5}


def test_synced_bytes_under_a_synced_name_outlive_every_crash() -> None:
    def prepare(mount: Mount) -> None:
        written(mount, FILE, b"hello", syncs=True)
        mount.sync_folder(Path("/"))

    assert after_crash(prepare) == {b"hello"}


def test_a_name_that_was_not_synced_may_be_gone() -> None:
    assert after_crash(lambda mount: written(mount, FILE, b"hello", syncs=True)) == {b"hello", None}


def test_bytes_that_were_not_synced_may_be_cut_or_zero() -> None:
    def prepare(mount: Mount) -> None:
        written(mount, FILE, b"hello", syncs=False)
        mount.sync_folder(Path("/"))

    found = after_crash(prepare)
    assert b"" in found
    assert b"hello" in found
    assert any(data and data.startswith(b"h") and data.endswith(b"\0") and len(data) == 5 for data in found)


def test_a_rename_that_was_not_synced_leaves_the_old_file_or_the_new_one() -> None:
    def prepare(mount: Mount) -> None:
        written(mount, FILE, b"old", syncs=True)
        written(mount, OTHER, b"new", syncs=True)
        mount.sync_folder(Path("/"))
        mount.rename(OTHER, FILE)

    assert after_crash(prepare) == {b"old", b"new"}
    assert after_crash(prepare, OTHER) == {b"new", None}


def test_a_removal_that_was_not_synced_may_be_undone() -> None:
    def prepare(mount: Mount) -> None:
        written(mount, FILE, b"hello", syncs=True)
        mount.sync_folder(Path("/"))
        mount.remove(FILE)

    assert after_crash(prepare) == {b"hello", None}


def test_a_folder_that_is_lost_takes_what_is_in_it_along() -> None:
    inner = Path("/folder/file")

    def prepare(mount: Mount) -> None:
        assert mount.make_folder(inner.parent)
        assert not mount.make_folder(inner.parent)
        written(mount, inner, b"hello", syncs=True)
        mount.sync_folder(inner.parent)

    assert after_crash(prepare, inner) == {b"hello", None}


def test_what_a_living_process_has_not_synced_stays_where_another_dies() -> None:
    for seed in SEEDS:
        disk = SimDisk(random.Random(seed))
        alive, dead = disk.mount("alive"), disk.mount("dead")
        written(alive, FILE, b"hello", syncs=False)
        written(dead, OTHER, b"hello", syncs=False)
        disk.crash(dead)
        assert bytes(alive.read(FILE)) == b"hello"
        with pytest.raises(Died):
            dead.read(FILE)


def test_a_folders_sync_is_for_the_names_of_all() -> None:
    for seed in SEEDS:
        disk = SimDisk(random.Random(seed))
        one, other = disk.mount("one"), disk.mount("other")
        written(one, FILE, b"hello", syncs=True)
        other.sync_folder(Path("/"))
        disk.crash(one, other)
        assert bytes(disk.mount("again").read(FILE)) == b"hello"


def test_a_process_dies_before_the_call_that_the_test_names_and_makes_no_other() -> None:
    disk = SimDisk(random.Random(1))
    mount = disk.mount("one")
    mount.dies_before = 2
    with pytest.raises(Died, match="one died before sync /file"):
        written(mount, FILE, b"hello", syncs=True)
    assert mount.calls == ["create /file", "write /file"]
    with pytest.raises(Died):
        mount.remove(FILE)
    assert bytes(disk.mount("other").read(FILE)) == b"hello", "nothing is lost before the crash itself"


def test_a_full_disk_takes_what_fits_and_has_room_again_after_a_removal() -> None:
    disk = SimDisk(random.Random(1), bytes_left=8)
    mount = disk.mount("one")
    written(mount, FILE, b"hello", syncs=True)
    handle = mount.create(OTHER)
    with pytest.raises(OSError, match="No space left on device"):
        mount.write(handle, [b"he", b"llo"])
    assert mount.walk(Path("/")) == {FILE: 5, OTHER: 3}
    mount.remove(FILE)
    mount.write(handle, [b"lo"])
    assert bytes(mount.read(OTHER)) == b"hello"


def test_a_directed_fault_hits_the_call_it_names_once() -> None:
    mount = SimDisk(random.Random(1)).mount("one")
    fault = mount.fail_next("sync", "other", errno.EIO)
    written(mount, FILE, b"hello", syncs=True)
    assert not fault.fired
    with pytest.raises(OSError, match="Input/output error"):
        written(mount, OTHER, b"hello", syncs=True)
    assert fault.fired


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda mount: mount.create(FILE), errno.EEXIST),
        (lambda mount: mount.create(Path("/none/file")), errno.ENOENT),
        (lambda mount: mount.make_folder(Path("/none/folder")), errno.ENOENT),
        (lambda mount: mount.read(Path("/file/below")), errno.ENOTDIR),
        (lambda mount: mount.read(Path("/folder")), errno.EISDIR),
        (lambda mount: mount.remove(Path("/folder")), errno.EISDIR),
        (lambda mount: mount.remove(Path("/none")), errno.ENOENT),
        (lambda mount: mount.rename(FILE, Path("/folder")), errno.EISDIR),
        (lambda mount: mount.remove_folder(Path("/")), errno.ENOTEMPTY),
        (lambda mount: mount.sync_folder(FILE), errno.ENOTDIR),
    ],
)
def test_what_cannot_be_done_fails_as_an_operating_system_has_it(call: Callable[[Mount], object], code: int) -> None:
    mount = SimDisk(random.Random(1)).mount("one")
    written(mount, FILE, b"hello", syncs=False)
    mount.make_folder(Path("/folder"))
    with pytest.raises(OSError) as failure:  # noqa: PT011  # the number says which
        call(mount)
    assert failure.value.errno == code


def test_the_same_seed_forgets_the_same() -> None:
    def crashed(seed: int) -> dict[Path, int]:
        disk = SimDisk(random.Random(seed))
        mount = disk.mount("one")
        for number in range(20):
            written(mount, Path(f"/{number}"), bytes(100), syncs=number % 2 == 0)
        disk.crash(mount)
        assert disk.lost_count > 0
        return disk.mount("again").walk(Path("/"))

    assert crashed(3) == crashed(3)
    assert crashed(3) != crashed(4)

"""A crash at every call of the disk that makes a checkpoint: whatever it forgets, a whole one is found, and the next one heals."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from made_checkpoints import ROOT, make_checkpoint, run_on
from ps_proto.errors import CorruptFile
from ps_server.storage.disk import Disk
from ps_server.storage.finding import find
from ps_server.storage.folder import Folder
from ps_server.storage.layout import manifest_of, number_of
from ps_server.storage.reading import read_file, read_manifest, read_part
from ps_server.storage.store import Data, Store, buffers_of
from ps_server.tasks import FindCheckpoint
from sim.disk import Died, Mount, SimDisk

CALLS_MAX = 300  # more than both take: a sweep ends
FORGETS = 2  # what the disk forgets at each point, so many ways


class Sweep:
    """Two checkpoints, of which the second makes the first superfluous, with a crash before each call of the disk.

    `folder_class`, `mount_class`: let a test put a planted bug in.
    """

    def __init__(self, folder_class: type[Folder] = Folder, mount_class: type[Mount] = Mount) -> None:
        self._folder_class = folder_class
        self._mount_class = mount_class
        self.points = 0
        self.lost_count = 0

    def faults(self) -> Iterator[str]:
        """Yield what is wrong after a crash at any of the points."""
        for forgets in range(FORGETS):
            yield from self._swept(forgets)

    def _swept(self, forgets: int) -> Iterator[str]:
        for point in range(CALLS_MAX):
            disk = SimDisk(random.Random(CALLS_MAX * forgets + point))
            mount = self._mount_class(disk, "before")
            mount.dies_before = point
            completed: list[int] = []
            with suppress(Died):
                self._run(self._folder(mount), completed)
            disk.crash(mount)
            self.points += 1
            self.lost_count += disk.lost_count
            for fault in self._look(disk, completed):
                yield f"after {len(mount.calls)} calls, of which the last was {mount.calls[-1:]}: {fault}"
            if completed == [1, 2]:
                return
        raise AssertionError(f"more than {CALLS_MAX} calls")

    def _folder(self, mount: Mount) -> Folder:
        tokens = random.Random(len(mount.name))
        return self._folder_class(Path(ROOT), mount, new_token=lambda: f"{tokens.getrandbits(32):08x}")

    def _run(self, folder: Folder, completed: list[int]) -> None:
        for number in (1, 2):
            make_checkpoint(folder, number, keep=1)
            completed.append(number)

    def _look(self, disk: SimDisk, completed: list[int]) -> list[str]:
        """Return what the next process finds amiss, which then takes a checkpoint of its own."""
        folder = Folder(Path(ROOT), disk.mount("after"))
        faults = [f"checkpoint {number} is not whole: {why}" for number in _complete(folder) if (why := _amiss(folder, number))]
        source = run_on(folder, find(FindCheckpoint((ROOT,)))).source
        if (source.number if source else 0) < max(completed, default=0):
            faults.append(f"{source} was found, although {completed} were complete")
        make_checkpoint(folder, 3, keep=1)
        left = {number_of(path) for path in folder.list("")}
        return faults if left == {3} else [*faults, f"{left} are left"]


def _complete(store: Store) -> list[int]:
    numbers = {number for path in store.list("") if (number := number_of(path)) is not None}
    return [number for number in sorted(numbers) if manifest_of(number) in store.list("")]


def _amiss(store: Store, number: int) -> str:
    """Return why a checkpoint that has a manifest cannot be loaded to the last byte; "" where it can."""
    try:
        for layer in run_on(store, read_manifest(ROOT, number)).layers:
            for entry in layer.parts:
                for file in run_on(store, read_part(ROOT, entry)).files():
                    run_on(store, read_file(ROOT, file))
    except CorruptFile as error:
        return str(error)
    return ""


def test_a_crash_before_any_call_of_the_disk_leaves_a_whole_checkpoint() -> None:
    sweep = Sweep()
    assert list(sweep.faults()) == []
    assert sweep.points > 100
    assert sweep.lost_count > 50, "a disk that forgets nothing would show nothing"


class ForgetsFolders(Mount):
    """Leaves the names of a folder to themselves."""

    def sync_folder(self, path: Path) -> None:
        pass


class ForgetsFiles(Mount):
    """Leaves the bytes of a file to themselves."""

    def sync(self, file: int) -> None:
        pass


class ManifestFirst(Folder):
    """Writes a manifest before the parts that it names, which it has only in memory until then."""

    def __init__(self, path: Path, disk: Disk | None, new_token: Callable[[], str]) -> None:
        super().__init__(path, disk, new_token)
        self._held: dict[str, bytes] = {}

    def put(self, path: str, data: Data) -> None:
        if not path.endswith("manifest.json"):
            self._held[path] = b"".join(buffers_of(data))
            return
        super().put(path, data)
        for held, its_data in self._held.items():
            super().put(held, its_data)
        self._held = {}

    def get(self, path: str) -> memoryview:
        return memoryview(self._held[path]) if path in self._held else super().get(path)

    def list(self, prefix: str) -> dict[str, int]:
        return super().list(prefix) | {path: len(data) for path, data in self._held.items() if path.startswith(prefix)}


class FilesFirst(Folder):
    """Deletes the files of a checkpoint before its manifest."""

    def delete(self, paths: Sequence[str]) -> None:
        if any([not path.endswith("manifest.json") for path in paths]):
            super().delete(sorted(paths, key=lambda path: path.endswith("manifest.json")))


class NeverRenames(Folder):
    """Writes a file under its own name."""

    def put(self, path: str, data: Data) -> None:
        file = self._at(path)
        self._make_folders(file.parent)
        self._write(file, buffers_of(data))
        self._disk.sync_folder(file.parent)


@pytest.mark.parametrize(
    "sweep",
    [Sweep(mount_class=ForgetsFolders), Sweep(mount_class=ForgetsFiles), Sweep(ManifestFirst), Sweep(FilesFirst), Sweep(NeverRenames)],
    ids=["no sync of a folder", "no sync of a file", "a manifest before its parts", "files deleted first", "no rename"],
)
def test_the_sweep_finds_what_is_planted(sweep: Sweep) -> None:
    assert next(sweep.faults(), None) is not None

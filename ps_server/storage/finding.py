"""Find the newest checkpoint that is complete and whole, and say of each newer one why it is not.

Whole: every file of every layer is there with its size, and every part.json with its checksum. The checksums of rows are left to who loads
them: it reads them anyway, and a checkpoint that fails there comes back as `bad`. A store that does not answer raises StorageFailed: it may
well have a newer one.
"""

from collections.abc import Mapping

from ps_proto.errors import CorruptFile, InvalidRequest, NoCheckpoint
from ps_proto.orders import JobState, RankState, Source
from ps_proto.requests import Finished
from ps_proto.values import mode_from_wire
from ps_server.storage.layout import manifest_of, number_of
from ps_server.storage.lineage import is_of
from ps_server.storage.manifest import Manifest
from ps_server.storage.program import List, Program
from ps_server.storage.reading import read_manifest, read_part
from ps_server.tasks import BarrierRun, FindCheckpoint, FoundCheckpoint


def find(task: FindCheckpoint) -> Program[FoundCheckpoint]:
    """Return the newest of all roots; of two with one number that of the earlier root."""
    folders: dict[str, Mapping[str, int]] = {}
    for root in task.roots:
        folders[root] = yield List(root, "")
    found = {(number, root) for root, sizes in folders.items() for path in sizes if (number := number_of(path)) is not None}
    places = list(folders)
    number_max = max([number for number, _ in found], default=0)
    passed_over: list[str] = []
    for number, root in sorted(found, key=lambda each: (-each[0], places.index(each[1]))):
        if task.number not in (None, number):
            continue
        if manifest_of(number) not in folders[root]:
            passed_over.append(
                f"Checkpoint {number} of {root} was passed over. It is not complete: there is no {root}/{manifest_of(number)}."
            )
            continue
        try:
            if (root, number) in task.bad:
                raise CorruptFile(root, "a server could not load it")
            manifest = yield from _whole(root, number, folders[root])
        except (CorruptFile, InvalidRequest) as error:
            passed_over.append(f"Checkpoint {number} of {root} was passed over. {error}")
            continue
        if not is_of(task.lineage, manifest):
            continue  # somebody else's, or of a time that is gone
        tables = tuple([table.spec() for table in manifest.tables])
        return FoundCheckpoint(
            Source(root, number),
            manifest.timeline,
            tables,
            job_of(manifest),
            tuple(passed_over),
            number_max,
            int(manifest.cluster, 16),
            increments=len(manifest.layers) - 1,
            admitted={rank.rank: rank.since for rank in manifest.ranks if rank.since is not None},
            removed=frozenset([rank.rank for rank in manifest.ranks if rank.was_removed]),
            barriers=tuple([BarrierRun(run.generation, run.minimum, run.count, run.turns) for run in manifest.barriers]),
        )
    if task.number not in (None, *[number for number, _ in found]):
        complete = sorted({number for number, root in found if manifest_of(number) in folders[root]})
        there = f"; there are {', '.join(map(str, complete))}" if complete else ""
        passed_over.append(f"There is none of number {task.number}{there}.")
    return FoundCheckpoint(None, 0, (), None, tuple(passed_over), number_max)


def no_checkpoint(path: str, found: FoundCheckpoint) -> NoCheckpoint:
    """Return the error that says why nothing was found at `path`."""
    return NoCheckpoint(path, " ".join(found.passed_over).rstrip(".") or "none was written")


def job_of(manifest: Manifest) -> JobState | None:
    """Return the job that a checkpoint was taken of; facts are without their resume states, which lie in the parts."""
    job = manifest.job
    if job is None:
        return None
    ranks = [
        RankState(rank.rank, None if rank.shard is None else Finished(rank.clock), rank.clock, rank.has_left) for rank in manifest.ranks
    ]
    mode = mode_from_wire(job.mode.kind, job.mode.parameters)
    return JobState(job.number, job.world_size, mode, job.first_clock, manifest.step, tuple(ranks))


def _whole(root: str, number: int, folder: Mapping[str, int]) -> Program[Manifest]:
    """Return the manifest of a checkpoint that is complete, if it is whole; CorruptFile says why it is not."""
    manifest = yield from read_manifest(root, number)
    yield from _check(root, manifest, folder)
    return manifest


def _check(root: str, manifest: Manifest, folder: Mapping[str, int]) -> Program[None]:
    """Raise CorruptFile unless every file that the manifest needs is there and as long as it was."""
    for layer in manifest.layers:
        for entry in layer.parts:
            part = yield from read_part(root, entry)
            for file in part.files():
                file.check_size(folder.get(file.file), root)

"""Make parts a checkpoint: see that they are of one instant and whole, say so in the manifest, and only then remove older checkpoints."""

from collections.abc import Collection, Mapping
from dataclasses import asdict

from pydantic import ValidationError

from ps_proto.entries import SettingEntry, SpecEntry
from ps_proto.errors import CheckpointFailed, CorruptFile, InvalidRequest, StorageFailed
from ps_proto.orders import PartWritten
from ps_proto.values import Sync
from ps_server.storage.layout import folder_of, manifest_of, part_of
from ps_server.storage.manifest import BarrierEntry, JobEntry, Layer, Manifest, PartEntry, RankEntry, ServerEntry, pack_owners
from ps_server.storage.part import Part
from ps_server.storage.program import List, Program, Put
from ps_server.storage.reading import read_manifest, read_part
from ps_server.storage.retention import discard, retire
from ps_server.tasks import AbandonCheckpoint, PublishCheckpoint, Published

_SELF = "the coordinator"


def publish(task: PublishCheckpoint) -> Program[Published]:
    """Complete a checkpoint of the parts that the servers wrote; CheckpointFailed where they are none, and nothing is complete then."""
    try:
        manifest = yield from _manifest_of(task)
        yield Put(task.root, manifest_of(task.number), manifest.encode())
    except (StorageFailed, CorruptFile, InvalidRequest) as error:
        raise CheckpointFailed(_path_of(task), _SELF, str(error)) from error
    removed = 0
    if task.keep:  # 0: all stay
        try:
            removed = yield from retire(task.root, task.keep, task.lineage)
        except StorageFailed:
            removed = 0  # this checkpoint is complete all the same, and the next one tries again
    return Published(task.number, manifest.step, manifest.rows, manifest.size_bytes, manifest.stall_s, removed)


def abandon(task: AbandonCheckpoint) -> Program[None]:
    """Remove what was written for a checkpoint, unless it is complete. A server that still writes leaves files for the next `retire`."""
    folder: Mapping[str, int] = yield List(task.root, folder_of(task.number))
    if manifest_of(task.number) not in folder:
        yield from discard(task.root, task.number, folder)


def _manifest_of(task: PublishCheckpoint) -> Program[Manifest]:
    folder: Mapping[str, int] = yield List(task.root, folder_of(task.number))
    if manifest_of(task.number) in folder:
        raise CheckpointFailed(_path_of(task), _SELF, "a complete checkpoint of that number is there already")
    entries = _entries_of(task)
    parts: list[Part] = []
    for entry in entries:
        part = yield from read_part(task.root, entry)
        for file in part.files():
            file.check_size(folder.get(file.file), task.root)
        parts.append(part)
    _check_instant(task, parts)
    servers, owners = task.shard_map.servers, pack_owners(task.shard_map.owners)
    own = Layer(number=task.number, map_version=task.shard_map.version, owners=None, parts=entries)
    older = () if all([part.is_full for part in parts]) else (yield from _older_layers(task, owners))
    ranks = _ranks_of(parts, task.removals) if task.job else ()
    return Manifest(
        cluster=f"{task.cluster:016x}",
        number=task.number,
        base=older[-1].number if older else None,
        timeline=parts[0].timeline,
        map_version=task.shard_map.version,
        servers=tuple([ServerEntry(name=server.name, incarnation=server.incarnation, weight=server.weight) for server in servers]),
        owners=owners,
        step=min([part.step for part in parts]),
        is_synchronous=_is_synchronous(task),
        job=_job_of(task, ranks),
        ranks=ranks,
        barriers=tuple([BarrierEntry(**asdict(run)) for run in task.barriers]),
        tables=tuple([SpecEntry.of_spec(spec) for spec in task.tables]),
        layers=(*older, own),
        rows=sum([part.rows for part in parts]),
        size_bytes=sum([file.size_bytes for part in parts for file in part.files()]),
        stall_s=max([part.stall_s for part in task.parts]),
    )


def _entries_of(task: PublishCheckpoint) -> tuple[PartEntry, ...]:
    """Return the entry of each server's part.json, in the map's order."""
    written = {part.server: part for part in task.parts}
    if sorted([part.server for part in task.parts]) != sorted([server.name for server in task.shard_map.servers]):
        want = f"shard map {task.shard_map.version} has {len(task.shard_map.servers)} servers"
        raise CheckpointFailed(_path_of(task), _SELF, f"{want}, whose parts these are not: {', '.join(written)}")
    return tuple([entry_of(task.root, task.number, shard, written[server.name]) for shard, server in enumerate(task.shard_map.servers)])


def entry_of(root: str, number: int, shard: int, written: PartWritten) -> PartEntry:
    """Return the entry of what a server says that it wrote as part `shard`; CheckpointFailed where that cannot be."""
    path = f"{root}/{folder_of(number)}"
    if written.file != part_of(number, shard):
        raise CheckpointFailed(path, written.server, f"its part is {written.file}, not {part_of(number, shard)}")
    try:
        return PartEntry(server=written.server, file=written.file, size_bytes=written.size_bytes, checksum=written.checksum)
    except ValidationError as error:
        raise CheckpointFailed(path, written.server, f"it says of its part: {error.errors()[0]['msg']}") from None


def _check_instant(task: PublishCheckpoint, parts: list[Part]) -> None:
    """Raise CheckpointFailed unless the parts are of one map, timeline and job, and of one step where tables are synchronous.

    A rank that some server does not know yet, or not since the same step, is being admitted; another one may have pushes of it by its own
    instant.
    """
    first = parts[0]
    for server, part in zip(task.shard_map.servers, parts, strict=True):
        compared = {
            "number": (part.number, task.number),
            "server": (part.server, server.name),
            "server_incarnation": (part.server_incarnation, server.incarnation),
            "map_version": (part.map_version, task.shard_map.version),
            "timeline": (part.timeline, first.timeline),
            "job": (part.job, task.job.number if task.job else first.job),
            "ranks": (sorted(part.clocks), sorted(first.clocks)),
            "ranks admitted, with their first steps": (part.since, first.since),
            "step": (part.step, first.step if _is_synchronous(task) else part.step),
        }
        for field, (have, want) in compared.items():
            if have != want:
                raise CheckpointFailed(_path_of(task), server.name, f"its part is of {field} {have!r}, not {want!r}")
        _check_tables(task, server.name, "its part", [table.name for table in part.tables])


def _check_tables(task: PublishCheckpoint, server: str, what: str, names: list[str]) -> None:
    known = {spec.name for spec in task.tables}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CheckpointFailed(_path_of(task), server, f"{what} has table {unknown[0]!r}, which this cluster has not")


def _older_layers(task: PublishCheckpoint, owners: str) -> Program[tuple[Layer, ...]]:
    """Return the layers of the checkpoint that increments stand on, with its owners where they are not those of the new one."""
    if task.base is None:
        raise CheckpointFailed(_path_of(task), _SELF, "a part is an increment, but there is nothing that it stands on")
    base = yield from read_manifest(task.root, task.base)
    _check_tables(task, _SELF, f"checkpoint {task.base}, on which a part stands,", [table.name for table in base.tables])
    last = base.layers[-1].model_copy(update={"owners": None if base.owners == owners else base.owners})
    return (*base.layers[:-1], last)


def _is_synchronous(task: PublishCheckpoint) -> bool:
    """Return whether the job has synchronous tables."""
    return task.job is not None and any([isinstance(spec.mode or task.job.mode, Sync) for spec in task.tables])


def _job_of(task: PublishCheckpoint, ranks: tuple[RankEntry, ...]) -> JobEntry | None:
    """Return the job as it was at the instant: since then ranks may have come to it."""
    job = task.job
    if job is None:
        return None
    world_size = max([rank.rank + 1 for rank in ranks], default=job.world_size)
    return JobEntry(number=job.number, world_size=world_size, mode=SettingEntry.of(job.mode), first_clock=job.first_clock)


def _ranks_of(parts: list[Part], removals: Collection[tuple[int, int]]) -> tuple[RankEntry, ...]:
    """Return where each rank goes on: after the least of the steps that it finished by the servers' account.

    One that has left after a step after which it was removed was removed by then, though it may have come back since.
    """
    ranks = []
    for rank in sorted(parts[0].clocks):
        clock = min([part.clocks[rank] for part in parts])
        shards = [shard for shard, part in enumerate(parts) if part.facts.get(rank) == clock]
        has_left = all([rank in part.left for part in parts])
        since = parts[0].since.get(rank)
        was_removed = has_left and all([(rank, part.left[rank]) in removals for part in parts])
        shard = shards[0] if shards else None
        ranks.append(RankEntry(rank=rank, clock=clock, has_left=has_left, shard=shard, since=since, was_removed=was_removed))
    return tuple(ranks)


def _path_of(task: PublishCheckpoint) -> str:
    return f"{task.root}/{folder_of(task.number)}"

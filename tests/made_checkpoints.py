"""Checkpoints made by hand, small and quickly, for tests of what is done with them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_proto.entries import ColumnEntry
from ps_proto.orders import JobState, PartWritten
from ps_proto.values import Adagrad, Sync, TableSpec
from ps_server.storage.arrays_file import encode
from ps_server.storage.entries import FileEntry, RowsEntry
from ps_server.storage.layout import names_of, part_of, resume_of, rows_of
from ps_server.storage.part import Part, TablePart
from ps_server.storage.program import Program, T, run
from ps_server.storage.publishing import publish
from ps_server.storage.store import Data, Store
from ps_server.tasks import PublishCheckpoint, Published
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap

ROOT = "/checkpoints"
TABLE = TableSpec("user", dim=2, optimizer=Adagrad(lr=0.1))
JOB = JobState(number=3, world_size=2, mode=Sync(), first_clock=0, step=0, ranks=())


def run_on(store: Store, program: Program[T], root: str = ROOT) -> T:
    """Carry out a program that uses one root and asks nothing."""

    def refuse(body: object) -> object:
        raise AssertionError(f"nothing should be asked, but {body} was")

    def open_store(opened: str) -> Store:
        assert opened == root
        return store

    return run(program, open_store, refuse)


def map_of(servers: int = 2, version: int = 4) -> ShardMap:
    """Return a map in which server i has every bucket b with b % servers == i."""
    named = tuple([Server(f"server-{number}", f"127.0.0.1:{number + 1}", incarnation=5) for number in range(servers)])
    return ShardMap(version, named, np.arange(NUM_BUCKETS, dtype=np.int32) % servers)


def write_part(
    store: Store,
    number: int,
    shard: int,
    *,
    ids: Iterable[int] = (1, 2, 3),
    is_full: bool = True,
    step: int = 8,
    timeline: int = 0,
    map_version: int = 4,
    job: int = 3,
    clocks: Mapping[int, int] | None = None,
    facts: Mapping[int, int] | None = None,
    left: Mapping[int, int] | None = None,
    since: Mapping[int, int] | None = None,
    table: str = TABLE.name,
    server: str | None = None,
) -> PartWritten:
    """Write a server's part with these rows of one table, whose records are 2 + 2 words of the id's, and return what it says of it."""

    def put(file: str, data: Data) -> FileEntry:
        store.put(file, data)
        return FileEntry.of(file, data)

    numbers = np.fromiter(ids, np.uint64)
    records = np.repeat(numbers.astype(np.uint32)[:, None], 4, axis=1)
    rows = put(rows_of(number, shard, 0, 0), encode({"ids": numbers, "records": records}))
    rows_entry = RowsEntry(file=rows.file, size_bytes=rows.size_bytes, checksum=rows.checksum, rows=len(numbers))
    names: dict[str, NDArray[Any]] = {
        "buckets": np.zeros(0, np.int32),
        "ranks": np.zeros(0, np.int64),
        "names": np.zeros((0, 0), np.uint64),
    }
    facts = facts or {}
    part = Part(
        number=number,
        server=server or f"server-{shard}",
        server_incarnation=5,
        timeline=timeline,
        map_version=map_version,
        step=step,
        job=job,
        clocks=dict(clocks or {0: step - 1, 1: step - 1}),
        facts=dict(facts),
        since=dict(since or {}),
        left=dict(left or {}),
        names=put(names_of(number, shard), encode(names)),
        resume=put(resume_of(number, shard), encode({f"rank-{rank}": np.frombuffer(b"state", np.uint8) for rank in facts})),
        tables=(
            TablePart(
                name=table,
                is_full=is_full,
                record_words=4,
                columns=(ColumnEntry(name="sum", words=2, dtype="float32"),),
                rows=len(numbers),
                parts=(rows_entry,),
            ),
        ),
    )
    entry = put(part_of(number, shard), part.encode())
    return PartWritten(
        server=part.server,
        file=entry.file,
        size_bytes=entry.size_bytes,
        checksum=entry.checksum,
        step=step,
        timeline=timeline,
        map_version=map_version,
        rows=part.rows,
        nbytes=rows.size_bytes,
        stall_s=0.25 * (shard + 1),
    )


def task_of(number: int, parts: Iterable[PartWritten], *, base: int | None = None, keep: int = 0, shard_map: ShardMap | None = None,
            job: JobState | None = JOB, tables: tuple[TableSpec, ...] = (TABLE,),
            lineage: tuple[tuple[int, int, int], ...] = ()) -> PublishCheckpoint:  # fmt: skip
    """Return the task that completes a checkpoint of two servers."""
    return PublishCheckpoint(ROOT, number, base, 0xC0FFEE, tuple(parts), shard_map or map_of(), tables, job, keep, lineage)


def make_checkpoint(store: Store, number: int, *, base: int | None = None, keep: int = 0, **of_parts: int) -> Published:
    """Write both parts, as increments where there is a base, and complete the checkpoint."""
    parts = [write_part(store, number, shard, is_full=base is None, **of_parts) for shard in range(2)]  # type: ignore[arg-type]  # whatever its callers vary
    return run_on(store, publish(task_of(number, parts, base=base, keep=keep)))

"""The complete checkpoints of a simulation, read as servers of any number would load them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from jobs import Ids, Rows, checksum
from made_checkpoints import map_of
from naive.training import train
from ps_proto.orders import Source
from ps_proto.requests import Done
from ps_server.shard.table import Table
from ps_server.storage.folder import Folder
from ps_server.storage.layout import manifest_of, number_of
from ps_server.storage.loading import load_part
from ps_server.storage.manifest import Manifest
from ps_server.storage.program import run
from ps_server.storage.reading import read_manifest
from ps_server.tasks import LoadFacts, LoadNames, LoadPart, LoadRows, SavedNames
from sharding.hashing import NUM_BUCKETS
from sim.cluster import Simulation

ROOT = "/checkpoints"


class Loaded:
    """What one of the servers has after loading: tables as a shard holds them, names by rank uint64[16384], resume states by rank."""

    def __init__(self, manifest: Manifest) -> None:
        self.tables = {entry.name: Table(entry.spec()) for entry in manifest.tables}
        self.names: dict[int, Any] = {}
        self.resume: dict[int, bytes] = {}

    def ask(self, body: Any) -> Done:
        match body:
            case LoadRows(_, table, ids, records, expected):
                self.tables[table].load(ids, records, expected)
            case LoadNames(_, saved):
                self._take(saved)
            case LoadFacts(_, facts):
                self.resume = {rank: fact.resume for rank, fact in facts.items()}
            case _:
                raise AssertionError(f"loading asks no {body}")
        return Done()

    def _take(self, saved: SavedNames) -> None:
        for rank, row in zip(saved.ranks, saved.names, strict=True):
            self.names.setdefault(rank, np.zeros(NUM_BUCKETS, np.uint64))[saved.buckets] = row


class FoundCheckpoints:
    """Those that are complete under a root, ascending."""

    def __init__(self, sim: Simulation, root: str = ROOT) -> None:
        self.root = root
        self._folder = Folder(Path(root), sim.disk.mount("who looks"))
        paths = self._folder.list("")
        numbers = {number for path in paths if (number := number_of(path)) is not None and manifest_of(number) in paths}
        self.manifests = [self._run(read_manifest(root, number)) for number in sorted(numbers)]

    def load(self, manifest: Manifest, servers: int) -> list[Loaded]:
        """Load one onto so many new servers."""
        shard_map = map_of(servers)
        found = []
        for server in shard_map.servers:
            loaded = Loaded(manifest)
            self._run(load_part(LoadPart(Source(self.root, manifest.number), server.name, shard_map, 1)), loaded.ask)
            found.append(loaded)
        return found

    def _run(self, program: Any, ask: Any = None) -> Any:
        return run(program, lambda root: self._folder, ask)


def rows_of(loaded: Sequence[Loaded]) -> dict[str, tuple[Ids, Rows]]:
    """Return all rows that servers hold together: ids ascending and their rows, by table."""
    found = {}
    for name in loaded[0].tables:
        read = [shard.tables[name].snapshot().read(0, len(shard.tables[name])) for shard in loaded]
        ids, rows = np.concatenate([ids for ids, _ in read]), np.concatenate([rows for _, rows in read])
        assert np.unique(ids).size == ids.size, f"two servers have one row of {name}"
        order = np.argsort(ids)
        found[name] = ids[order], rows[order]
    return found


def held(tables: dict[str, tuple[Ids, Rows]]) -> str:
    """Return the checksum of the rows there are: a table that is not created yet has none."""
    return checksum({name: rows for name, rows in tables.items() if rows[0].size})


@cache
def held_after(world_size: int, steps: int) -> str:
    """Return the same of the job of jobs.py in one process, after so many steps."""
    return held(train(world_size, steps))

"""A server's rows as plain dicts, which saves and loads them as a shard does: the slow twin, and the other side of a program in tests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ps_proto.requests import ColumnLayout, Done, Finished
from ps_proto.values import Adagrad, TableSpec
from ps_server.storage.program import Program, Start, T, run
from ps_server.storage.store import Store
from ps_server.tasks import (
    LoadFacts,
    LoadNames,
    LoadRows,
    OpenPart,
    PartHead,
    Piece,
    ReadPiece,
    ReadStall,
    SavedNames,
    Stall,
    TableHead,
)
from sharding.hashing import buckets_of, table_salt
from sharding.shard_map import ShardMap

USER = TableSpec("user", dim=2, optimizer=Adagrad(lr=0.1))
ITEM = TableSpec("item", dim=3, optimizer=Adagrad(lr=0.1))
Record = tuple[int, ...]
Rows = dict[str, dict[int, Record]]  # table -> id -> its record


def bucket_of(table: str, key: int) -> int:
    return int(buckets_of(table_salt(table), np.array([key], np.uint64))[0])


class DictShard:
    """One server under a map: its rows in `tables`, the pushes applied last by rank and bucket in `names`, and what it says of itself.

    `save` notes the instant, of all rows or of those that were `set` since the last one, and `ask` answers a program from there.
    """

    def __init__(self, server: str, shard_map: ShardMap, specs: Sequence[TableSpec] = (USER, ITEM)) -> None:
        self.server, self.shard_map, self.specs = server, shard_map, specs
        self.shard = [each.name for each in shard_map.servers].index(server)
        self.tables: Rows = {spec.name: {} for spec in specs}
        self.names: dict[int, dict[int, int]] = {}
        self.facts: dict[int, Finished] = {}
        self.clocks: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.step = 8
        self.timeline = 0
        self.widths = {spec.name: 2 * spec.dim for spec in specs}  # words of a record
        self.columns: Mapping[str, tuple[ColumnLayout, ...]] = {}
        self.log: list[Any] = []  # what it was asked
        self._touched: dict[str, set[int]] = {spec.name: set() for spec in specs}
        self._needs_full = {spec.name for spec in specs}
        self._head: PartHead | None = None
        self._unread: list[list[tuple[int, Record]]] = []

    def owns(self, table: str, key: int) -> bool:
        return int(self.shard_map.owners[bucket_of(table, key)]) == self.shard

    def set(self, table: str, key: int, record: Record) -> None:
        self.tables[table][key] = record
        self._touched[table].add(key)

    def clear(self, table: str) -> None:
        self.tables[table] = {}
        self._needs_full.add(table)

    def save(self, *, full: bool = False) -> None:
        """Take this instant."""
        heads = []
        self._unread = []
        for spec in self.specs:
            is_full = full or spec.name in self._needs_full
            rows = self.tables[spec.name]
            self._unread.append([(key, record) for key, record in rows.items() if is_full or key in self._touched[spec.name]])
            heads.append(TableHead(spec, is_full, self.widths[spec.name], tuple(self.columns.get(spec.name, ()))))
            self._touched[spec.name] = set()
        self._needs_full = set()
        buckets = np.flatnonzero(self.shard_map.owners == self.shard).astype(np.int32)
        names = np.array([[of_rank.get(int(b), 0) for b in buckets] for of_rank in self.names.values()], np.uint64)
        saved = SavedNames(tuple(self.names), buckets, names.reshape(len(self.names), buckets.size))
        version = self.shard_map.version
        counters = {"user": {"rows_pushed": 3.0}}
        self._head = PartHead(
            self.step, 3, self.timeline, version, 5, tuple(heads), dict(self.clocks), {}, dict(self.left), dict(self.facts), saved, counters
        )

    def ask(self, body: Any) -> Any:
        self.log.append(body)
        match body:
            case OpenPart():
                assert self._head is not None
                return self._head
            case ReadPiece(_, table, bytes_max):
                return self._read(table, bytes_max)
            case ReadStall():
                return Stall(0.25)
            case LoadRows(timeline, table, ids, records, expected):
                assert (timeline, len(ids)) == (self.timeline, len(records))
                assert 0 < len(ids) <= expected
                for key, record in zip(ids.tolist(), records.tolist(), strict=True):
                    assert self.owns(table, key), "rows of others are not told"
                    self.tables[table][key] = tuple(record)
                return Done()
            case LoadNames(timeline, saved):
                assert timeline == self.timeline
                owned = self.shard_map.owners == self.shard
                for rank, row in zip(saved.ranks, saved.names.tolist(), strict=True):
                    found = {int(b): name for b, name in zip(saved.buckets, row, strict=True) if name and owned[b]}
                    self.names.setdefault(rank, {}).update(found)
                return Done()
            case LoadFacts(timeline, facts):
                assert timeline == self.timeline
                self.facts = dict(facts)
                return Done()
        raise AssertionError(f"a shard is not asked {body}")

    def _read(self, table: int, bytes_max: int) -> Piece | Done:
        words = self.widths[self.specs[table].name]
        count = max(1, bytes_max // (8 + 4 * words))
        rows, self._unread[table] = self._unread[table][:count], self._unread[table][count:]
        if not rows:
            return Done()
        ids = np.array([key for key, _ in rows], np.uint64)
        return Piece(ids, np.array([record for _, record in rows], np.uint32).reshape(len(rows), words))


def shards_of(shard_map: ShardMap) -> list[DictShard]:
    return [DictShard(server.name, shard_map) for server in shard_map.servers]


def set_row(shards: Iterable[DictShard], table: str, key: int, record: Record) -> None:
    """Set a row where it belongs."""
    (owner,) = [shard for shard in shards if shard.owns(table, key)]
    owner.set(table, key, record)


def joined(shards: Sequence[DictShard]) -> tuple[Rows, dict[int, dict[int, int]]]:
    """Return the rows and the names of a whole cluster."""
    tables: Rows = {}
    names: dict[int, dict[int, int]] = {}
    for shard in shards:
        for table, rows in shard.tables.items():
            tables.setdefault(table, {}).update(rows)
        for rank, of_rank in shard.names.items():
            names.setdefault(rank, {}).update(of_rank)
    return tables, names


def run_for(shard: DictShard, program: Program[T], store: Store, start: Start | None = None) -> T:
    """Carry out a program of this shard."""
    return run(program, lambda root: store, shard.ask, start)

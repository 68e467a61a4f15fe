"""Real shards saved and brought back by their programs: the same bits, for every optimizer and dtype, on any number of servers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conversation import Conversation, map_of
from dict_store import DictStore
from ps_proto.errors import CorruptFile, Recovering, RolledBack
from ps_proto.orders import AskRestore, BeginCheckpoint, CheckpointState, JobState, RestoreState, RollBack
from ps_proto.requests import ClearTable, Fence, Finished, Pull, Push, TableIds, TableRows
from ps_proto.values import OPTIMIZERS, Adagrad, Async, Mode, Sync, TableSpec, Uniform
from ps_server.events import Work
from ps_server.shard.window import Window
from ps_server.storage.finding import find
from ps_server.storage.layout import rows_of
from ps_server.storage.program import Program, run
from ps_server.storage.programs import PROGRAMS
from ps_server.storage.publishing import publish
from ps_server.tasks import FindCheckpoint, FoundCheckpoint, LoadPart, PublishCheckpoint, SavePart
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sharding.shard_map import ShardMap

ROOT = "/checkpoints"
DIM, IDS = 5, 400
EVERY = tuple(
    [
        TableSpec(f"{kind} {dtype}", DIM, setting(), initializer=Uniform(-0.5, 0.5), dtype=dtype, seed=3)
        for kind, setting in OPTIMIZERS.items()
        for dtype in ("float32", "bfloat16")
    ]
)
ONE = (TableSpec("user", DIM, Adagrad(lr=0.1)),)


class Servers:
    """Some shards under one map, and the checkpoints that are taken of them or that they go back to."""

    def __init__(self, store: DictStore, count: int, tables: Sequence[TableSpec], mode: Mode | None, version: int = 1) -> None:
        self.store, self.tables, self.mode = store, tuple(tables), mode
        self.shard_map: ShardMap = map_of(version, *[f"server-{number}" for number in range(count)])
        self.timeline = 0
        self.talks = [
            Conversation(mode, tables=self.tables, server=server.name, shard_map=self.shard_map) for server in self.shard_map.servers
        ]

    def fence(self, rank: int, clock: int) -> Fence:
        return Fence(self.shard_map.version, rank, 0, clock, self.timeline)

    def push(self, rank: int, clock: int) -> None:
        """Push gradients for some ids of every table, which rank and clock decide, to the servers that own them."""
        rng = np.random.default_rng([rank, clock])
        batches = []
        for spec in self.tables:
            ids = np.unique(rng.integers(0, IDS, 60, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
            batches.append((spec.name, ids, rng.standard_normal((ids.size, DIM), dtype=np.float32)))
        for shard, talk in enumerate(self.talks):
            parts = []
            for name, ids, gradients in batches:
                mine = self.shard_map.owners[buckets_of(table_salt(name), ids)] == shard
                parts.append(TableRows(name, ids[mine], gradients[mine]))
            talk.get(Push(self.fence(rank, clock), 1, tuple(parts)))

    def step(self, clock: int) -> None:
        """Let both ranks push and finish a step."""
        for rank in range(2):
            self.push(rank, clock)
        for rank in range(2):
            self.finish(rank, clock)

    def finish(self, rank: int, clock: int) -> None:
        for talk in self.talks:
            talk.finish(rank, clock, resume=b"rank %d after %d" % (rank, clock))

    def save(self, number: int, base: int = -1, boundary: int = -1) -> None:
        """Take, write and publish a checkpoint."""
        parts = []
        for shard, talk in enumerate(self.talks):
            state = talk.get(BeginCheckpoint(1, 0, number, ROOT, shard, boundary, base, True, False))
            assert isinstance(state, CheckpointState)
            assert state.phase == "taken"
            (work,) = [work for work in talk.at_work if isinstance(work.task, SavePart)]
            parts.append(self.do(talk, work))
        job = None if self.mode is None else JobState(1, 2, self.mode, 0, 0, ())
        self.run(
            publish(PublishCheckpoint(ROOT, number, base if base >= 0 else None, 7, tuple(parts), self.shard_map, self.tables, job, 0))
        )

    def go_back(self) -> list[Any]:
        """Load the newest checkpoint; return what came of it on each server."""
        found: FoundCheckpoint = self.run(find(FindCheckpoint((ROOT,))))
        assert found.source is not None
        self.timeline = found.timeline + 1
        self.shard_map = replace(self.shard_map, version=self.shard_map.version + 1)
        outcomes = []
        for talk in self.talks:
            talk.get(RollBack(1, 0, self.timeline, self.shard_map, found.tables, found.job, found.source))
            talk.follow(self.shard_map, self.timeline)
            (work,) = [work for work in talk.at_work if isinstance(work.task, LoadPart)]
            outcomes.append(self.do(talk, work))
        return outcomes

    def do(self, talk: Conversation, work: Work) -> Any:
        try:
            outcome = self.run(PROGRAMS[type(work.task)](work.task), talk)
        except CorruptFile as error:
            outcome = error
        talk.end(work, outcome)
        return outcome

    def run(self, program: Program[Any], talk: Conversation | None = None) -> Any:
        return run(program, lambda root: self.store, talk.get if talk is not None else None)  # type: ignore[arg-type]

    def records(self) -> dict[str, dict[int, bytes]]:
        """Return the bytes of every record, row and state, by table and id."""
        found: dict[str, dict[int, bytes]] = {}
        for talk in self.talks:
            for name, table in talk.shard.tables.items():
                snapshot, _ = table.begin_save(incremental=False, tracks=False)
                while (piece := snapshot.read(1_000)) is not None:
                    for key, record in zip(piece[0].tolist(), piece[1], strict=True):
                        assert key not in found.setdefault(name, {})
                        found[name][key] = record.tobytes()
        return found

    def names(self) -> Window:
        """Return the windows of all servers as one."""
        joined = Window()
        for talk in self.talks:
            saved = talk.shard.window.saved(talk.shard.membership.owned_buckets())
            for rank, row in zip(saved.ranks, saved.names, strict=True):
                owned = np.zeros(NUM_BUCKETS, np.uint64)
                owned[saved.buckets] = row
                joined.adopt({rank: owned})
        return joined


def names_in(servers: Servers) -> dict[int, bytes]:
    saved = servers.names().saved(np.arange(NUM_BUCKETS, dtype=np.int32))
    return {rank: row.tobytes() for rank, row in zip(saved.ranks, saved.names, strict=True)}


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (2, 3), (3, 1)])
def test_every_optimizer_and_dtype_comes_back_to_the_last_bit_and_goes_on_so(writers: int, readers: int) -> None:
    store = DictStore()
    servers = Servers(store, writers, EVERY, Async())
    for clock in range(3):
        servers.step(clock)
    servers.save(1)
    servers.step(3)
    cleared = EVERY[0].name
    for talk in servers.talks:
        talk.get(ClearTable(servers.fence(0, 4), 2, cleared))
    servers.step(4)
    servers.save(2, base=1)
    records, names = servers.records(), names_in(servers)
    others = Servers(store, readers, (), None, version=5)
    others.tables = EVERY
    outcomes = others.go_back()
    assert sum(outcomes) >= sum([len(rows) for rows in records.values()])
    assert others.records() == records
    assert names_in(others) == names
    for talk in others.talks:
        assert talk.shard.facts == {rank: Finished(4, resume=b"rank %d after 4" % rank) for rank in range(2)}
        assert talk.shard.clocks.finished == {0: 4, 1: 4}
    others.push(0, 4)  # a redone push, which the rows have already
    assert others.records() == records
    for trained in (servers, others):
        trained.step(5)
    assert others.records() == servers.records()


def test_an_increment_stands_on_the_checkpoint_that_was_loaded() -> None:
    store = DictStore()
    servers = Servers(store, 2, ONE, Async())
    for clock in range(3):
        servers.step(clock)
    servers.save(1)
    others = Servers(store, 3, (), None, version=5)
    others.tables, others.mode = ONE, Async()
    others.go_back()
    others.push(0, 3)
    others.save(2, base=1)
    written = sum([len(store.files[path]) for path in store.files if "checkpoint-0000000002" in path and "table" in path])
    assert written < 60 * (8 + 4 * 2 * DIM) + 3 * 200  # the rows of that push, and three headers
    records = others.records()
    third = Servers(store, 2, (), None, version=9)
    third.go_back()
    assert third.records() == records


def test_a_checkpoint_of_a_step_has_nothing_of_the_next_one_which_is_redone() -> None:
    store = DictStore()
    servers = Servers(store, 2, ONE, Sync())
    for clock in range(3):
        servers.step(clock)
    servers.push(0, 3)  # staged
    servers.save(1, boundary=3)
    records = servers.records()
    others = Servers(store, 1, (), None, version=5)
    others.tables = ONE
    others.go_back()
    assert others.records() == records
    (talk,) = others.talks
    assert talk.shard.step == 3
    servers.push(1, 3)
    for rank in range(2):
        servers.finish(rank, 3)
    others.step(3)
    assert others.records() == servers.records()
    assert others.records() != records


def test_training_goes_on_between_the_pieces_and_changes_nothing_of_what_is_saved() -> None:
    store = DictStore()
    servers = Servers(store, 1, ONE, Async())
    servers.step(0)
    (talk,) = servers.talks
    records = servers.records()
    talk.get(BeginCheckpoint(1, 0, 1, ROOT, 0, -1, -1, True, False))
    (work,) = talk.at_work
    clocks = iter(range(1, 1_000))

    def ask(body: Any) -> Any:
        servers.step(next(clocks))
        return talk.get(body)

    program = PROGRAMS[SavePart](work.task)
    talk.end(work, run(program, lambda root: store, ask))
    assert next(clocks) > 5, "it was asked between them"
    state = talk.get(BeginCheckpoint(1, 0, 1, ROOT, 0, -1, -1, True, False))
    assert isinstance(state, CheckpointState)
    assert state.part is not None
    job = JobState(1, 2, Async(), 0, 0, ())
    servers.run(publish(PublishCheckpoint(ROOT, 1, None, 7, (state.part,), servers.shard_map, ONE, job, 0)))
    assert servers.records() != records
    others = Servers(store, 2, (), None, version=5)
    others.go_back()
    assert others.records() == records


def test_a_server_that_cannot_load_says_which_file_and_serves_nobody() -> None:
    store = DictStore()
    servers = Servers(store, 1, ONE, Async())
    servers.step(0)
    servers.save(1)
    path = rows_of(1, 0, 0, 0)
    store.files[path] = store.files[path][:-1] + b"!"
    (outcome,) = servers.go_back()
    assert isinstance(outcome, CorruptFile)
    (talk,) = servers.talks
    state = talk.get(AskRestore(1, 0, servers.timeline))
    assert isinstance(state, RestoreState)
    assert (state.phase, state.rows) == ("failed", 0)
    assert path in state.why
    with pytest.raises(Recovering, match="could not load its rows"):
        talk.get(Pull(servers.fence(-1, 0), (TableIds("user", np.zeros(1, np.uint64)),), None, 1.0))


def test_a_worker_of_the_timeline_before_is_told_where_to_go_on() -> None:
    store = DictStore()
    servers = Servers(store, 1, ONE, Async())
    servers.step(0)
    servers.save(1)
    servers.step(1)
    old = servers.fence(0, 2)
    servers.go_back()
    with pytest.raises(RolledBack) as told:
        servers.talks[0].get(Pull(old, (TableIds("user", np.zeros(1, np.uint64)),), None, 1.0))
    assert (told.value.rank, told.value.clock, told.value.timeline) == (0, 1, 1)

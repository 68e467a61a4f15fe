"""Saves of a table, one on another, under any sequence of calls: what is read back is what the table held at the instant of the save."""

from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from naive.sharding import bucket_of
from naive.table import Held, NaiveTable
from ps_proto.values import SGD, Adagrad, Adam, Constant, Normal, TableSpec
from ps_server.shard.slot_snapshot import SlotSnapshot
from ps_server.shard.table import Table, TablePart
from sharding.hashing import NUM_BUCKETS

FEW_IDS = [0, 1, 2, 3, 2**63, 2**64 - 2, 2**64 - 1]
SPECS = [
    TableSpec("user", 3, optimizer=Adam(lr=0.1), initializer=Normal(), seed=5),
    TableSpec("item", 1, optimizer=SGD(lr=1.0), initializer=Constant(2.0)),
    TableSpec("item", 5, optimizer=Adagrad(lr=0.1), initializer=Normal(), dtype="bfloat16"),
]
id_lists = st.lists(st.sampled_from(FEW_IDS) | st.integers(0, 2**64 - 1), max_size=12)

Records = dict[int, bytes]  # of each id, as it lies in a slab


class Instant(NamedTuple):
    """What a table held, and how it lay in its slab."""

    held: Held
    records: Records


class Save(NamedTuple):
    """A save under way: what it stands on, what was read of it so far, what the table held, and which ids were another server's."""

    snapshot: SlotSnapshot
    is_full: bool
    base: Records
    read: Records
    instant: Instant
    away: frozenset[int]


class SavesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.slow_growth = patch("ps_server.shard.index.MOVED_MIN", 4)
        self.slow_growth.start()

    def teardown(self) -> None:
        for save in self.saves:
            self.end(save)
        self.slow_growth.stop()

    @initialize(spec=st.sampled_from(SPECS), seed=st.integers(0, 2**32 - 1))
    def start(self, spec: TableSpec, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.table, self.twin = Table(spec), NaiveTable(spec)
        self.away: list[tuple[TablePart, Held]] = []
        self.saves: list[Save] = []
        self.pending: Save | None = None
        self.committed = Instant({}, {})  # of the last complete save
        self.width = self.table.begin_save(incremental=False, tracks=False)[0].width
        self.next_id = 0
        self.update_many_new(100)
        self.save_at_once(incremental=False)  # most of what can go wrong needs a save to stand on

    def rows(self, num_rows: int) -> npt.NDArray[np.float32]:
        return self.rng.normal(size=(num_rows, self.twin.spec.dim)).astype(np.float32)

    def instant(self) -> Instant:
        held = self.twin.snapshot()
        return Instant(held, {id: record.tobytes() for id, record in zip(held, self.twin.stored(held), strict=True)})

    def ids_away(self) -> frozenset[int]:
        return frozenset(id for _, part in self.away for id in part)

    def here(self, ids: list[int]) -> list[int]:
        away = self.ids_away()
        return [id for id in ids if id not in away]

    def update_both(self, ids: list[int]) -> None:
        gradients, parameters = self.rows(len(ids)), self.twin.spec.optimizer.parameters()
        self.table.update(np.array(ids, dtype=np.uint64), gradients, parameters)
        self.twin.update(ids, gradients, parameters)

    @rule(ids=id_lists)
    def update(self, ids: list[int]) -> None:
        self.update_both(self.here(ids))

    @rule(num_ids=st.integers(30, 100))
    def update_many_new(self, num_ids: int) -> None:
        ids = list(range(self.next_id, self.next_id + num_ids))
        self.next_id += num_ids
        self.update_both(self.here(ids))

    @rule(ids=id_lists, only_absent=st.booleans())
    def assign(self, ids: list[int], only_absent: bool) -> None:
        ids = self.here(ids)
        rows = self.rows(len(ids))
        self.table.assign(np.array(ids, dtype=np.uint64), rows, only_absent)
        self.twin.assign(ids, rows, only_absent)

    @rule(ids=id_lists, share=st.floats(0, 0.6))
    def clear(self, ids: list[int], share: float) -> None:
        gone = self.buckets_of(ids, share)
        self.table.clear(gone)
        self.twin.extract(gone.tolist())

    @rule()
    def clear_all(self) -> None:
        self.table.clear_all()
        self.twin.extract([True] * NUM_BUCKETS)

    @rule(ids=id_lists, share=st.floats(0, 0.6))
    def extract(self, ids: list[int], share: float) -> None:
        leaving = self.buckets_of(ids, share)
        self.away.append((self.table.extract(leaving), self.twin.extract(leaving.tolist())))

    @precondition(lambda self: self.away)
    @rule()
    def adopt(self) -> None:
        part, held = self.away.pop()
        self.table.adopt(part)
        self.twin.adopt(held)

    def buckets_of(self, ids: list[int], share: float) -> npt.NDArray[np.bool_]:
        chosen = self.rng.random(NUM_BUCKETS) < share
        chosen[[bucket_of(self.twin.spec.name, id) for id in ids]] = True
        return chosen

    @rule(at=st.integers(0, 10), counts=st.booleans())
    def load_the_last_complete_save(self, at: int, counts: bool) -> None:
        """Over what is there, but for the rows that are not in it; saves under way go on."""
        surplus = np.zeros(NUM_BUCKETS, dtype=np.bool_)
        surplus[[bucket_of(self.twin.spec.name, id) for id in self.twin.held if id not in self.committed.records]] = True
        self.table.clear(surplus)
        ids = np.array(list(self.committed.records), dtype=np.uint64)
        records = np.frombuffer(b"".join(self.committed.records.values()), dtype=np.uint32).reshape(ids.size, self.width)
        for part in (slice(at), slice(at, None)):
            self.table.load(ids[part], records[part], expected=ids[part].size)
        self.twin.held = dict(self.committed.held)
        self.away = []
        if counts:
            self.table.count_as_saved()
            self.pending = None

    @rule(incremental=st.booleans())
    def save_at_once(self, incremental: bool) -> None:
        self.begin_save(incremental, tracks=True)
        save = self.saves.pop()
        self.end(save)
        self.settle(save, is_committed=True)

    @rule(incremental=st.booleans(), tracks=st.booleans())
    def begin_save(self, incremental: bool, tracks: bool) -> None:
        snapshot, is_full = self.table.begin_save(incremental, tracks)
        assert is_full or (incremental and tracks)
        self.saves.append(Save(snapshot, is_full, self.committed.records, {}, self.instant(), self.ids_away()))
        if tracks:
            self.pending = self.saves[-1]

    @precondition(lambda self: self.saves)
    @rule(data=st.data(), bytes_max=st.integers(1, 1_000))
    def read_piece(self, data: st.DataObject, bytes_max: int) -> None:
        self.read(data.draw(st.sampled_from(self.saves)), bytes_max)

    def read(self, save: Save, bytes_max: int) -> bool:
        """Read the next piece; return whether there was one."""
        piece = save.snapshot.read(bytes_max)
        if piece is None:
            return False
        ids, records = piece
        assert ids.size == 1 or ids.size * 8 + records.nbytes <= bytes_max
        assert not save.read.keys() & set(ids.tolist())
        save.read.update({id: record.tobytes() for id, record in zip(ids.tolist(), records, strict=True)})
        return True

    @precondition(lambda self: self.saves)
    @rule(data=st.data(), is_committed=st.booleans())
    def end_save(self, data: st.DataObject, is_committed: bool) -> None:
        save = self.saves.pop(data.draw(st.integers(0, len(self.saves) - 1)))
        self.end(save)
        self.settle(save, is_committed)

    def settle(self, save: Save, is_committed: bool) -> None:
        if self.pending is save:
            self.table.settle_save(is_committed)
            self.pending = None
            if is_committed:
                self.committed = save.instant

    def end(self, save: Save) -> None:
        """Read the rest. What a restore gives are the rows of the base, unless the save is full, and over them those of the save."""
        while self.read(save, 500):
            pass
        base = {} if save.is_full else save.base
        assert {id: record for id, record in base.items() if id not in save.away} | save.read == save.instant.records


TestSaves = SavesMachine.TestCase
TestSaves.settings = settings(settings(), max_examples=60, stateful_step_count=25)

"""A table against a dict under any sequence of calls, snapshots and moves of buckets included."""

from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from naive.sharding import bucket_of
from naive.table import Held, NaiveTable, Row
from ps_proto.values import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    ClippedByRowNorm,
    ClippedByValue,
    Constant,
    DecoupledWeightDecay,
    Lion,
    Normal,
    RMSprop,
    RowWiseAdagrad,
    TableSpec,
    Uniform,
    Zeros,
)
from ps_server.shard.optimizers.optimizer import Origin
from ps_server.shard.snapshot import Snapshot
from ps_server.shard.table import Places, Table, TablePart
from sharding.hashing import NUM_BUCKETS

FEW_IDS = [0, 1, 2, 3, 2**63, 2**64 - 2, 2**64 - 1]
SPECS = [
    TableSpec("user", 3, optimizer=Adam(lr=0.1), initializer=Normal(), seed=5),
    TableSpec("user", 1, optimizer=Adagrad(lr=0.5, initial_accumulator_value=0.25), initializer=Uniform(-1.0, 1.0)),
    TableSpec("item", 2, optimizer=SGD(lr=1.0), initializer=Constant(2.0)),
    TableSpec("item", 17, optimizer=Adam(lr=0.1, betas=(0.4, 0.9)), initializer=Zeros()),
    TableSpec("user", 9, optimizer=SGD(lr=0.1), initializer=Normal(), max_norm=1.5),
    TableSpec("user", 3, optimizer=Adam(lr=0.1), initializer=Normal(), seed=2**64 - 1, dtype="bfloat16"),
    TableSpec("item", 4, optimizer=Adagrad(lr=0.1), initializer=Uniform(-1.0, 1.0), dtype="bfloat16", max_norm=0.7),
    TableSpec("item", 1, optimizer=SGD(lr=0.1), initializer=Constant(0.3), seed=3, dtype="bfloat16"),
    TableSpec("user", 2, optimizer=SGD(lr=0.1, momentum=0.5, dampening=0.2), initializer=Normal()),
    TableSpec("user", 9, optimizer=RowWiseAdagrad(lr=0.1, weight_decay=0.1), initializer=Normal()),
    TableSpec("item", 3, optimizer=RMSprop(centered=True, momentum=0.5), initializer=Zeros()),
    TableSpec("item", 2, optimizer=AdamW(amsgrad=True), initializer=Normal(), dtype="bfloat16"),
    TableSpec("user", 5, optimizer=FTRL(lr=0.5, l1=1.0), initializer=Uniform(-0.1, 0.1)),
    TableSpec("user", 1, optimizer=Lion(lr=0.1), initializer=Normal(), dtype="bfloat16", max_norm=0.7),
    TableSpec("item", 3, optimizer=ClippedByValue(DecoupledWeightDecay(Adagrad(lr=0.1)), 0.5), initializer=Normal()),
    TableSpec("item", 3, optimizer=DecoupledWeightDecay(ClippedByRowNorm(SGD(lr=0.1))), initializer=Normal(), dtype="bfloat16"),
]
id_lists = st.lists(st.sampled_from(FEW_IDS) | st.integers(0, 2**64 - 1), max_size=12)


class TableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Few entries at a time, so that small tables too are found in the middle of growing.
        self.slow_growth = patch("ps_server.shard.index.MOVED_MIN", 4)
        self.slow_growth.start()
        self.small_blocks = patch("ps_server.shard.blocks.ROWS_MAX", 4)
        self.small_blocks.start()

    def teardown(self) -> None:
        self.slow_growth.stop()
        self.small_blocks.stop()

    @initialize(spec=st.sampled_from(SPECS), seed=st.integers(0, 2**32 - 1))
    def start(self, spec: TableSpec, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.table, self.twin = Table(spec), NaiveTable(spec)
        self.snapshots: list[tuple[Snapshot, Held]] = []
        self.parts: list[tuple[TablePart, Held]] = []
        self.pulled: list[tuple[list[int], Places]] = []
        self.next_id = 0

    def rows(self, num_rows: int) -> npt.NDArray[np.float32]:
        return self.rng.normal(size=(num_rows, self.twin.spec.dim)).astype(np.float32)

    def away(self) -> set[int]:
        """Ids whose rows are on their way: their buckets are no longer this server's."""
        return {id for _, part in self.parts for id in part}

    def update_both(self, ids: list[int], places: Places | None = None) -> None:
        gradients, parameters = self.rows(len(ids)), self.twin.spec.optimizer.parameters()
        step, rank = int(self.rng.integers(0, 2**63)), int(self.rng.integers(-1, 4))
        self.table.update(np.array(ids, dtype=np.uint64), gradients, parameters, Origin(step, rank), places)
        self.twin.update(ids, gradients, parameters, step, rank)

    @rule(ids=id_lists)
    def update(self, ids: list[int]) -> None:
        self.update_both([id for id in ids if id not in self.away()])

    @rule(num_ids=st.integers(30, 400))
    def update_many_new(self, num_ids: int) -> None:
        ids = [id for id in range(self.next_id, self.next_id + num_ids) if id not in self.away()]
        self.next_id += num_ids
        self.update_both(ids)

    @rule(ids=id_lists, only_absent=st.booleans())
    def assign(self, ids: list[int], only_absent: bool) -> None:
        ids = [id for id in ids if id not in self.away()]
        rows = self.rows(len(ids))
        self.table.assign(np.array(ids, dtype=np.uint64), rows, only_absent)
        self.twin.assign(ids, rows, only_absent)

    @rule()
    def restore_what_is_there(self) -> None:
        """Nothing changes by it, to the last bit."""
        ids, records = self.table.snapshot().read_records(0, len(self.twin.held))
        self.table.restore(ids, records)

    @rule(ids=id_lists)
    def pull(self, ids: list[int]) -> None:
        assert_same(self.table.pull(np.array(ids, dtype=np.uint64)), self.twin.pull(ids))
        assert self.table.count_absent(np.array(ids, dtype=np.uint64)) == sum(id not in self.twin.held for id in ids)

    @rule(ids=id_lists, num_new=st.integers(0, 60))
    def pull_with_places(self, ids: list[int], num_new: int) -> None:
        """Of some ids that have rows and some that are about to get them."""
        ids = [*ids, *range(self.next_id, self.next_id + num_new)]
        rows, places = self.table.pull_with_places(np.array(ids, dtype=np.uint64))
        assert_same(rows, self.twin.pull(ids))
        self.pulled.append((ids, places))

    @precondition(lambda self: self.pulled)
    @rule(data=st.data())
    def update_at_places(self, data: st.DataObject) -> None:
        """However long ago they were pulled, and whatever has come and gone since: some of the ids, at the places of then."""
        ids, places = data.draw(st.sampled_from(self.pulled))
        chosen = np.array([id not in self.away() and self.rng.random() < 0.9 for id in ids], dtype=np.bool_)
        some = [id for id, is_chosen in zip(ids, chosen, strict=True) if is_chosen]
        absent = sum(id not in self.twin.held for id in some)
        assert self.table.count_absent(np.array(some, dtype=np.uint64), places.of(chosen)) == absent
        self.update_both(some, places.of(chosen))

    @rule(ids=id_lists)
    def clear(self, ids: list[int]) -> None:
        gone = np.zeros(NUM_BUCKETS, dtype=np.bool_)
        gone[[bucket_of(self.twin.spec.name, id) for id in ids]] = True
        self.table.clear(gone)
        self.twin.extract(gone.tolist())

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.table.snapshot(), self.twin.snapshot()))

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data(), closes=st.booleans())
    def end_snapshot(self, data: st.DataObject, closes: bool) -> None:
        at = data.draw(st.integers(0, len(self.snapshots) - 1))
        snapshot, _ = self.snapshots.pop(at)
        if closes:
            snapshot.close()

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def read_part(self, data: st.DataObject) -> None:
        snapshot, held = data.draw(st.sampled_from(self.snapshots))
        begin = data.draw(st.integers(0, len(held)))
        end = data.draw(st.integers(begin, len(held)))
        ids, rows = snapshot.read(begin, end)
        assert ids.tolist() == list(held)[begin:end]
        assert_same(rows, [held[id][0] for id in ids.tolist()])

    @rule(ids=id_lists, share=st.floats(0, 0.6))
    def extract(self, ids: list[int], share: float) -> None:
        owned_out = self.rng.random(NUM_BUCKETS) < share
        owned_out[[bucket_of(self.twin.spec.name, id) for id in ids]] = True
        part, held = self.table.extract(owned_out), self.twin.extract(owned_out.tolist())
        assert part.ids.tolist() == list(held)
        assert_same(part.records, self.twin.stored(held))
        self.parts.append((part, held))

    @precondition(lambda self: self.parts)
    @rule()
    def adopt(self) -> None:
        part, held = self.parts.pop()
        self.table.adopt(part)
        self.twin.adopt(held)

    @invariant()
    def every_snapshot_is_as_it_was(self) -> None:
        for snapshot, held in [*self.snapshots, (self.table.snapshot(), self.twin.snapshot())]:
            ids, records = snapshot.read_records(0, len(held) + 1)
            assert ids.tolist() == list(held)
            assert_same(records, self.twin.records(held))

    @invariant()
    def it_counts_its_rows(self) -> None:
        assert len(self.table) == len(self.twin.held)


def assert_same(got: npt.NDArray[Any], want: list[Row]) -> None:
    assert got.shape[0] == len(want)
    assert got.tobytes() == b"".join(row.tobytes() for row in want)


TestTable = TableMachine.TestCase
TestTable.settings = settings(settings(), max_examples=30, stateful_step_count=25)

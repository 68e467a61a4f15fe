"""What ranks have read, as delay compensation and staleness scaling see it."""

import numpy as np
import pytest

from conversation import Conversation, ids, rows
from ps_proto.requests import Assign, Fence, Pull, Pulled, Push, TableRows
from ps_proto.values import SGD, Async, BoundedStaleness, DelayCompensated, Optimizer, StalenessScaled, Sync, TableSpec
from ps_server.shard.counters import Counters
from ps_server.shard.read_rows import READS_MAX, ReadRows
from ps_server.shard.table import Table
from sharding.wire_rows import decode_rows, encode_rows

COMPENSATED = TableSpec("user", 1, DelayCompensated(SGD(lr=1.0), compensation=0.5))
SCALED = TableSpec("user", 1, StalenessScaled(SGD(lr=8.0)))


def talk_of(spec: TableSpec, world_size: int = 2) -> Conversation:
    return Conversation(Async(), world_size, tables=(spec,))


def unread(talk: Conversation) -> float:
    return talk.stats().tables["user"]["rows_unread"]


def test_a_late_gradient_is_compensated_for_what_others_pushed() -> None:
    talk = talk_of(COMPENSATED)
    assert talk.pull(0, 0, 7).rows == [0.0]
    assert talk.pull(1, 0, 7).rows == [0.0]
    talk.push(1, 0, {7: 4.0})  # w = 0 - 4: nothing has moved since rank 1 read
    assert talk.read(7) == [-4.0]
    talk.push(0, 0, {7: 2.0})  # g = 2 + 0.5 · 2 · 2 · (-4 - 0) = -6
    assert talk.read(7) == [2.0]
    assert unread(talk) == 0


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_a_gradient_is_compensated_from_the_row_as_the_rank_read_it(wire: str) -> None:
    talk = talk_of(TableSpec("user", 2, DelayCompensated(SGD(lr=1.0), compensation=0.5), wire=wire))
    key, row = np.array([7], np.uint64), np.array([[100.0, 33.3]], np.float32)
    gradient = np.array([[127.0, 2.0]], np.float32)  # both wires have it
    talk.get(Assign(talk.fence(0), 1, (TableRows("user", key, row),)))
    pulled = talk.get(Pull(talk.fence(0), (ids("user", 7),)))
    assert isinstance(pulled, Pulled)
    read = decode_rows(pulled.rows[0])
    assert read[0, 1] != row[0, 1]
    talk.get(Push(talk.fence(0), 2, (TableRows("user", key, encode_rows(gradient, wire)),)))
    moved = row[0, 1] - read[0, 1]
    _, held = talk.shard.catalog.tables["user"].snapshot().read(0, 1)
    compensated = 2.0 + 0.5 * 2.0 * 2.0 * moved  # g + compensation · g² · (w - w as it was read)
    assert held[0, 1] == pytest.approx(row[0, 1] - compensated, rel=1e-6)


def test_each_id_is_compensated_by_its_own_row() -> None:
    talk = talk_of(COMPENSATED)
    talk.push(1, 0, {1: -1.0, 2: -2.0, 3: -3.0})
    assert unread(talk) == 3  # rank 1 had not pulled
    assert talk.pull(0, 0, 3, 1, 2).rows == [3.0, 1.0, 2.0]
    talk.push(1, 0, {2: 10.0}, seq=2)
    talk.push(0, 0, {9: 2.0, 1: 2.0, 2: 2.0})  # 2: 2 + 0.5 · 4 · (-8 - 2); 1: as it was read; 9: not read
    assert talk.read(1, 2, 3, 9) == [1.0 - 2.0, -8.0 + 18.0, 3.0, -2.0]
    assert unread(talk) == 5


def test_a_push_without_a_pull_for_its_step_is_taken_as_it_is() -> None:
    talk = talk_of(COMPENSATED)
    talk.pull(0, 0, 7)
    talk.finish(0, 0)
    talk.push(1, 0, {7: 4.0})
    talk.push(0, 1, {7: 2.0})
    assert talk.read(7) == [-6.0]
    assert unread(talk) == 2


def test_rows_that_were_read_ahead_count_for_the_step_that_they_are_for() -> None:
    talk = talk_of(COMPENSATED)
    talk.pull(0, 0, 7)
    talk.pull(0, 1, 7)  # prefetched: it reads 0, and does not see the push of step 0
    talk.push(0, 0, {7: 2.0})
    talk.finish(0, 0)
    talk.push(0, 1, {7: 2.0})  # 2 + 0.5 · 4 · (-2 - 0)
    assert talk.read(7) == [0.0]


def test_of_two_pulls_for_a_step_the_later_counts_for_what_both_read() -> None:
    talk = talk_of(COMPENSATED)
    talk.pull(0, 0, 7, 8)
    talk.push(1, 0, {7: 4.0, 8: 4.0})
    talk.pull(0, 0, 7)
    talk.push(0, 0, {7: 2.0, 8: 2.0})  # 7 was read as -4, 8 as 0
    assert talk.read(7, 8) == [-6.0, -4.0 - (2.0 - 8.0)]


def test_a_push_that_is_said_again_is_neither_applied_nor_counted_again() -> None:
    talk = talk_of(SCALED)
    talk.pull(0, 0, 7)
    for _ in range(3):
        talk.push(1, 0, {7: 0.0})
    talk.push(1, 0, {7: 0.0}, seq=2)
    talk.push(0, 0, {7: 1.0})  # two pushes in between: 8 / 2
    assert talk.read(7) == [-4.0]


def test_staleness_is_what_the_table_took_between_the_pull_and_the_push() -> None:
    talk = talk_of(SCALED)
    talk.push(0, 0, {7: 1.0})  # without a pull: staleness 0
    assert talk.read(7) == [-8.0]
    assert unread(talk) == 1
    talk.pull(0, 0, 7)
    talk.push(0, 0, {7: 1.0}, seq=2)
    assert talk.read(7) == [-16.0]
    for seq in range(1, 5):
        talk.push(1, 0, {8: 1.0}, seq=seq)  # other ids count too
    talk.push(0, 0, {7: 1.0}, seq=3)  # 5 others, its own second one among them
    assert talk.read(7) == [np.float32(-16.0 - 8.0 / 5.0)]
    assert unread(talk) == 1 + 4


def test_both_decorators_work_together_and_on_other_tables_nothing_is_kept() -> None:
    both = TableSpec("user", 1, StalenessScaled(DelayCompensated(SGD(lr=8.0), compensation=0.5)))
    talk = Conversation(Async(), 2, tables=(both, TableSpec("item", 1)))
    reads = talk.shard.steps.reads
    talk.pull(0, 0, 7, table="item")
    assert reads.nbytes == 0
    talk.pull(0, 0, 7)
    assert reads.nbytes > 0
    talk.push(1, 0, {7: 0.5})
    talk.push(1, 0, {7: 0.0}, seq=2)
    talk.push(0, 0, {7: 2.0})  # 2 + 0.5 · 4 · (-4 - 0) = -6, with lr 8 / 2
    assert talk.read(7) == [-4.0 + 24.0]


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1), Sync()])
def test_what_was_read_is_kept_until_the_step_is_finished(mode: Async | BoundedStaleness | Sync) -> None:
    talk = Conversation(mode, 2, tables=(COMPENSATED,))
    reads = talk.shard.steps.reads
    talk.pull(0, 0, 7)
    one = reads.nbytes
    assert (one > 0) == (mode != Sync())  # in synchronous mode nothing moves in between
    if mode != Sync():
        talk.pull(0, 1, 7, 8)
        talk.finish(0, 0)
        assert one < reads.nbytes < 2 * one
    talk.finish(0, 0 if mode == Sync() else 1, leave=True)
    assert reads.nbytes == 0


def test_in_synchronous_mode_the_decorators_change_nothing() -> None:
    for spec, w in ((COMPENSATED, -1.0), (SCALED, -8.0)):
        talk = Conversation(Sync(), 2, tables=(spec,))
        talk.pull(0, 0, 7)
        talk.push(0, 0, {7: 1.0})
        talk.push(1, 0, {7: 1.0})
        talk.finish(0, 0)
        talk.finish(1, 0)
        assert talk.read(7) == [w]
        assert unread(talk) == 0


def test_an_observer_leaves_no_trace() -> None:
    talk = talk_of(COMPENSATED)
    talk.read(7)
    assert talk.shard.steps.reads.nbytes == 0


def test_a_new_incarnation_and_a_new_job_begin_without_what_was_read() -> None:
    talk = talk_of(COMPENSATED)
    reads = talk.shard.steps.reads
    talk.pull(0, 0, 7)
    talk.pull(1, 0, 7)
    both = reads.nbytes
    talk.shard.steps.settle(0, None, start=0, has_left=False)
    assert reads.nbytes == both / 2
    talk.shard.steps.start(2, world_size=2, first_clock=5, backup_workers=0)
    assert reads.nbytes == 0


def make_table(optimizer: Optimizer) -> Table:
    return Table(TableSpec("user", 4, optimizer), rows_max=100)


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    table, counters = make_table(COMPENSATED.optimizer), Counters()
    reads = ReadRows(counters, bytes_max=3000)  # an entry of ten rows takes 512 + 10 · (8 + 16)
    for clock in range(10):
        wanted = np.arange(10, dtype=np.uint64) + np.uint64(clock)
        reads.keep(table, Fence(1, 0, 1, clock), wanted, np.full((10, 4), clock, dtype=np.float32))
        assert reads.nbytes <= 3000
    assert reads.nbytes == 3 * 752
    origins = [reads.origin(table, Fence(1, 0, 1, clock), 1, np.array([clock], np.uint64)) for clock in range(10)]
    assert [origin.read is not None for origin in origins] == [False] * 7 + [True] * 3
    assert counters.table("user").rows_unread == 7
    assert origins[9].staleness == 9  # the count of pushes goes on
    reads.keep(table, Fence(1, 1, 1, 0), np.arange(200, dtype=np.uint64), np.zeros((200, 4), dtype=np.float32))  # more than all of it
    assert reads.nbytes == 3 * 752


def test_what_is_kept_are_the_arrays_that_were_answered() -> None:
    talk = talk_of(COMPENSATED)
    question = talk.ask(Pull(talk.fence(0, 0), (ids("user", 7, 8),)))
    assert isinstance(question.answer, Pulled)
    origin = talk.shard.steps.reads.origin(talk.shard.tables["user"], talk.fence(0, 0), 1, np.array([8, 9, 7, 8], np.uint64))
    assert origin.read is not None
    assert origin.places is not None
    assert np.shares_memory(origin.read, question.answer.rows[0])
    assert origin.places.tolist() == [1, -1, 0, 1]
    assert (origin.step, origin.rank) == (1, 0)


def test_a_repeat_in_a_pull_is_found_where_it_came_first() -> None:
    reads, table = ReadRows(Counters()), make_table(COMPENSATED.optimizer)
    reads.keep(table, Fence(1, 0, 1, 0), np.array([5, 6, 5, 7], np.uint64), np.zeros((4, 4), np.float32))
    origin = reads.origin(table, Fence(1, 0, 1, 0), 1, np.array([7, 5, 6, 5], np.uint64))
    assert origin.places is not None
    assert origin.places.tolist() == [3, 0, 1, 0]


def test_a_push_of_no_rows_is_no_update() -> None:
    talk = talk_of(SCALED)
    talk.pull(0, 0, 7)
    talk.get(Push(talk.fence(1, 0), 1, (rows("user", {}),)))
    talk.push(0, 0, {7: 1.0})
    assert talk.read(7) == [-8.0]


def test_a_rank_that_never_ends_its_step_keeps_no_more_than_the_last_answers() -> None:
    reads, table = ReadRows(Counters()), Table(COMPENSATED)
    fence = Fence(1, rank=0, incarnation=1)
    for value in range(READS_MAX + 3):
        reads.keep(table, fence, np.array([value], np.uint64), np.full((1, 1), value, np.float32))
    size = reads.nbytes
    origin = reads.origin(table, fence, 1, np.array([0, 2, 3, READS_MAX + 2], np.uint64))
    assert origin.places is not None
    assert origin.read is not None
    assert (origin.places >= 0).tolist() == [False, False, True, True]
    assert [float(origin.read[place, 0]) for place in origin.places[2:]] == [3.0, READS_MAX + 2.0]
    reads.keep(table, fence, np.array([7], np.uint64), np.full((1, 1), 7, np.float32))
    assert reads.nbytes == size

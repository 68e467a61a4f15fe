"""A server's part of a checkpoint: at which instant it is taken, what is in it, and on what an increment stands."""

import numpy as np
import pytest

from conversation import ITEM, USER, Conversation, ids, map_of, settled
from ps_proto.errors import InvalidRequest, OptimizerFailed, Recovering, StaleOrder, StorageFailed
from ps_proto.orders import (
    AdmitRank,
    AskCheckpoint,
    BeginCheckpoint,
    CancelCheckpoint,
    CheckpointState,
    FenceRank,
    InstallTable,
    JobState,
    ResolveRank,
    RollBack,
    StartJob,
)
from ps_proto.requests import NEVER, OBSERVER, ClearTable, Finished, Pull
from ps_proto.values import SGD, Adagrad, Async, BoundedStaleness, Sync, TableSpec
from ps_server.events import Asked, Refuse
from ps_server.shard import slot_snapshot
from ps_server.shard.shard import Shard
from ps_server.shard.slab import Slab
from ps_server.tasks import OpenPart, ReadPiece, SavePart
from saved_parts import ROOT, Records, ask, begin, cancel, open_part, pieces, read_part, records_of, save, work_of, written

FULL_DISK = StorageFailed(ROOT, "no space left on device")


def words(values: dict[int, float]) -> Records:
    """Return the records of rows of dim 1 without state."""
    return {id: (int(np.float32(value).view(np.uint32)),) for id, value in values.items()}


# --- the instant -------------------------------------------------------------------------------------------------------------


def test_a_part_without_a_boundary_is_taken_in_the_turn_of_its_order() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0, 8: 2.0})
    talk.finish(0, 0, resume=b"state")
    assert begin(talk, 12) == CheckpointState(12, "taken", 0, OBSERVER)
    work = work_of(talk)
    assert work.task == SavePart(ROOT, 12, 3, "server-0")
    talk.push(0, 1, {7: 1.0, 9: 1.0})
    talk.finish(0, 1)
    part = read_part(talk, work)
    assert part.rows == {"user": words({7: -1.0, 8: -2.0})}
    assert (part.head.step, part.head.job, part.head.timeline, part.head.map_version, part.head.incarnation) == (0, 1, 0, 1, 1)
    assert (part.head.clocks, part.head.left) == ({0: 0, 1: NEVER}, {})
    assert part.head.facts == {0: Finished(0, resume=b"state")}
    assert [(head.spec, head.is_full, head.row_words, head.columns) for head in part.head.tables] == [(USER, True, 1, ())]
    assert part.head.counters["user"]["rows_pushed"] == 2.0
    talk.end(work, written(part))
    assert ask(talk, 12) == CheckpointState(12, "written", 0, OBSERVER, written(part))


@pytest.mark.parametrize("boundary", [2, 3])
def test_a_part_with_a_boundary_is_taken_after_the_fold_that_leads_to_it(boundary: int) -> None:
    talk = Conversation(Sync(), first_clock=1)
    assert begin(talk, 1, boundary) == CheckpointState(1, "armed", 1, 0)
    talk.finish(0, 1)
    assert ask(talk, 1) == CheckpointState(1, "armed", 1, 1), "it waits for rank 1"
    for step in range(1, boundary):
        assert not talk.at_work
        talk.push(0, step, {7: 2.0})
        talk.push(1, step, {7: 2.0})
        talk.finish(0, step)
        talk.finish(1, step)
    assert ask(talk, 1).phase == "taken"
    part = read_part(talk, work_of(talk))
    assert part.head.step == boundary
    assert part.rows == {"user": words({7: -2.0 * (boundary - 1)})}
    assert part.head.clocks == {0: boundary - 1, 1: boundary - 1}


def test_a_boundary_that_is_the_step_at_work_is_now() -> None:
    talk = Conversation(Sync(), first_clock=4)
    assert begin(talk, 1, 4).phase == "taken"


def test_a_boundary_that_is_behind_is_passed_and_takes_nothing() -> None:
    talk = Conversation(Sync(), first_clock=4)
    assert begin(talk, 1, 3) == CheckpointState(1, "passed", 4, OBSERVER)
    assert not talk.at_work
    cancel(talk, 1)
    assert begin(talk, 1, 5).phase == "armed", "the same number again"


def test_a_boundary_in_the_middle_of_a_turn_is_met() -> None:
    """A decision that comes late brings several folds in one turn; the part is of the step between them."""
    talk = Conversation(Sync(), world_size=2)
    for step in range(3):
        talk.push(0, step, {7: 1.0})
        talk.push(1, step, {7: 1.0}) if step == 0 else None
        talk.finish(0, step)
    begin(talk, 1, 2)
    talk.get(FenceRank(1, 1, 1))
    talk.get(ResolveRank(1, 1, 1, Finished(2), 3))  # steps 0, 1 and 2 are folded in this turn
    assert talk.step() == 3
    part = read_part(talk, work_of(talk))
    assert (part.head.step, part.head.clocks) == (2, {0: 1, 1: 1})
    assert part.rows == {"user": words({7: -1.5})}
    assert talk.read(7) == [-2.0]


def test_a_rank_that_is_ahead_resumes_at_the_boundary_with_the_state_of_exactly_that_step() -> None:
    talk = Conversation(Sync(), world_size=3)
    for rank in (0, 1, 2):
        talk.finish(rank, 0, resume=b"%d at 0" % rank)
    begin(talk, 1, 2)
    talk.finish(0, 1, resume=b"0 at 1")
    talk.finish(0, 2, resume=b"0 at 2")
    talk.finish(1, 1, resume=b"1 at 1", leave=True)
    talk.push(0, 3, {7: 5.0})
    talk.finish(2, 1, resume=b"2 at 1")
    head = open_part(talk, 1)
    assert head.clocks == {0: 1, 1: 1, 2: 1}
    assert head.left == {1: 1}
    assert {rank: fact.resume for rank, fact in head.facts.items()} == {0: b"0 at 1", 1: b"1 at 1", 2: b"2 at 1"}


def test_a_rank_that_left_after_the_boundary_is_still_there() -> None:
    talk = Conversation(Sync(), world_size=2)
    talk.finish(0, 0, resume=b"0 at 0")
    talk.finish(0, 1, leave=True)
    begin(talk, 1, 1)
    talk.finish(1, 0)
    head = open_part(talk, 1)
    assert (head.clocks, head.left) == ({0: 0, 1: 0}, {})
    assert head.facts[0].resume == b"0 at 0"


def test_where_no_table_is_synchronous_each_rank_resumes_where_it_is() -> None:
    talk = Conversation(BoundedStaleness(3), world_size=3)
    for clock in (0, 1, 2):
        talk.finish(0, clock, resume=b"%d" % clock)
    talk.finish(1, 0, leave=True)
    talk.get(FenceRank(1, 2, 1))
    talk.get(ResolveRank(1, 2, 1, None, 2))  # it begins above what was applied, and has said nothing
    assert begin(talk, 1, 3).phase == "armed"
    cancel(talk, 1)
    begin(talk, 1)
    head = open_part(talk, 1)
    assert (head.step, head.clocks, head.left) == (2, {0: 2, 1: 0, 2: 1}, {1: 0})
    assert head.facts == {0: Finished(2, resume=b"2"), 1: Finished(0)}


def test_a_part_says_since_when_it_has_who_joined_a_running_job() -> None:
    talk = Conversation(Async())
    talk.get(AdmitRank(1, 0, 2, 1, 3))
    begin(talk, 12)
    head = read_part(talk, work_of(talk)).head
    assert (head.clocks, head.since) == ({0: NEVER, 1: NEVER, 2: 2}, {2: 3})


def test_a_schedule_of_a_job_without_synchronous_tables_waits_for_the_least_clock() -> None:
    talk = Conversation(Async())
    begin(talk, 1, 2)
    for clock in (0, 1, 2):
        talk.finish(0, clock)
    talk.finish(1, 0)
    assert ask(talk, 1) == CheckpointState(1, "armed", 1, 1)
    talk.finish(1, 1)
    assert open_part(talk, 1).clocks == {0: 2, 1: 1}


def test_a_part_has_the_names_of_the_pushes_that_its_rows_have() -> None:
    talk = Conversation(Async(), world_size=2, shard_map=map_of(1, "server-0", "server-1", all_to="server-0"))
    talk.push(0, 0, {7: 1.0}, seq=1)
    talk.push(1, 0, {8: 1.0}, seq=2)
    begin(talk, 1)
    talk.push(0, 0, {7: 1.0}, seq=3)
    names = open_part(talk, 1).names
    assert names.ranks == (0, 1)
    assert names.buckets.size == 16384
    assert sorted(set(names.names[0].tolist())) == [0, 1]
    assert sorted(set(names.names[1].tolist())) == [0, 2]


def test_what_is_staged_is_in_no_part() -> None:
    talk = Conversation(Sync(), world_size=1)
    talk.push(0, 0, {7: 1.0})
    begin(talk, 1)
    assert read_part(talk, work_of(talk)).rows == {"user": {}}


def test_a_part_can_be_taken_before_the_first_job_and_without_tables() -> None:
    talk = Conversation(None, tables=())
    begin(talk, 1)
    head = open_part(talk, 1)
    assert (head.job, head.step, head.clocks, head.facts, head.tables) == (0, 0, {}, {}, ())


def test_every_piece_has_the_rows_of_the_instant_while_pushes_go_on() -> None:
    talk = Conversation(Async(), tables=(USER, ITEM))
    talk.push(0, 0, {id: 1.0 for id in range(10)}, seq=1)
    begin(talk, 1)
    read: Records = {}
    for count, piece in enumerate(pieces(talk, 1, 0)):
        read |= records_of(piece)
        talk.push(0, 0, {id: 1.0 for id in range(5 + count, 12 + count)}, seq=2 + count)
    assert read == words({id: -1.0 for id in range(10)})
    assert list(pieces(talk, 1, 1)) == []
    with pytest.raises(InvalidRequest, match="table is 2, but must be from 0 to 1"):
        talk.get(ReadPiece(1, 2, 100))


def test_a_record_has_its_state() -> None:
    spec = TableSpec("user", 2, Adagrad(0.1))
    talk = Conversation(Async(), tables=(spec,))
    talk.shard.tables["user"].assign(np.array([7], np.uint64), np.ones((1, 2), np.float32))
    begin(talk, 1)
    (head,) = open_part(talk, 1).tables
    assert (head.row_words, [column.name for column in head.columns]) == (4, ["sum_of_squares"])


# --- orders ------------------------------------------------------------------------------------------------------------------


def test_an_order_that_is_given_again_changes_nothing() -> None:
    talk = Conversation(Async())
    begin(talk, 1)
    work = work_of(talk)
    assert begin(talk, 1).phase == "taken"
    assert talk.at_work == [work]
    talk.end(work, written(read_part(talk, work)))
    assert begin(talk, 1).phase == "written"
    assert not talk.at_work


def test_the_boundary_of_one_that_is_armed_can_be_moved_but_not_of_one_that_was_taken() -> None:
    talk = Conversation(Sync(), first_clock=2)
    begin(talk, 1, 5)
    assert begin(talk, 1, 1).phase == "passed"
    assert begin(talk, 1, 2).phase == "taken"
    assert begin(talk, 1, 5).phase == "taken"


def test_of_another_number_nothing_is_known() -> None:
    talk = Conversation(Sync(), first_clock=2)
    assert ask(talk, 1) == CheckpointState(1, "none", 2, OBSERVER)
    begin(talk, 1, 5)
    assert ask(talk, 2) == CheckpointState(2, "none", 2, OBSERVER)
    cancel(talk, 2)
    assert ask(talk, 1).phase == "armed"
    cancel(talk, 1)
    cancel(talk, 1)
    assert ask(talk, 1) == CheckpointState(1, "none", 2, OBSERVER)


def test_the_next_order_ends_the_one_before_it() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0})
    begin(talk, 1)
    late = work_of(talk)
    begin(talk, 2)
    with pytest.raises(InvalidRequest, match="checkpoint is 1, whose part is over"):
        talk.get(OpenPart(1))
    with pytest.raises(InvalidRequest, match="checkpoint is 1, whose part is over"):
        talk.get(ReadPiece(1, 0, 100))
    talk.end(late, FULL_DISK)
    assert ask(talk, 2).phase == "taken"
    assert read_part(talk, work_of(talk)).rows == {"user": words({7: -1.0})}


def test_a_late_order_of_a_checkpoint_that_is_over_takes_nothing() -> None:
    """Its files may be those of a complete checkpoint."""
    talk = Conversation(Async())
    save(talk, 1)
    save(talk, 2, base=1)
    state = begin(talk, 1)
    assert (state.phase, state.why) == ("failed", f"Checkpoint 1 of {ROOT} is over on server-0: a later one was begun there.")
    assert ask(talk, 2).phase == "written"
    assert begin(talk, 3, root="elsewhere", tracks=False).phase == "taken"
    assert begin(talk, 2).phase == "failed", "also where a later one is of another root"
    assert ask(talk, 3).phase == "taken"


def test_a_checkpoint_after_several_rollbacks_is_none_of_those_that_are_over() -> None:
    talk = Conversation(Async())
    for timeline in range(1, 5):
        shard_map = map_of(timeline + 1, "server-0")
        talk.get(RollBack(1, 0, timeline, shard_map, (USER,), JobState(1, 2, Async(), 0, 0, ()), None))
    assert begin(talk, 1).phase == "taken"
    talk.get(RollBack(1, 0, 5, map_of(6, "server-0"), (USER,), JobState(1, 2, Async(), 0, 0, ()), None))
    assert begin(talk, 1).phase == "failed", "a late order of the one that the rollback ended"
    assert begin(talk, 2).phase == "taken"


def test_a_part_that_is_begun_again_under_its_number_waits_for_the_task_of_the_first() -> None:
    """Both write files of the same names."""
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0}, seq=1)
    begin(talk, 1)
    first = work_of(talk)
    cancel(talk, 1)
    talk.push(0, 0, {7: 1.0}, seq=2)
    assert begin(talk, 1).phase == "taken"
    assert talk.at_work == [first]
    talk.push(0, 0, {7: 1.0}, seq=3)
    with pytest.raises(InvalidRequest, match="over"):
        talk.get(OpenPart(1))
    talk.end(first, FULL_DISK)
    assert ask(talk, 1).phase == "taken"
    part = read_part(talk, work_of(talk))
    assert part.rows == {"user": words({7: -2.0})}
    talk.end(work_of(talk), written(part))
    assert ask(talk, 1).phase == "written"


def test_a_part_that_cannot_be_written_is_told_with_its_reason() -> None:
    talk = Conversation(Async())
    begin(talk, 1)
    talk.end(work_of(talk), FULL_DISK)
    assert ask(talk, 1) == CheckpointState(1, "failed", 0, OBSERVER, None, str(FULL_DISK))
    with pytest.raises(InvalidRequest, match="over"):
        talk.get(OpenPart(1))


def test_rows_that_an_optimizer_left_half_updated_are_not_saved() -> None:
    talk = Conversation(Async())
    talk.shard.catalog.failures["user"] = failure = _failure()
    assert begin(talk, 1) == CheckpointState(1, "failed", 0, OBSERVER, None, str(failure))
    assert not talk.at_work


def test_a_machine_without_room_for_a_part_fails_the_checkpoint_and_not_who_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation(Sync(), world_size=1)
    save(talk, 1)
    begin(talk, 2, 1, base=1)

    def refuse(num_rows: int, width: int) -> Slab:
        raise MemoryError("no room")

    talk.push(0, 0, {7: 1.0})
    with monkeypatch.context() as patched:
        patched.setattr(slot_snapshot, "_room_for", refuse)
        talk.finish(0, 0)
    assert talk.read(7) == [-1.0]
    assert ask(talk, 2) == CheckpointState(2, "failed", 1, OBSERVER, None, "no room")
    part = save(talk, 3, base=1)
    assert (part.is_full("user"), part.rows["user"]) == (False, words({7: -1.0}))


def _failure() -> OptimizerFailed:
    return OptimizerFailed("server-0", "user", "mine", "line 3: ValueError: no")


@pytest.mark.parametrize(
    "order",
    [BeginCheckpoint(1, 0, 1, ROOT, 0, -1, -1, True, False), AskCheckpoint(1, 0, 1), CancelCheckpoint(1, 0, 1)],
    ids=lambda order: type(order).__name__,
)
def test_an_order_of_a_replaced_coordinator_is_refused(order: object) -> None:
    talk = Conversation(Sync(), first_clock=3)
    begin(talk, 1, 5)
    talk.get(InstallTable(2, USER))
    with pytest.raises(StaleOrder):
        talk.get(order)
    talk.finish(0, 3)
    talk.finish(1, 3)
    talk.finish(0, 4)
    talk.finish(1, 4)
    assert work_of(talk)


@pytest.mark.parametrize(
    "order",
    [BeginCheckpoint(1, 6, 1, ROOT, 0, -1, -1, True, False), AskCheckpoint(1, 6, 1), CancelCheckpoint(1, 6, 1)],
    ids=lambda order: type(order).__name__,
)
def test_an_order_of_another_cluster_is_refused_and_changes_nothing(order: object) -> None:
    """A server may listen where one of that cluster did."""
    talk = Conversation(Sync(), first_clock=3)
    talk.get(InstallTable(1, USER, cluster=5))
    begin(talk, 1, 5)
    with pytest.raises(StaleOrder, match="of cluster 5; this order is of cluster 6"):
        talk.get(order)
    for clock in (3, 4):
        talk.finish(0, clock)
        talk.finish(1, clock)
    assert work_of(talk)


def test_a_server_without_a_map_takes_no_part() -> None:
    shard = Shard("server-0")
    (refusal,) = shard.handle(Asked(1, BeginCheckpoint(1, 0, 1, ROOT, 0, -1, -1, True, False)), 0.0)
    assert isinstance(refusal, Refuse)
    assert isinstance(refusal.error, Recovering)


def test_a_job_that_begins_beyond_the_boundary_passes_it() -> None:
    talk = Conversation(Sync())
    begin(talk, 1, 2)
    talk.get(StartJob(1, 2, 1, Sync(), 3))
    assert ask(talk, 1).phase == "passed"


# --- increments --------------------------------------------------------------------------------------------------------------


def test_an_increment_has_what_was_touched_since_its_base() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0, 8: 1.0}, seq=1)
    assert save(talk, 1).is_full("user")
    talk.push(0, 0, {8: 1.0, 9: 1.0}, seq=2)
    part = save(talk, 2, base=1)
    assert (part.is_full("user"), part.rows["user"]) == (False, words({8: -2.0, 9: -1.0}))
    talk.push(0, 0, {9: 1.0}, seq=3)
    part = save(talk, 3, base=2)
    assert (part.is_full("user"), part.rows["user"]) == (False, words({9: -2.0}))


def test_a_part_that_no_manifest_took_up_is_made_good_by_the_next_one() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0}, seq=1)
    save(talk, 1)
    talk.push(0, 0, {8: 1.0}, seq=2)
    save(talk, 2, base=1)
    talk.push(0, 0, {9: 1.0}, seq=3)
    part = save(talk, 3, base=1)  # checkpoint 2 failed on another server
    assert (part.is_full("user"), part.rows["user"]) == (False, words({8: -1.0, 9: -1.0}))


@pytest.mark.parametrize("how", ["failed", "cancelled", "cancelled when written", "replaced"])
def test_a_part_that_came_to_nothing_is_made_good_by_the_next_one(how: str) -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0}, seq=1)
    save(talk, 1)
    talk.push(0, 0, {8: 1.0}, seq=2)
    if how == "cancelled when written":
        save(talk, 2, base=1)
    else:
        begin(talk, 2, base=1)
    talk.push(0, 0, {9: 1.0}, seq=3)
    match how:
        case "failed":
            talk.end(work_of(talk), FULL_DISK)
        case "cancelled":
            cancel(talk, 2)
            talk.end(work_of(talk), FULL_DISK)
        case "cancelled when written":
            cancel(talk, 2)
        case "replaced":
            begin(talk, 3, base=1)
            talk.end(talk.at_work[0], FULL_DISK)
            cancel(talk, 3)
            talk.end(work_of(talk), FULL_DISK)
    part = save(talk, 4, base=1)
    assert (part.is_full("user"), part.rows["user"]) == (False, words({8: -1.0, 9: -1.0}))


@pytest.mark.parametrize(("base", "full", "root"), [(9, False, ROOT), (-1, False, ROOT), (1, True, ROOT), (1, False, "elsewhere")])
def test_without_the_base_that_the_order_names_a_part_is_full(base: int, full: bool, root: str) -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0}, seq=1)
    save(talk, 1)
    part = save(talk, 2, base=base, full=full, root=root)
    assert (part.is_full("user"), part.rows["user"]) == (True, words({7: -1.0}))


def test_a_checkpoint_elsewhere_leaves_the_increments_as_they_are() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0}, seq=1)
    save(talk, 1)
    talk.push(0, 0, {8: 1.0}, seq=2)
    assert save(talk, 2, root="elsewhere", tracks=False).is_full("user")
    part = save(talk, 3, base=1)
    assert (part.is_full("user"), part.rows["user"]) == (False, words({8: -1.0}))


def test_a_table_that_was_cleared_and_one_that_is_new_are_full() -> None:
    talk = Conversation(Async(), tables=(USER, ITEM))
    talk.push(0, 0, {7: 1.0}, seq=1)
    talk.push(0, 0, {7: 1.0}, seq=2, table="item")
    save(talk, 1)
    talk.get(InstallTable(1, TableSpec("new", 1, SGD(1.0))))
    talk.get(ClearTable(talk.fence(0, 0), 3, "user"))
    part = save(talk, 2, base=1)
    assert [part.is_full(table) for table in ("user", "item", "new")] == [True, False, True]
    assert part.rows == {"user": {}, "item": {}, "new": {}}


def test_a_pull_or_a_table_that_fails_its_checks_touches_nothing() -> None:
    talk = Conversation(Async())
    save(talk, 1)
    talk.get(Pull(talk.fence(0, 0), (ids("user", 7),)))
    with pytest.raises(InvalidRequest):
        talk.push(0, 0, {7: float("nan")})
    talk.get(FenceRank(1, 0, 1))
    talk.get(settled(0, 1, NEVER))
    part = save(talk, 2, base=1)
    assert (part.is_full("user"), part.rows["user"]) == (False, {})

"""A push that names the ids of a pull: found under exactly the fence, table and number of that pull, and else refused whole (R19)."""

from dataclasses import replace

import numpy as np
import pytest

from conversation import ITEM, USER, Conversation, map_of, settled
from ps_proto.errors import InvalidRequest, NotOwner, ParameterServerError, StaleIncarnation, UnknownKeyList
from ps_proto.orders import FenceRank, StartJob
from ps_proto.requests import (
    NEVER,
    OBSERVER,
    ClearTable,
    Done,
    ExportOpened,
    ExportPart,
    Fence,
    Finish,
    Finished,
    Ids,
    OpenExport,
    Pull,
    Push,
    ReadExport,
    TableIds,
    TableRows,
)
from ps_proto.values import SGD, Adagrad, Assigned, Async, BoundedStaleness, Mode, Sync, TableSpec
from ps_server.shard import key_lists
from ps_server.shard.counters import Counters
from ps_server.shard.index import Found, SlotIndex
from ps_server.shard.key_lists import KeyList, KeyLists
from ps_server.shard.table import Table
from sharding.hashing import NUM_BUCKETS

IDS = np.array([9, 2**64 - 1, 0, 5], np.uint64)
ONES = np.ones((4, 1), np.float32)
NO_IDS = IDS[:0]
HELD = [int(id) for id in IDS]


def pull(talk: Conversation, number: int = 1, rank: int = 0, table: str = "user", ids: object = IDS) -> None:
    """Read the ids, to be remembered under a number."""
    assert isinstance(ids, np.ndarray)
    talk.get(Pull(talk.fence(rank), (TableIds(table, ids, number),)))


def push(talk: Conversation, number: int = 1, seq: int = 1, rank: int = 0, table: str = "user", times: float = 1.0) -> object:
    """Push `times` ones to the ids of a pull."""
    return talk.get(Push(talk.fence(rank), seq, (TableRows(table, NO_IDS, ONES * np.float32(times), number),)))


@pytest.fixture
def talk() -> Conversation:
    return Conversation(Async(), tables=(USER, ITEM))


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_a_push_of_the_ids_of_a_pull_is_as_one_that_brings_them(mode: Mode) -> None:
    talk = Conversation(mode, world_size=1)
    talk.push(0, 0, {5: 1.0})  # one of the ids has a row, the others have none
    pull(talk)
    assert push(talk, seq=2) == Done(0)
    talk.finish(0, 0)
    assert talk.read(*HELD) == [-1.0, -1.0, -1.0, -2.0]
    stats = talk.stats()
    assert (stats.tables["user"]["rows_pushed"], stats.tables["user"]["rows_listed"]) == (5, 4)


def test_a_list_serves_as_often_as_it_is_named(talk: Conversation) -> None:
    pull(talk)
    for seq in (1, 2, 3):
        push(talk, seq=seq)
    assert talk.read(*HELD) == [-3.0] * 4


def test_a_push_named_as_one_that_was_applied_changes_nothing(talk: Conversation) -> None:
    pull(talk)
    for _ in range(2):
        push(talk)
    assert talk.read(*HELD) == [-1.0] * 4
    assert talk.stats().tables["user"]["rows_repeated"] == 4


def test_only_what_is_new_of_a_push_is_applied_at_its_places(talk: Conversation) -> None:
    talk.push(0, 0, dict.fromkeys(HELD, 0.0))
    pull(talk)
    talk.get(Push(talk.fence(0), 2, (TableRows("user", IDS[1:3], ONES[:2]),)))  # some buckets know this name
    push(talk, seq=2)
    assert talk.read(*HELD) == [-1.0] * 4


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_what_a_pull_has_found_is_not_looked_up_again(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    assigned = TableSpec("item", 1, SGD(lr=1.0), Assigned())
    talk = Conversation(mode, world_size=1, tables=(USER, assigned))
    talk.assign(0, 0, dict.fromkeys(HELD[1:], 0.0))
    talk.assign(0, 0, dict.fromkeys(HELD, 0.0), seq=2, table="item")
    pull(talk)
    pull(talk, table="item")
    looked_up: list[int] = []
    find = SlotIndex.find

    def noting(index: SlotIndex, ids: Ids) -> Found:
        looked_up.append(ids.size)
        return find(index, ids)

    monkeypatch.setattr(SlotIndex, "find", noting)
    push(talk, seq=3)
    push(talk, seq=4, table="item")
    talk.finish(0, 0)
    assert looked_up == [1], "the one that had no row"
    assert talk.read(*HELD) == talk.read(*HELD, table="item") == [-1.0] * 4


def test_lists_of_pulls_before_the_one_that_is_pushed_take_no_memory_any_more(talk: Conversation) -> None:
    for number in (1, 2, 3):
        pull(talk, number)
    push(talk, 2)
    assert talk.stats().server["key_lists"] == 2


def test_bytes_are_counted_as_they_came(talk: Conversation) -> None:
    pull(talk)
    before = talk.stats().tables["user"]["bytes_in"]
    push(talk)
    assert talk.stats().tables["user"]["bytes_in"] - before == ONES.nbytes


@pytest.mark.parametrize(
    "change",
    [{"number": 2}, {"table": "item"}, {"rank": 1}],
    ids=["another pull", "another table", "another rank"],
)
def test_a_list_is_found_only_under_its_own_name(talk: Conversation, change: dict[str, object]) -> None:
    pull(talk)
    with pytest.raises(UnknownKeyList) as caught:
        push(talk, **change)  # type: ignore[arg-type]  # of the right types
    assert caught.value.values() == {"server": "server-0", "table": change.get("table", "user"), "pull": change.get("number", 1)}
    assert talk.read(*HELD) == [0.0] * 4
    assert talk.stats().server["key_lists_unknown"] == 1


def test_another_count_of_rows_than_the_list_has_ids_is_of_another_list(talk: Conversation) -> None:
    pull(talk)
    with pytest.raises(UnknownKeyList):
        talk.get(Push(talk.fence(0), 1, (TableRows("user", NO_IDS, ONES[:3], 1),)))


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_where_one_list_is_unknown_nothing_of_the_push_is_taken(mode: Mode) -> None:
    talk = Conversation(mode, world_size=1, tables=(USER, ITEM))
    pull(talk)
    parts = (TableRows("user", NO_IDS, ONES, 1), TableRows("item", NO_IDS, ONES, 1))
    with pytest.raises(UnknownKeyList):
        talk.get(Push(talk.fence(0), 1, parts))
    assert talk.shard.staging.rows_count == 0
    full = tuple([replace(part, ids=IDS, pull=0) for part in parts])
    talk.get(Push(talk.fence(0), 1, full))  # under the same name
    talk.finish(0, 0)
    assert talk.read(*HELD) == talk.read(*HELD, table="item") == [-1.0] * 4


def test_a_list_is_gone_under_another_map(talk: Conversation) -> None:
    pull(talk)
    talk.take_map(map_of(2, "server-0"))
    with pytest.raises(UnknownKeyList):
        push(talk)
    assert talk.stats().server["key_lists"] == 0


def test_a_list_is_gone_with_its_incarnation(talk: Conversation) -> None:
    pull(talk)
    talk.get(FenceRank(1, 0, 1))
    talk.get(settled(0, 1, NEVER))
    assert talk.stats().server["key_lists"] == 0
    parts = (TableRows("user", NO_IDS, ONES, 1),)
    with pytest.raises(UnknownKeyList):
        talk.get(Push(talk.fence(0, incarnation=1), 1, parts))
    with pytest.raises(StaleIncarnation):
        talk.get(Push(talk.fence(0), 1, parts))


def test_a_list_is_gone_when_its_rank_leaves_and_when_a_job_begins(talk: Conversation) -> None:
    pull(talk, rank=0)
    pull(talk, rank=1)
    talk.get(Finish(talk.fence(0), None, leave=True))
    assert talk.stats().server["key_lists"] == 1
    talk.get(StartJob(1, 2, 2, Async(), 5))
    assert talk.stats().server["key_lists"] == 0


def test_rows_that_were_dropped_since_the_pull_begin_anew(talk: Conversation) -> None:
    """Others may have their slots."""
    talk.push(0, 0, dict.fromkeys(HELD, 5.0))
    pull(talk)
    talk.get(ClearTable(talk.fence(1), 1, "user"))
    talk.push(1, 0, {100: 7.0, 101: 7.0, 102: 7.0, 103: 7.0}, seq=2)
    push(talk, seq=2)
    assert talk.read(*HELD) == [-1.0] * 4
    assert talk.read(100, 101, 102, 103) == [-7.0] * 4


def test_rows_that_are_dropped_between_a_push_and_its_fold_begin_anew() -> None:
    talk = Conversation(Sync(), world_size=1)
    talk.assign(0, 0, dict.fromkeys(HELD, 5.0))
    pull(talk)
    push(talk, seq=2)
    talk.get(ClearTable(talk.fence(0), 3, "user"))
    talk.assign(0, 0, {100: 7.0, 101: 7.0, 102: 7.0, 103: 7.0}, seq=4)
    talk.finish(0, 0)
    assert talk.read(*HELD) == [-1.0] * 4
    assert talk.read(100, 101, 102, 103) == [7.0] * 4


def test_a_snapshot_stays_when_rows_are_pushed_to_by_name(talk: Conversation) -> None:
    """Also where new rows take the slots of some that were dropped after it was taken."""
    talk.push(0, 0, {**dict.fromkeys(HELD, 5.0), 100: 7.0, 101: 7.0})
    opened = talk.get(OpenExport(talk.fence(), "user"))
    assert isinstance(opened, ExportOpened)
    pull(talk)
    push(talk, seq=2)
    talk.get(ClearTable(talk.fence(1), 1, "user"))
    new = np.array([200, 201, 202, 203], np.uint64)
    pull(talk, 2, ids=new)
    push(talk, 2, seq=3)
    part = talk.get(ReadExport(talk.fence(), opened.export, 0, 10))
    assert isinstance(part, ExportPart)
    then = dict(zip(part.ids.tolist(), part.rows[:, 0].tolist(), strict=True))
    assert then == {**dict.fromkeys(HELD, -5.0), 100: -7.0, 101: -7.0}
    assert talk.read(200, 201, 202, 203) == [-1.0] * 4


@pytest.mark.parametrize("forgets", [True, False])
def test_a_pull_that_had_to_wait_is_remembered_when_it_is_answered(forgets: bool) -> None:
    talk = Conversation(BoundedStaleness(0))
    question = talk.ask(Pull(talk.fence(0, clock=1), (TableIds("user", IDS, 1),), Finished(0), wait_s=5.0))
    if forgets:
        talk.shard.key_lists.clear()
    assert question.is_waiting
    assert talk.stats().server["key_lists"] == 0
    talk.push(1, 0, {5: 3.0})
    talk.finish(1, 0)
    assert question.rows == [0.0, 0.0, 0.0, -3.0]
    talk.get(Push(talk.fence(0, clock=1), 1, (TableRows("user", NO_IDS, ONES, 1),)))
    assert talk.read(*HELD) == [-1.0, -1.0, -1.0, -4.0]


def test_a_pull_that_waits_when_the_map_changes_is_not_remembered() -> None:
    talk = Conversation(BoundedStaleness(0))
    question = talk.ask(Pull(talk.fence(0, clock=1), (TableIds("user", IDS, 1),), Finished(0), wait_s=5.0))
    talk.take_map(map_of(2, "server-0"))
    assert isinstance(question.outcome, NotOwner)
    with pytest.raises(UnknownKeyList):
        talk.get(Push(talk.fence(0, clock=1), 1, (TableRows("user", NO_IDS, ONES, 1),)))


def test_an_observer_is_not_remembered(talk: Conversation) -> None:
    pull(talk, rank=OBSERVER)
    assert talk.stats().server["key_lists"] == 0


def test_a_list_of_rows_without_a_start_value_cannot_be_pushed_to_once_they_are_dropped() -> None:
    talk = Conversation(Async(), tables=(TableSpec("user", 1, SGD(lr=1.0), Assigned()),))
    talk.assign(0, 0, dict.fromkeys(HELD, 2.0))
    pull(talk)
    push(talk, seq=2)
    assert talk.read(*HELD) == [1.0] * 4
    talk.get(ClearTable(talk.fence(0), 3, "user"))
    with pytest.raises(InvalidRequest, match="without a value"):
        push(talk, seq=4)


def test_a_list_of_which_one_id_comes_twice_is_pushed_as_it_was_pulled() -> None:
    talk = Conversation(Async(), tables=(TableSpec("user", 1, Adagrad(lr=1.0, eps=0.0)),))
    pull(talk, ids=np.array([7, 8, 7, 9], np.uint64))
    push(talk)
    twice = -1.0 - 1.0 / np.sqrt(2.0)
    assert talk.read(7, 8, 9) == [pytest.approx(twice), -1.0, -1.0]


# --- what is kept ------------------------------------------------------------------------------------------------------------

FENCE = Fence(1, 0, 1)
TABLE = Table(USER)


def lists_of(bytes_max: int = 1 << 20) -> KeyLists:
    return KeyLists("server-0", Counters(), bytes_max)


def keep(lists: KeyLists, number: int, count: int = 4, fence: Fence = FENCE, table: str = "user") -> None:
    ids = np.arange(count, dtype=np.uint64)
    lists.keep(fence, table, number, ids, TABLE.pull_with_places(ids)[1])


def numbers(lists: KeyLists, fence: Fence = FENCE, count: int = 4, table: str = "user") -> list[int]:
    """Return the numbers that are known."""
    found = []
    for number in range(1, 30):
        try:
            found.append(number if isinstance(lists.get(fence, table, number, count), KeyList) else 0)
        except ParameterServerError:
            continue
    return found


@pytest.mark.parametrize("order", [1, -1], ids=["in their order", "the newest first"])
def test_the_newest_lists_of_a_table_stay(order: int) -> None:
    lists = lists_of()
    for number in range(1, 21)[::order]:
        keep(lists, number)
        keep(lists, number, table="item")
    assert numbers(lists) == numbers(lists, table="item") == list(range(21 - key_lists.LISTS_MAX, 21))
    assert len(lists) == 2 * key_lists.LISTS_MAX


def test_a_ranks_lists_stay_within_their_bytes_and_another_ranks_do_not_count() -> None:
    keep(lists := lists_of(), 1)
    one = lists.nbytes
    assert one >= 4 * 12
    lists = lists_of(bytes_max=3 * one)
    for number in range(1, 8):
        keep(lists, number)
        keep(lists, number, fence=replace(FENCE, rank=1))
    assert numbers(lists) == numbers(lists, replace(FENCE, rank=1)) == [5, 6, 7]
    assert lists.nbytes == 6 * one


def test_a_list_too_large_is_not_kept() -> None:
    lists = lists_of(bytes_max=10_000)
    keep(lists, 1, count=1_000)
    assert (len(lists), lists.nbytes) == (0, 0)


def test_the_same_number_again_takes_the_place_of_the_first() -> None:
    lists = lists_of()
    keep(lists, 1, count=4)
    before = lists.nbytes
    keep(lists, 1, count=4)
    assert (len(lists), lists.nbytes) == (1, before)


def test_once_a_list_is_pushed_those_of_earlier_pulls_are_forgotten() -> None:
    lists = lists_of()
    for number in (1, 2, 3, 4):
        keep(lists, number)
        keep(lists, number, table="item")
    lists.forget_before(FENCE, "user", 3)
    assert (numbers(lists), numbers(lists, table="item")) == ([3, 4], [1, 2, 3, 4])


@pytest.mark.parametrize("other", [replace(FENCE, incarnation=2), replace(FENCE, map_version=2), replace(FENCE, rank=1)], ids=str)
def test_lists_are_those_of_one_incarnation_under_one_map(other: Fence) -> None:
    lists = lists_of()
    keep(lists, 1)
    assert numbers(lists, other) == []
    lists.forget_before(other, "user", 9)
    assert numbers(lists) == [1]
    keep(lists, 2, fence=other)
    assert numbers(lists, other) == [2]
    assert numbers(lists) == ([1] if other.rank else []), "what another incarnation or map had is gone with its successor's first"


def test_a_table_without_rows_in_a_pull_is_remembered_too(talk: Conversation) -> None:
    pull(talk, ids=NO_IDS)
    assert talk.get(Push(talk.fence(0), 1, (TableRows("user", NO_IDS, ONES[:0], 1),))) == Done(0)


def test_lists_of_a_released_bucket_are_not_its_owners_any_more(talk: Conversation) -> None:
    pull(talk)
    talk.shard.release(np.ones(NUM_BUCKETS, np.bool_))
    talk.take_map(map_of(2, "server-0", "server-1", all_to="server-1"))
    with pytest.raises(UnknownKeyList):
        push(talk)

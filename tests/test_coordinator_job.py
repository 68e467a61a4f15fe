"""The coordinator's core: ranks join a job, are fenced, and leave it."""

from dataclasses import replace
from typing import Any

import pytest

from driven import REFUSED, SPEC, SYNC, UNREACHED, Driver, driven, join, leave
from ps_proto.errors import InvalidRequest, JobMismatch, Recovering, StaleIncarnation
from ps_proto.orders import FenceRank, InstallMap, InstallTable, RankFenced, ResolveRank, StartJob
from ps_proto.requests import NEVER, Barrier, CreateTable, Finished, GetCluster, JobJoined, JoinJob, LeaveJob
from ps_proto.values import Async, BoundedStaleness, Sync, TableSpec


@pytest.fixture
def driver() -> Driver:
    return driven()


# --- joining ---------------------------------------------------------------------------------------------------------------------


def test_the_first_to_join_fixes_world_size_and_mode(driver: Driver) -> None:
    joined = join(driver, 0, 2, BoundedStaleness(3))
    assert (joined.incarnation, joined.clock, joined.barrier, joined.world_size, joined.mode) == (1, 0, 0, 2, BoundedStaleness(3))
    assert joined.shard_map == driver.core.shard_map
    orders = [tell.body for tell in driver.log if tell.server == "server-1" and not isinstance(tell.body, InstallMap)]
    assert orders == [FenceRank(1, 0, 1), StartJob(1, 1, 2, BoundedStaleness(3), 0), ResolveRank(1, 0, 1, None, 0)]
    cluster = driver.get(GetCluster())
    assert (cluster.world_size, cluster.mode, cluster.ranks) == (2, BoundedStaleness(3), {0: 1})


def test_who_differs_is_refused_with_both_values(driver: Driver) -> None:
    join(driver, 0, 2, Sync())
    with pytest.raises(JobMismatch) as raised:
        join(driver, 1, 3, Sync())
    assert (raised.value.field, raised.value.have, raised.value.want) == ("world_size", "2", "3")
    with pytest.raises(JobMismatch) as raised:
        join(driver, 1, 2, Async())
    assert (raised.value.field, raised.value.have, raised.value.want) == ("mode", str(SYNC), str(Async()))
    assert join(driver, 1, 2, None).mode == Sync()  # who does not say takes the job's
    assert len(driver.bodies(StartJob)) == 2


def test_the_first_one_must_name_a_mode(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match=r"mode=ps\.Sync"):
        join(driver, 0, 1, None)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0), (0, -1), (0, 2**20 + 1)])
def test_a_rank_outside_the_world_is_refused(driver: Driver, rank: int, world_size: int) -> None:
    with pytest.raises(InvalidRequest):
        join(driver, rank, world_size)
    assert driver.bodies(FenceRank) == []


@pytest.mark.parametrize(
    ("wish", "field_name"),
    [({"on_lost_worker": "hope"}, "on_lost_worker"), ({"rank": -1, "name": "spare"}, "rank"), ({"name": "spare"}, "name")],
)
def test_what_this_version_does_not_do_is_refused_by_its_name(driver: Driver, wish: dict[str, Any], field_name: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        driver.get(replace(JoinJob(0, 2, SYNC, 1), **wish))
    assert raised.value.field == field_name
    assert driver.bodies(FenceRank) == []
    assert driver.get(JoinJob(0, 2, SYNC, 2, on_lost_worker="wait")).rank == 0


def test_a_repeated_message_gets_the_same_answer_and_is_no_new_incarnation(driver: Driver) -> None:
    first, repeated = driver.ask(JoinJob(0, 2, Sync(), 77)), driver.ask(JoinJob(0, 2, Sync(), 77))
    driver.settle()
    orders = len(driver.log)
    late = driver.ask(JoinJob(0, 2, Sync(), 77))
    assert driver.outcomes[first] == driver.outcomes[repeated] == driver.outcomes[late]
    assert driver.outcomes[first].incarnation == 1
    assert len(driver.log) == orders


def test_a_message_from_before_a_takeover_does_not_take_the_rank_back(driver: Driver) -> None:
    join(driver, 0, nonce=1)
    new = join(driver, 0, nonce=2)
    with pytest.raises(StaleIncarnation, match="Rank 0 has been taken over by incarnation 2; this is incarnation 1"):
        join(driver, 0, nonce=1)
    assert join(driver, 0, nonce=2) == new
    assert driver.get(GetCluster()).ranks == {0: new.incarnation}


def test_only_the_last_answer_of_a_rank_is_kept(driver: Driver) -> None:
    for nonce in range(1, 50):
        join(driver, nonce % 2, nonce=nonce)
    assert {rank: joined.incarnation for rank, joined in driver.core.ranks.joined.items()} == {0: 24, 1: 25}


def test_a_second_worker_of_a_rank_fences_the_first(driver: Driver) -> None:
    assert join(driver, 1, nonce=1).incarnation == 1
    assert join(driver, 1, nonce=2).incarnation == 2
    assert driver.bodies(FenceRank)[-1] == ("server-1", FenceRank(1, 1, 2))
    with pytest.raises(StaleIncarnation, match="Rank 1 has been taken over by incarnation 2; this is incarnation 1"):
        driver.get(Barrier(1, 1, 0, 1.0))


def test_a_worker_starts_above_everything_that_any_server_knows_of_its_rank(driver: Driver) -> None:
    join(driver, 0)
    driver.fenced = lambda server, order: RankFenced(Finished(4), NEVER, 9) if server == "server-0" else RankFenced(Finished(3), 6, 6)
    assert join(driver, 0).clock == 7  # applied 6 on server-1
    assert driver.bodies(ResolveRank)[-2:] == [(server, ResolveRank(1, 0, 2, Finished(4), 7)) for server in ("server-0", "server-1")]
    driver.fenced = lambda server, order: RankFenced(Finished(8), 6, 9) if server == "server-0" else RankFenced(Finished(7), 6, 9)
    assert join(driver, 0).clock == 9  # finished 8 on server-0


def test_nobody_is_told_of_a_rank_before_every_server_has_settled_it(driver: Driver) -> None:
    request = driver.ask(JoinJob(0, 1, Sync(), 1))
    for kind in (FenceRank, StartJob, ResolveRank):
        assert [type(tell.body) for tell in driver.told] == [kind, kind]
        driver.answer(driver.told[1])
        assert request not in driver.outcomes
        assert len(driver.told) == 1  # the next round waits for the slower server
        driver.answer(driver.told[0])
    assert isinstance(driver.outcomes[request], JobJoined)


def test_two_that_join_at_once_join_one_job(driver: Driver) -> None:
    requests = [driver.ask(JoinJob(rank, 2, Sync(), rank + 1)) for rank in (1, 0)]
    other = driver.ask(JoinJob(0, 2, Async(), 9))
    driver.settle()
    assert [driver.outcomes[request].incarnation for request in requests] == [1, 1]
    assert isinstance(driver.outcomes[other], JobMismatch)
    assert [body.job for _, body in driver.bodies(StartJob)] == [1, 1]


def test_two_of_one_rank_at_once_are_two_incarnations(driver: Driver) -> None:
    first, second = driver.ask(JoinJob(0, 1, Sync(), 1)), driver.ask(JoinJob(0, 1, Sync(), 2))
    driver.settle()
    assert [driver.outcomes[request].incarnation for request in (first, second)] == [1, 2]
    assert driver.get(GetCluster()).ranks == {0: 2}


def test_tables_travel_with_the_answer(driver: Driver) -> None:
    join(driver, 0)
    driver.get(CreateTable(SPEC))
    assert join(driver, 1).tables == (SPEC,)


def test_a_start_that_was_given_up_never_shares_its_number_with_the_next(driver: Driver) -> None:
    request = driver.ask(JoinJob(0, 3, Async(), 1, wait_s=5.0))
    driver.answer(driver.told[0])
    driver.answer(driver.told[0])
    driver.answer(driver.told[0])  # server-0 has started job 1 of 3 ranks
    driver.now_s += 5.0
    driver.answer(driver.told[0], REFUSED)
    assert str(driver.outcomes[request]) == UNREACHED
    joined = join(driver, 0, 2, Sync())
    assert (joined.incarnation, joined.world_size, joined.mode) == (2, 2, Sync())
    starts = driver.bodies(StartJob)[-2:]
    assert [(server, body.world_size) for server, body in starts] == [("server-0", 2), ("server-1", 2)]
    assert starts[0][1].job > 1, "server-0 would take it for the job that it has"


# --- leaving ---------------------------------------------------------------------------------------------------------------------


def test_a_job_ends_when_all_have_left_and_the_next_may_differ(driver: Driver) -> None:
    first, second = join(driver, 0), join(driver, 1)
    leave(driver, first, 0)
    assert (driver.get(GetCluster()).ranks, driver.get(GetCluster()).left) == ({1: 1}, (0,))
    with pytest.raises(JobMismatch):
        join(driver, 0, 3, Async())
    leave(driver, second, 1)
    assert (driver.get(GetCluster()).world_size, driver.get(GetCluster()).left) == (0, (0, 1))
    driver.fenced = lambda server, order: RankFenced(Finished(4), 4, 11 if server == "server-1" else 8)
    joined = join(driver, 2, 3, Async())
    assert (joined.incarnation, joined.clock, joined.world_size, joined.mode) == (1, 12, 3, Async())
    assert driver.bodies(StartJob)[-1] == ("server-1", StartJob(1, 2, 3, Async(), 12))
    assert join(driver, 0, 3, Async()).incarnation == 2  # a rank's incarnation never goes down


def test_leaving_twice_or_late_changes_nothing(driver: Driver) -> None:
    joined = join(driver, 0)
    leave(driver, joined, 0)
    leave(driver, joined, 0)
    again = join(driver, 1)
    leave(driver, JobJoined(again.incarnation + 1, 0, 0, 2, Sync(), 0, again.shard_map, ()), 1)
    assert driver.get(GetCluster()).ranks == {1: 1}


def test_a_rank_that_left_a_running_job_is_told_who_goes_on(driver: Driver) -> None:
    first = join(driver, 0, 3)
    join(driver, 1, 3)
    leave(driver, first, 0)
    with pytest.raises(JobMismatch, match="roster 1, 2: rank 0 has left it"):
        join(driver, 0, 3)


def test_a_rank_that_leaves_while_it_is_joined_anew_does_not_join_a_job_that_is_over(driver: Driver) -> None:
    old = join(driver, 0, 1)
    request = driver.ask(JoinJob(0, 1, Sync(), 5))
    leave(driver, old, 0)
    driver.settle()
    assert isinstance(driver.outcomes[request], Recovering)  # it asks again, and that is a new job
    assert join(driver, 0, 1, nonce=5).incarnation == 3
    assert driver.bodies(StartJob)[-1][1].job == 2


# --- backup workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "backup_workers"), [(1, 1), (2, 2), (3, 100)])
def test_of_all_ranks_one_at_least_is_no_backup(driver: Driver, world_size: int, backup_workers: int) -> None:
    with pytest.raises(InvalidRequest, match=f"backup_workers is {backup_workers}, but must be at most {world_size - 1}"):
        join(driver, 0, world_size, Sync(backup_workers))
    assert join(driver, 0, world_size, Sync(world_size - 1)).mode == Sync(world_size - 1)


def test_backup_workers_are_part_of_the_mode_that_all_must_agree_on(driver: Driver) -> None:
    join(driver, 0, 3, Sync(1))
    for mode in (Sync(), Sync(2)):
        with pytest.raises(JobMismatch, match="mode"):
            join(driver, 1, 3, mode)
    assert join(driver, 1, 3, None).mode == Sync(1)


@pytest.mark.parametrize("job", [Sync(), Sync(1), Async(), BoundedStaleness(1)], ids=str)
def test_a_table_that_wants_other_backup_workers_than_its_job_is_refused(driver: Driver, job: Any) -> None:
    join(driver, 0, 3, job)
    with pytest.raises(InvalidRequest, match=r"TableSpec.mode is Sync\(backup_workers=2\) in a job of"):
        driver.get(CreateTable(TableSpec("user", 4, mode=Sync(2))))
    assert driver.bodies(InstallTable) == []
    driver.get(CreateTable(TableSpec("follows", 4, mode=Sync())))
    assert [spec.name for spec in driver.get(GetCluster()).tables] == ["follows"]


def test_a_job_that_contradicts_a_table_is_refused(driver: Driver) -> None:
    joined = join(driver, 0, 1 + 1, Sync(1))
    join(driver, 1, 2, Sync(1))
    driver.get(CreateTable(TableSpec("user", 4, mode=Sync(1))))
    for rank in (0, 1):
        driver.get(LeaveJob(rank, joined.incarnation))
    for mode in (Sync(), Async()):
        with pytest.raises(InvalidRequest, match="table 'user' has Sync"):
            join(driver, 0, 2, mode)
    assert join(driver, 0, 2, Sync(1)).mode == Sync(1)

"""The coordinator's core: workers join a job that runs (R6, R8)."""

from typing import Any

import pytest

from driven import REFUSED, SPEC, Driver, driven, join, leave, restarted
from ps_proto.errors import InvalidRequest, JobMismatch, Recovering, RolledBack, StaleIncarnation
from ps_proto.orders import AdmitRank, FenceRank, JobState, RankFenced, RankState, ResolveRank
from ps_proto.requests import (
    NEVER,
    Barrier,
    BarrierPassed,
    CreateTable,
    Finished,
    GetCluster,
    JobJoined,
    JoinJob,
    LeaveJob,
    RenewLease,
    StepOrder,
)
from ps_proto.values import Async, BoundedStaleness, Sync, TableSpec
from ps_server.coordinator.admissions import LOOK_AGAIN_S
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.tasks import FoundCheckpoint

SETTINGS = CoreSettings(2, lease_s=10.0)
UNKNOWN = RankFenced(None, NEVER, 6)  # of a rank that is in no roster, where others have finished step 6


@pytest.fixture
def driver() -> Driver:
    return driven(SETTINGS)


class Roster:
    """What servers say of a rank that is to be admitted: since which step it is in their roster."""

    def __init__(self, driver: Driver, **others: Any) -> None:
        self.since = {"server-0": NEVER, "server-1": NEVER}
        self.others = others
        driver.fenced = self.fenced

    def fenced(self, server: str, order: FenceRank) -> RankFenced:
        since = self.since[server]
        if since == NEVER:
            return RankFenced(self.others.get("fact"), NEVER, 6, has_left=self.others.get("has_left", False), finished=-1, since=NEVER)
        return RankFenced(self.others.get("fact"), NEVER, 6, finished=since - 1, since=since)

    def admit(self, since: int) -> None:
        self.since = dict.fromkeys(self.since, since)


def wants_in(rank: int = -1, nonce: int = 500, mode: Any = None, wait_s: float = 60.0, resume: bool = False) -> JoinJob:
    return JoinJob(rank, 0 if rank == -1 else 2, mode, nonce, wait_s, resume, name=f"worker-{nonce}" if rank == -1 else "")


def in_job(driver: Driver, world_size: int = 2, mode: Any = Sync()) -> list[JobJoined]:  # noqa: B008
    driver.fenced = lambda server, order: RankFenced(None, NEVER, NEVER)
    return [driver.get(JoinJob(rank, world_size, mode, 100 + rank, on_lost_worker="continue")) for rank in range(world_size)]


def orders_for(driver: Driver, joined: JobJoined) -> tuple[StepOrder, ...]:
    orders: tuple[StepOrder, ...] = driver.get(RenewLease(joined.rank, joined.incarnation, 5)).orders
    return orders


# --- where steps are folded --------------------------------------------------------------------------------------------------


def test_the_order_rides_with_the_lowest_rank_until_all_servers_have_followed_it(driver: Driver) -> None:
    zero, one = in_job(driver)
    roster = Roster(driver)
    request = driver.ask(wants_in())
    driver.settle()
    order = StepOrder(1, "admit", 2, 1)
    assert (orders_for(driver, one), orders_for(driver, zero), orders_for(driver, zero)) == ((), (order,), (order,))
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    roster.since["server-1"] = 9
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    assert request not in driver.outcomes
    assert driver.get(GetCluster()).world_size == 2
    roster.admit(9)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    joined = driver.outcomes[request]
    assert (joined.rank, joined.incarnation, joined.clock, joined.world_size, joined.is_resumed) == (2, 1, 9, 3, False)
    assert driver.bodies(ResolveRank)[-1][1] == ResolveRank(1, 2, 1, None, 9)
    assert driver.bodies(AdmitRank) == []
    cluster = driver.get(GetCluster())
    assert (cluster.world_size, cluster.ranks) == (3, {0: 1, 1: 1, 2: 1})
    assert driver.notes == ["Rank 2 joins the job: from step 9 on it has 3 ranks."]
    assert orders_for(driver, zero) == ()
    assert driver.told == []


def test_with_backup_workers_the_order_rides_with_every_rank(driver: Driver) -> None:
    """Nobody waits for the lowest: its step may take long."""
    ranks = in_job(driver, 3, Sync(1))
    roster = Roster(driver)
    request = driver.ask(wants_in())
    driver.settle()
    assert [orders_for(driver, rank) for rank in ranks] == [(StepOrder(1, "admit", 3, 1),)] * 3
    roster.since["server-0"] = 9  # the one that decides: the others have yet to hear of it
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    assert request not in driver.outcomes
    roster.admit(9)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    joined = driver.outcomes[request]
    assert (joined.rank, joined.clock, joined.world_size, joined.mode) == (3, 9, 4, Sync(1))
    assert orders_for(driver, ranks[0]) == ()


def test_a_lost_carrier_is_followed_by_the_next_rank(driver: Driver) -> None:
    zero, one = in_job(driver, 2)
    Roster(driver)
    driver.ask(wants_in())
    driver.settle()
    driver.wait(6.0)
    driver.settle()
    assert orders_for(driver, one) == ()
    driver.wait(5.0)  # the lease of rank 0 has run out
    (order,) = orders_for(driver, one)
    assert order.number == 1
    assert zero.rank == 0


def test_orders_go_together_in_their_order_and_take_effect_one_by_one(driver: Driver) -> None:
    zero, _ = in_job(driver)
    roster = Roster(driver)
    first, second = driver.ask(wants_in(nonce=1)), driver.ask(wants_in(nonce=2))
    driver.settle()
    assert [(order.number, order.rank) for order in orders_for(driver, zero)] == [(1, 2), (2, 3)]
    roster.admit(4)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    assert [driver.outcomes[request].rank for request in (first, second)] == [2, 3]
    assert driver.get(GetCluster()).world_size == 4


def test_barriers_wait_for_who_was_admitted(driver: Driver) -> None:
    in_job(driver)
    roster = Roster(driver)
    roster.admit(4)
    joined = driver.get(wants_in())
    others = [driver.ask(Barrier(rank, 1, 0, 100.0, rank)) for rank in range(2)]
    assert not driver.outcomes.keys() & set(others)
    assert driver.get(Barrier(2, joined.incarnation, joined.barrier, 100.0, -1)) == BarrierPassed(-1)


def test_who_waits_in_vain_is_told_why_and_the_order_stands(driver: Driver) -> None:
    zero, one = in_job(driver)
    roster = Roster(driver)
    asked = wants_in(wait_s=5.0)
    request = driver.ask(asked)
    for _ in range(20):
        driver.settle()
        driver.tick(LOOK_AGAIN_S)
    assert str(driver.outcomes[request]) == (
        "The coordinator cannot answer now: rank 2 joins at the end of a step, and none has come for 5.0 s."
    )
    assert isinstance(driver.outcomes[request], Recovering)
    again = driver.ask(asked)
    driver.settle()
    assert len(orders_for(driver, zero)) == 1
    roster.admit(9)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    assert driver.outcomes[again].clock == 9
    assert driver.get(asked) == driver.outcomes[again], "a message that is repeated later gets the same answer"
    assert one.rank == 1


def test_others_join_and_create_tables_while_an_admission_waits_for_a_step(driver: Driver) -> None:
    in_job(driver)
    Roster(driver)
    driver.ask(wants_in())
    driver.settle()
    driver.get(CreateTable(SPEC))
    assert driver.get(JoinJob(1, 2, None, 7)).incarnation == 2


def test_a_worker_that_dies_before_it_is_admitted_is_lost_as_any_other(driver: Driver) -> None:
    zero, one = in_job(driver)
    roster = Roster(driver)
    driver.ask(wants_in(wait_s=1.0))
    driver.settle()
    driver.tick(2.0)
    roster.admit(4)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    assert driver.get(GetCluster()).ranks == {0: 1, 1: 1, 2: 1}
    driver.wait(7.0)
    for each in (zero, one):
        orders_for(driver, each)
    driver.wait(4.0)
    driver.settle()
    assert driver.get(GetCluster()).ranks == {0: 1, 1: 1}
    assert driver.bodies(ResolveRank)[-1][1] == ResolveRank(1, 2, 2, None, 4, has_left=True)


# --- where they are not --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(2)], ids=str)
def test_without_folds_every_server_gets_the_order_by_itself(driver: Driver, mode: Any) -> None:
    zero, _ = in_job(driver, mode=mode)
    driver.fenced = lambda server, order: RankFenced(None, NEVER, 6 if server == "server-0" else 7)
    request = driver.ask(wants_in())
    assert orders_for(driver, zero) == ()
    driver.settle()
    assert driver.bodies(AdmitRank) == [(server, AdmitRank(1, 0, 2, 1, 8)) for server in ("server-0", "server-1")]
    assert (driver.outcomes[request].rank, driver.outcomes[request].clock) == (2, 8)


def test_a_synchronous_table_makes_the_order_ride(driver: Driver) -> None:
    zero, _ = in_job(driver, mode=Async())
    driver.get(CreateTable(TableSpec("dense", 4, mode=Sync())))
    Roster(driver)
    driver.ask(wants_in())
    driver.settle()
    assert len(orders_for(driver, zero)) == 1
    assert driver.bodies(AdmitRank) == []


def test_a_server_that_is_away_is_waited_for(driver: Driver) -> None:
    in_job(driver, mode=Async())
    request = driver.ask(wants_in())
    driver.answer(driver.told[0], UNKNOWN)
    driver.answer(driver.told[0], UNKNOWN)
    driver.answer(driver.told[0])
    driver.answer(driver.told[0], REFUSED)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    assert driver.outcomes[request].clock == 7


def test_a_server_that_refuses_is_asked_again_and_told_of(driver: Driver) -> None:
    in_job(driver, mode=Async())
    request = driver.ask(wants_in())
    for tell in list(driver.told):
        driver.answer(tell, UNKNOWN)
    driver.answer(driver.told[0], InvalidRequest("the admission", "too early", "later"))
    driver.told.clear()
    assert driver.notes == ["Rank 2 cannot join the job yet: the admission is too early, but must be later. Nothing was applied."]
    driver.tick(1.0)
    driver.settle()
    assert driver.outcomes[request].rank == 2


# --- under which rank --------------------------------------------------------------------------------------------------------------


def test_a_rank_that_has_left_is_taken_first_and_is_not_gone_on_with(driver: Driver) -> None:
    _, one, _ = in_job(driver, 3, Async())
    leave(driver, one, 1)
    driver.fenced = lambda server, order: RankFenced(Finished(4, resume=b"four"), 4, 6, has_left=True, finished=4)
    joined = driver.get(wants_in(resume=True))
    assert (joined.rank, joined.incarnation, joined.clock, joined.is_resumed, joined.resume) == (1, 2, 7, False, b"")
    assert (joined.world_size, driver.get(GetCluster()).ranks) == (3, {0: 1, 1: 2, 2: 1})


def removed(driver: Driver) -> None:
    """Let rank 1 of two be removed."""
    zero, _ = in_job(driver)
    driver.fenced = lambda server, order: RankFenced(Finished(3, resume=b"three"), 3, 4, finished=3, since=0)
    driver.wait(6.0)
    orders_for(driver, zero)
    driver.wait(5.0)
    driver.settle()
    assert driver.get(GetCluster()).ranks == {0: 1}


@pytest.mark.parametrize("resume", [True, False])
def test_a_rank_that_was_removed_comes_back_under_its_own_name_with_its_last_state(driver: Driver, resume: bool) -> None:
    removed(driver)
    roster = Roster(driver, fact=Finished(3, resume=b"three"), has_left=True)
    request = driver.ask(wants_in(1, resume=resume))
    driver.settle()
    roster.admit(9)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    joined = driver.outcomes[request]
    assert (joined.rank, joined.incarnation, joined.clock) == (1, 3, 9)
    assert (joined.is_resumed, joined.resume) == ((True, b"three") if resume else (False, b""))
    again = driver.get(JoinJob(1, 2, None, 901, resume=True))
    assert (again.clock, again.is_resumed, again.resume) == (9, True, b"three"), "it has finished nothing since"


def test_a_second_try_for_a_removed_rank_fences_the_first(driver: Driver) -> None:
    removed(driver)
    roster = Roster(driver, has_left=True)
    first, second = driver.ask(wants_in(1, nonce=1)), driver.ask(wants_in(1, nonce=2))
    assert isinstance(driver.outcomes[first], StaleIncarnation)
    driver.settle()
    roster.admit(9)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    assert driver.outcomes[second].incarnation == 4
    with pytest.raises(StaleIncarnation):
        driver.get(wants_in(1, nonce=1))


def test_a_removed_rank_is_nobody_elses(driver: Driver) -> None:
    removed(driver)
    roster = Roster(driver)
    roster.admit(9)
    assert driver.get(wants_in()).rank == 2


def test_the_first_workers_of_a_grown_job_may_still_say_what_it_was(driver: Driver) -> None:
    in_job(driver, mode=Async())
    driver.fenced = lambda server, order: UNKNOWN
    driver.get(wants_in())
    assert join(driver, 0, 2, None).world_size == 3
    assert join(driver, 1, 3, None).world_size == 3
    with pytest.raises(JobMismatch, match="world_size 3, but this worker asks for 4"):
        join(driver, 0, 4, None)


# --- by a name ---------------------------------------------------------------------------------------------------------------


def named(name: str, nonce: int, resume: bool = True) -> JoinJob:
    return JoinJob(-1, 0, None, nonce, 60.0, resume, name=name)


def test_who_joins_again_under_its_name_goes_on_where_its_rank_was(driver: Driver) -> None:
    in_job(driver, mode=Async())
    driver.fenced = lambda server, order: UNKNOWN
    first = driver.get(named("spare", 1))
    assert (first.rank, first.incarnation, first.clock, first.is_resumed) == (2, 1, 7, False)
    driver.fenced = lambda server, order: RankFenced(Finished(8, resume=b"eight"), 8, 8, finished=8, since=7)
    again = driver.get(named("spare", 2))
    assert (again.rank, again.incarnation, again.clock, again.is_resumed, again.resume) == (2, 2, 9, True, b"eight")
    with pytest.raises(StaleIncarnation):
        driver.get(named("spare", 1))


def test_who_dies_before_it_knows_its_rank_gets_it_when_it_joins_again(driver: Driver) -> None:
    """A step passes meanwhile, or none: one rank is given, not two."""
    zero, _ = in_job(driver)
    roster = Roster(driver, fact=Finished(3, resume=b"another's"))
    dead = driver.ask(named("spare", 1))
    driver.settle()
    request = driver.ask(named("spare", 2))
    assert isinstance(driver.outcomes[dead], StaleIncarnation)
    driver.settle()
    assert [order.rank for order in orders_for(driver, zero)] == [2]
    roster.admit(9)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    joined = driver.outcomes[request]
    assert (joined.rank, joined.incarnation, joined.clock, joined.is_resumed, joined.resume) == (2, 2, 9, False, b"")
    again = driver.get(named("spare", 3))
    assert (again.rank, again.clock, again.is_resumed, again.resume) == (2, 9, False, b""), "what its rank did before was another's"


def test_a_name_outlives_the_coordinator(driver: Driver) -> None:
    in_job(driver, mode=Async())
    driver.fenced = lambda server, order: UNKNOWN
    assert driver.get(named("spare", 1)).rank == 2
    after = restarted(driver, SETTINGS)
    after.fenced = lambda server, order: RankFenced(None, NEVER, 8, finished=6, since=7)
    assert after.get(named("spare", 2)).rank == 2


def test_a_removed_rank_is_still_its_holders(driver: Driver) -> None:
    zero, one = in_job(driver)
    roster = Roster(driver)
    roster.admit(4)
    assert driver.get(named("spare", 1)).rank == 2
    driver.wait(7.0)
    for each in (zero, one):
        orders_for(driver, each)
    driver.wait(4.0)
    driver.settle()
    assert driver.get(GetCluster()).ranks == {0: 1, 1: 1}
    roster = Roster(driver, fact=Finished(5, resume=b"five"), has_left=True)
    request = driver.ask(named("spare", 2))
    driver.settle()
    roster.admit(9)
    driver.tick(LOOK_AGAIN_S)
    driver.settle()
    joined = driver.outcomes[request]
    assert (joined.rank, joined.clock, joined.is_resumed, joined.resume) == (2, 9, True, b"five")


def replaced(driver: Driver) -> JobJoined:
    """Let rank 1 of two leave, and "spare" join in its place with step 7."""
    _, one = in_job(driver, mode=Async())
    leave(driver, one, 1)
    driver.fenced = lambda server, order: RankFenced(None, NEVER, 6, has_left=True, finished=4)
    joined: JobJoined = driver.get(named("spare", 1))
    return joined


def test_a_rank_that_has_changed_hands_leaves_out_a_step_between(driver: Driver) -> None:
    """The one who left was the fastest: from what a checkpoint says of its last step one could not tell whose it was then."""
    _, one = in_job(driver, mode=Async())
    leave(driver, one, 1)
    driver.fenced = lambda server, order: RankFenced(None, NEVER, 6, has_left=True, finished=6)
    assert driver.get(named("spare", 1)).clock == 8


def test_a_rank_that_is_somebodys_is_not_had_by_its_number(driver: Driver) -> None:
    """The worker that had it before was killed just as it had left."""
    assert replaced(driver).rank == 1
    with pytest.raises(JobMismatch, match="rank 1 is that of 'spare', which joined by name"):
        join(driver, 1, 2, None)
    assert driver.get(GetCluster()).left == (1,), "so that nobody starts that worker again"


def test_a_message_that_comes_late_brings_nobody_back(driver: Driver) -> None:
    spare = replaced(driver)
    leave(driver, spare, 1)
    with pytest.raises(InvalidRequest, match="which has left"):
        driver.get(named("spare", 1))
    assert driver.get(named("other", 2)).rank == 1
    with pytest.raises(StaleIncarnation):
        driver.get(named("spare", 1))
    assert driver.get(named("spare", 3)).rank == 2, "but a new one joins anew"


def rolled_back(driver: Driver, *ranks: RankState) -> None:
    state = JobState(1, len(ranks), Async(), 0, 3, ranks)
    driver.core.ranks.roll_back(FoundCheckpoint(None, 0, (), state, ()), is_new=False)
    driver.fenced = lambda server, order: RankFenced(
        None, NEVER, 9, finished={one.rank: one.finished for one in ranks}.get(order.rank, NEVER)
    )


def test_a_rollback_gives_a_rank_back_to_who_had_it_then(driver: Driver) -> None:
    """Its holder, which joined later, joins anew; it does not fence the other."""
    spare = replaced(driver)
    rolled_back(driver, RankState(0, None, 3, False), RankState(1, None, 3, False))
    with pytest.raises(RolledBack):
        driver.get(RenewLease(1, spare.incarnation, 9))
    one = join(driver, 1, 2, None)
    assert (one.rank, one.clock) == (1, 4)
    assert driver.get(named("spare", 2)).rank == 2
    assert driver.get(GetCluster()).ranks == {1: one.incarnation, 2: 1}


def test_a_rollback_leaves_a_rank_to_who_had_begun(driver: Driver) -> None:
    replaced(driver)
    rolled_back(driver, RankState(0, None, 6, False), RankState(1, None, 6, False))
    assert driver.get(named("spare", 2)).rank == 1
    with pytest.raises(JobMismatch, match="rank 1 is that of 'spare'"):
        join(driver, 1, 2, None)


def test_who_joins_while_the_cluster_goes_back_asks_again(driver: Driver) -> None:
    in_job(driver)
    Roster(driver)
    asked = named("spare", 1)
    request = driver.ask(asked)
    driver.settle()
    driver.core._numbering.begin_timeline(0)
    rolled_back(driver, RankState(0, None, 3, False), RankState(1, None, 3, False))
    driver.tick(0.0)
    assert isinstance(driver.outcomes[request], Recovering)
    again = join(driver, 0, 2, None)
    driver.ask(asked)
    driver.settle()
    assert [order.rank for order in orders_for(driver, again)] == [2]


def test_who_has_joined_again_since_a_rollback_is_told_of_it_no_more(driver: Driver) -> None:
    """Its lease may be renewed just as it leaves."""
    in_job(driver, mode=Async())
    rolled_back(driver, RankState(0, None, 3, False), RankState(1, None, 3, False))
    again = join(driver, 1, 2, None)
    leave(driver, again, 1)
    with pytest.raises(InvalidRequest, match="which has not joined or has left"):
        driver.get(RenewLease(1, again.incarnation, 9))


# --- refused --------------------------------------------------------------------------------------------------------------------


def test_without_a_job_there_is_none_to_join(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match="rank is -1, and no job runs"):
        driver.get(wants_in(mode=Sync()))


def test_another_mode_is_refused(driver: Driver) -> None:
    in_job(driver)
    with pytest.raises(JobMismatch, match="mode"):
        driver.get(wants_in(mode=Async()))


def test_an_admission_ends_with_its_job(driver: Driver) -> None:
    zero, one = in_job(driver)
    Roster(driver)
    request = driver.ask(wants_in())
    driver.settle()
    for joined in (zero, one):
        driver.ask(LeaveJob(joined.rank, joined.incarnation))
    assert str(driver.outcomes[request]) == "rank is 2, and its job is over, but must be of a job that runs. Nothing was applied."
    driver.settle()
    assert driver.get(GetCluster()).world_size == 0
    assert driver.core.deadline_s() is None


# --- after a restart of the coordinator --------------------------------------------------------------------------------------


def test_an_order_that_was_given_outlives_its_coordinator_and_its_worker(driver: Driver) -> None:
    zero, _ = in_job(driver)
    Roster(driver)
    driver.ask(wants_in())
    driver.settle()
    (order,) = orders_for(driver, zero)
    after = restarted(driver, SETTINGS)
    after.settle()
    assert orders_for(after, zero) == (order,)
    roster = Roster(after)
    roster.admit(9)
    after.tick(LOOK_AGAIN_S)
    after.settle()
    assert after.get(GetCluster()).ranks == {0: 1, 1: 1, 2: 1}
    assert after.get(wants_in()).clock == 9


def test_servers_that_followed_an_order_before_its_coordinator_died_decide_the_step(driver: Driver) -> None:
    in_job(driver, mode=Async())
    driver.ask(wants_in())
    for tell in list(driver.told):
        driver.answer(tell, UNKNOWN)
    driver.answer(driver.told[0])  # one server has it from step 7 on
    after = restarted(driver, SETTINGS)
    later = {"server-0": RankFenced(None, NEVER, 11, finished=6, since=7), "server-1": RankFenced(None, NEVER, 11)}
    after.fenced = lambda server, order: later[server]
    after.settle()
    assert after.bodies(AdmitRank) == [(server, AdmitRank(2, 0, 2, 1, 7)) for server in ("server-0", "server-1")]
    assert after.get(wants_in()).clock == 7


def test_a_rank_that_a_rollback_took_away_is_given_anew(driver: Driver) -> None:
    """The worker asks again, as it does while the cluster goes back."""
    in_job(driver, mode=Async())
    driver.fenced = lambda server, order: UNKNOWN
    assert driver.get(wants_in(nonce=8)).rank == 2
    driver.core.ranks.roll_back(FoundCheckpoint(None, 0, (), JobState(1, 2, Async(), 0, 3, ()), ()), is_new=False)
    driver.get(JoinJob(0, 2, None, 20))
    joined = driver.get(wants_in(nonce=8))
    assert (joined.rank, joined.incarnation) == (2, 2)


def test_a_removed_rank_that_comes_back_while_its_coordinator_dies_has_its_last_state(driver: Driver) -> None:
    """The servers have followed the order by then, so that nobody has to ask before it is done."""
    removed(driver)
    fact = Finished(3, resume=b"three")
    Roster(driver, fact=fact, has_left=True)
    asked = wants_in(1, resume=True)
    driver.ask(asked)
    driver.settle()
    after = restarted(driver, SETTINGS)
    Roster(after, fact=fact).admit(9)
    after.settle()
    assert after.get(GetCluster()).ranks == {0: 1, 1: 3}
    joined = after.get(asked)
    assert (joined.incarnation, joined.clock, joined.is_resumed, joined.resume) == (3, 9, True, b"three")

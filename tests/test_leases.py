"""The coordinator's core: workers that are not heard of (R13), and jobs that go on without one (R6, R7)."""

from dataclasses import replace
from typing import Any

import pytest

from driven import REFUSED, Driver, driven, join, leave, restarted
from ps_proto.errors import InvalidRequest, JobEnded, JobMismatch, Recovering, StaleIncarnation
from ps_proto.orders import FenceRank, RankFenced, ResolveRank
from ps_proto.requests import NEVER, Barrier, BarrierPassed, Finished, GetCluster, JobJoined, JoinJob, LeaseRenewed, RenewLease
from ps_proto.values import Async, Sync
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.leases import Leases
from ps_server.coordinator.plans import ORDER_AGAIN_S

LEASE_S = 10.0
SETTINGS = CoreSettings(2, lease_s=LEASE_S)


def test_a_lease_ends_a_while_after_its_last_renewal() -> None:
    leases = Leases(10.0)
    assert leases.look(100.0) == []
    leases.renew(1)
    leases.renew(0)
    assert leases.look(105.0) == []
    leases.renew(0)
    assert leases.due_s() == [110.0, 115.0, 107.5]
    assert leases.look(109.9) == []
    assert leases.look(110.0) == [1]
    assert leases.look(112.0) == []
    assert leases.lost == {1}
    assert leases.due_s() == [115.0, 114.5]
    leases.renew(1)
    assert leases.lost == set()
    assert leases.look(117.0) == [0]
    assert leases.look(122.0) == [1]
    leases.end(1)
    assert leases.lost == {0}


def test_who_looks_again_after_a_long_while_grants_everyone_a_full_lease() -> None:
    leases = Leases(10.0)
    leases.look(100.0)
    leases.renew(0)
    leases.look(102.0)
    leases.renew(1)
    assert leases.look(110.0) == [], "nobody could be heard for 8 s"
    assert leases.due_s() == [120.0, 120.0, 112.5]
    leases.look(116.0)
    leases.renew(0)
    assert leases.look(120.0) == [1]


@pytest.mark.parametrize("stopped_at_s", [9, 10, 11])
def test_who_renews_in_time_is_not_lost_wherever_the_coordinator_is_stopped(stopped_at_s: int) -> None:
    for stopped_s in range(1, 40):
        leases = Leases(9.0)
        for now_s in range(stopped_at_s + 1):
            assert leases.look(now_s) == []
            if now_s % 3 == 0:
                leases.renew(0)
        assert leases.look(stopped_at_s + stopped_s) == [], "its renewal comes with the next turns"


def test_without_leases_nobody_is_lost() -> None:
    leases = Leases(0.0)
    leases.look(1.0)
    leases.renew(0)
    assert leases.due_s() == []
    assert leases.look(1e9) == []


# --- in a job ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver() -> Driver:
    return driven(SETTINGS)


def in_job(driver: Driver, world_size: int, on_lost_worker: str = "continue", mode: Any = Sync()) -> list[JobJoined]:  # noqa: B008
    """Let all ranks join."""
    return [driver.get(JoinJob(rank, world_size, mode, 100 + rank, on_lost_worker=on_lost_worker)) for rank in range(world_size)]


def renew(driver: Driver, *joined: JobJoined) -> None:
    for each in joined:
        driver.get(RenewLease(each.rank, each.incarnation, 5))


def came_to(clock: int) -> RankFenced:
    return RankFenced(Finished(clock), NEVER, clock, finished=clock)


def test_a_worker_is_told_how_long_its_lease_is(driver: Driver) -> None:
    assert join(driver, 0).lease_s == LEASE_S
    assert driver.get(RenewLease(0, 1, 0)) == LeaseRenewed((), 0)


def test_who_takes_no_part_renews_nothing(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 0)
    with pytest.raises(StaleIncarnation, match="Rank 0 has been taken over by incarnation 2"):
        driver.get(RenewLease(0, 1, 3))
    with pytest.raises(InvalidRequest, match="rank is 1, which has not joined or has left"):
        driver.get(RenewLease(1, 1, 3))


def test_a_lost_worker_is_waited_for_and_named(driver: Driver) -> None:
    zero, one = in_job(driver, 2, "wait")
    for _ in range(3):
        driver.wait(4.0)
        renew(driver, zero)
    assert driver.get(GetCluster()).lost == (1,)
    (note,) = driver.notes
    assert note == "Rank 1 has not been heard of for 10.0 s. The others wait for it, unless it comes back."
    driver.wait(100.0)
    assert driver.get(GetCluster()).ranks == {0: 1, 1: 1}
    assert driver.told == []
    renew(driver, zero)
    assert driver.get(GetCluster()).lost == ()
    assert driver.notes[-1] == "Rank 0 is heard of again. The others have as long as a lease for that."
    driver.wait(8.0)
    renew(driver, zero)
    driver.wait(2.0)
    renew(driver, one)
    assert driver.get(GetCluster()).lost == ()
    assert driver.notes[-1] == "Rank 1 is heard of again."


def test_one_that_left_is_not_missed(driver: Driver) -> None:
    zero, one = in_job(driver, 2)
    leave(driver, one, 1)
    leave(driver, zero, 0)
    driver.wait(100.0)
    assert (driver.notes, driver.get(GetCluster()).lost) == ([], ())
    assert driver.core.deadline_s() is None


def test_a_job_goes_on_without_a_lost_worker_where_it_said_so(driver: Driver) -> None:
    zero, _, two = in_job(driver, 3)
    driver.ask(Barrier(0, 1, 0, 100.0, 7))
    waiting = driver.ask(Barrier(2, 1, 0, 100.0, 5))
    driver.wait(4.0)
    renew(driver, zero, two)
    driver.fenced = lambda server, order: came_to(6) if server == "server-0" else came_to(7)
    driver.wait(6.0)
    assert [tell.body for tell in driver.told] == [FenceRank(1, 1, 2)] * 2
    driver.settle()
    assert driver.bodies(ResolveRank)[-1] == ("server-1", ResolveRank(1, 1, 2, Finished(7), 8, has_left=True))
    assert driver.get(GetCluster()).ranks == {0: 1, 2: 1}
    assert (driver.get(GetCluster()).lost, driver.get(GetCluster()).left) == ((), ())
    assert driver.notes[-1] == (
        "Rank 1 has not been heard of for 10.0 s and is removed from its job: from step 8 on the others go on without it, 2 in all."
    )
    assert driver.outcomes[waiting] == BarrierPassed(5)
    with pytest.raises(StaleIncarnation):
        driver.get(RenewLease(1, 1, 7))


@pytest.mark.parametrize(
    ("one", "other", "fact", "start"),
    [
        (RankFenced(None, NEVER, 4), RankFenced(None, NEVER, 4), None, 0),
        (RankFenced(None, NEVER, 4, finished=-1), RankFenced(Finished(0, resume=b"0"), 0, 4, finished=0), Finished(0, resume=b"0"), 1),
        (RankFenced(Finished(3), 3, 4, finished=3), RankFenced(Finished(3), 3, 4, finished=6), Finished(3), 7),
    ],
    ids=["nothing finished", "by one server", "without a fact"],
)
def test_a_removed_rank_leaves_after_the_same_step_on_every_server(driver: Driver, one: Any, other: Any, fact: Any, start: int) -> None:
    zero, _ = in_job(driver, 2)
    driver.fenced = lambda server, order: one if server == "server-0" else other
    driver.wait(9.0)
    renew(driver, zero)
    driver.tick(1.0)
    driver.settle()
    assert driver.bodies(ResolveRank)[-1][1] == ResolveRank(1, 1, 2, fact, start, has_left=True)


def test_where_all_are_lost_nobody_is_removed(driver: Driver) -> None:
    """It may be the coordinator that was cut off: then one is heard of first, and the others right after it."""
    _, one = in_job(driver, 2)
    driver.wait(50.0)
    assert driver.told == []
    assert driver.get(GetCluster()).lost == (0, 1)
    renew(driver, one)
    assert driver.told == []
    assert driver.get(GetCluster()).lost == ()
    for _ in range(3):
        driver.wait(3.0)
        renew(driver, one)
    assert driver.told == []
    driver.wait(1.0)
    assert [tell.body for tell in driver.told] == [FenceRank(1, 0, 2)] * 2, "only one goes on"
    driver.settle()
    assert driver.get(GetCluster()).ranks == {1: 1}


def test_one_that_comes_back_in_time_is_not_removed(driver: Driver) -> None:
    _, one = in_job(driver, 2)
    driver.ask(JoinJob(0, 2, None, 7, wait_s=50.0))  # a plan that a server holds up
    driver.wait(10.0)
    renew_one = driver.ask(RenewLease(1, one.incarnation, 5))
    driver.settle()
    assert driver.outcomes[renew_one] == LeaseRenewed((), 0)
    assert driver.get(GetCluster()).ranks == {0: 2, 1: 1}
    assert {body.rank for _, body in driver.bodies(ResolveRank) if body.has_left} == set()


def test_a_removal_waits_for_a_server_that_is_away(driver: Driver) -> None:
    zero, _ = in_job(driver, 2)
    driver.wait(9.0)
    renew(driver, zero)
    driver.tick(1.0)
    for _ in range(50):
        for tell in list(driver.told):
            driver.answer(tell, REFUSED if tell.server == "server-1" else None)
        driver.ask(RenewLease(0, 1, 5))
        driver.tick(ORDER_AGAIN_S)
    assert driver.outcomes[driver.ask(GetCluster())].ranks.keys() == {0, 1}
    driver.settle()
    assert driver.get(GetCluster()).ranks.keys() == {0}


def test_a_worker_that_is_taken_anew_is_not_removed_meanwhile(driver: Driver) -> None:
    zero, _ = in_job(driver, 2)
    driver.wait(9.0)
    renew(driver, zero)
    joining = driver.ask(JoinJob(1, 2, None, 7, wait_s=50.0))
    driver.wait(5.0)  # its servers take their time
    assert driver.get(GetCluster()).lost == ()
    assert driver.outcomes[joining].incarnation == 2


def test_a_worker_that_asks_for_its_rank_while_it_is_removed_asks_again_and_is_admitted(driver: Driver) -> None:
    zero, _ = in_job(driver, 2)
    driver.fenced = lambda server, order: came_to(3)
    driver.wait(6.0)
    renew(driver, zero)
    driver.wait(5.0)
    again = JoinJob(1, 2, None, 900, resume=True)
    request = driver.ask(again)
    assert request not in driver.outcomes
    driver.settle()
    assert driver.get(GetCluster()).ranks == {0: 1}
    assert isinstance(driver.outcomes[request], Recovering), "which its client takes for a word to ask again"
    driver.ask(again)
    assert [order.rank for order in driver.get(RenewLease(0, 1, 5)).orders] == [1]


def test_a_removed_worker_that_comes_back_when_its_job_is_over_begins_no_other(driver: Driver) -> None:
    zero, _ = in_job(driver, 2)
    number = driver.get(GetCluster()).job
    driver.wait(9.0)
    renew(driver, zero)
    driver.wait(2.0)
    assert driver.get(GetCluster()).missed == (), "it may come back"
    leave(driver, zero, 0)
    over = driver.get(GetCluster())
    assert (over.world_size, over.job, over.missed, over.left) == (0, number, (1,), (0,))
    again = JoinJob(1, 2, Sync(), 900, resume=True, job=number)
    for _ in range(2):
        with pytest.raises(JobEnded, match=f"Job {number} has ended, so there is nothing left in it for rank 1"):
            driver.get(again)
    driver.get(JoinJob(0, 2, Sync(), 901))  # the next one
    assert driver.get(GetCluster()).job > number
    assert driver.get(GetCluster()).missed == ()
    with pytest.raises(JobEnded):
        driver.get(again)
    assert driver.get(replace(again, job=0)).incarnation == 3


def test_a_worker_that_asks_while_its_job_ends_begins_no_other(driver: Driver) -> None:
    (zero,) = in_job(driver, 1)
    again = JoinJob(0, 1, Sync(), 900, job=driver.get(GetCluster()).job)
    request = driver.ask(again)
    leave(driver, zero, 0)
    driver.settle()
    assert isinstance(driver.outcomes[request], Recovering), "which its client takes for a word to ask again"
    with pytest.raises(JobEnded):
        driver.get(again)


def test_a_removed_worker_that_comes_back_in_time_goes_on_in_its_job(driver: Driver) -> None:
    zero, _ = in_job(driver, 2)
    driver.wait(9.0)
    renew(driver, zero)
    driver.wait(2.0)
    driver.ask(JoinJob(1, 2, Sync(), 900, resume=True, job=driver.get(GetCluster()).job))
    assert [order.rank for order in driver.get(RenewLease(0, 1, 5)).orders] == [1]


def test_what_follows_a_lost_worker_is_the_jobs(driver: Driver) -> None:
    in_job(driver, 2, "continue")
    with pytest.raises(JobMismatch) as raised:
        driver.get(JoinJob(0, 2, Sync(), 7, on_lost_worker="wait"))
    assert (raised.value.field, raised.value.have, raised.value.want) == ("on_lost_worker", "'continue'", "'wait'")
    assert driver.get(JoinJob(0, 2, Sync(), 8)).incarnation == 2


def test_who_does_not_say_waits(driver: Driver) -> None:
    driver.get(JoinJob(0, 2, Async(), 1))
    with pytest.raises(JobMismatch, match="on_lost_worker 'wait', but this worker asks for 'continue'"):
        driver.get(JoinJob(1, 2, Async(), 2, on_lost_worker="continue"))


# --- after a restart of the coordinator --------------------------------------------------------------------------------------


def test_after_a_restart_every_rank_has_a_full_lease_whatever_the_time_was(driver: Driver) -> None:
    zero, _ = in_job(driver, 2)
    driver.wait(9.0)
    after = restarted(driver, SETTINGS, now_s=-1e6)  # monotonic times begin anew
    after.settle()
    after.wait(LEASE_S - 0.1)
    renew(after, zero)
    assert after.get(GetCluster()).ranks == {0: 1, 1: 1}
    after.tick(0.1)
    after.settle()
    assert after.get(GetCluster()).ranks == {0: 1}, "the one that is not heard of is removed then"


def test_a_removal_is_stored_and_one_that_was_cut_short_is_done_again(driver: Driver) -> None:
    zero, _ = in_job(driver, 2)
    driver.wait(9.0)
    renew(driver, zero)
    driver.tick(1.0)
    for tell in list(driver.told):
        driver.answer(tell)
    driver.answer(driver.told[0])  # one server knows that rank 1 has left
    after = restarted(driver, SETTINGS)
    after.settle()
    after.wait(9.0)
    renew(after, zero)
    after.tick(1.0)
    after.settle()
    assert after.bodies(FenceRank)[-1][1].incarnation == 3
    assert after.get(GetCluster()).ranks == {0: 1}
    last = restarted(after, SETTINGS)
    last.settle()
    assert last.get(GetCluster()).ranks == {0: 1}


def remove_until_told(driver: Driver) -> None:
    """Let rank 1 of two be lost, up to where the servers are to hear of it."""
    zero, _ = in_job(driver, 2)
    driver.fenced = lambda server, order: came_to(3)
    driver.wait(6.0)
    renew(driver, zero)
    driver.wait(5.0)
    for tell in list(driver.told):
        driver.answer(tell)
    assert isinstance(driver.told[0].body, ResolveRank)


def test_a_worker_that_is_back_before_a_removal_that_was_cut_short_is_admitted(driver: Driver) -> None:
    """Servers know already that its rank has left; it did not say so itself."""
    remove_until_told(driver)
    after = restarted(driver, SETTINGS, now_s=3.0)
    after.fenced = lambda server, order: replace(came_to(3), has_left=server == "server-0")
    again = JoinJob(1, 2, None, 900, resume=True)
    with pytest.raises(Recovering):
        after.get(again)
    assert after.get(GetCluster()).ranks == {0: 1}
    after.ask(again)
    assert [order.rank for order in after.get(RenewLease(0, 1, 5)).orders] == [1]


def test_a_worker_that_is_back_where_no_server_heard_of_its_removal_goes_on_and_may_leave(driver: Driver) -> None:
    remove_until_told(driver)
    after = restarted(driver, SETTINGS, now_s=3.0)
    after.fenced = driver.fenced
    one = after.get(JoinJob(1, 2, None, 900, resume=True))
    assert (one.clock, one.is_resumed) == (4, True)
    leave(after, one, 1)
    with pytest.raises(JobMismatch, match="rank 1 has left it"):
        after.get(JoinJob(1, 2, None, 901, resume=True))

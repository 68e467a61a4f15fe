"""The coordinator's core: a worker goes on where its rank was (R15)."""

from typing import Any

import pytest

from driven import Driver, driven, join
from ps_proto.errors import InvalidRequest, JobMismatch
from ps_proto.orders import FenceRank, RankFenced, ResolveRank, StartJob
from ps_proto.requests import NEVER, Finished, GetCluster, JobJoined, JoinJob
from ps_proto.values import Async, Sync


@pytest.fixture
def driver() -> Driver:
    return driven()


def answers(driver: Driver, **by_server: RankFenced) -> None:
    """Let servers say of any rank how far it came."""
    driver.fenced = lambda server, order: by_server[server.replace("-", "_")]


def resumed(driver: Driver, mode: Any = None) -> JobJoined:
    joined: JobJoined = driver.get(JoinJob(0, 2, mode, nonce=500 + driver._requests, resume=True))
    return joined


def start_of(driver: Driver) -> ResolveRank:
    """The last order that settled a rank, the same for both servers."""
    (_, one), (_, other) = driver.bodies(ResolveRank)[-2:]
    assert one == other
    assert isinstance(one, ResolveRank)
    return one


def test_it_goes_on_after_the_last_step_that_any_server_heard_of_with_its_state(driver: Driver) -> None:
    join(driver, 0)
    fact = Finished(4, resume=b"four")
    answers(driver, server_0=RankFenced(Finished(3, resume=b"three"), 3, 4, finished=3), server_1=RankFenced(fact, 4, 4, finished=4))
    joined = resumed(driver)
    assert (joined.clock, joined.resume, joined.is_resumed) == (5, b"four", True)
    assert start_of(driver) == ResolveRank(1, 0, 2, fact, 5)


def test_a_step_that_was_pushed_in_part_is_redone_under_its_name(driver: Driver) -> None:
    join(driver, 0, mode=Async())
    fact = Finished(4, resume=b"four")
    answers(driver, server_0=RankFenced(fact, 5, 5, finished=4), server_1=RankFenced(fact, 4, 5, finished=4))
    assert resumed(driver).clock == 5
    driver.get(JoinJob(0, 2, None, nonce=1))
    assert start_of(driver).start == 6, "who does not go on begins above every name"


def test_a_state_that_one_server_alone_has_is_found(driver: Driver) -> None:
    join(driver, 0)
    answers(driver, server_0=RankFenced(Finished(4, resume=b"four"), 4, 4, finished=4), server_1=RankFenced(Finished(4), 4, 4, finished=4))
    assert resumed(driver).resume == b"four"
    assert start_of(driver).fact == Finished(4, resume=b"four")


def test_a_state_of_an_earlier_step_is_none(driver: Driver) -> None:
    """A plain connect above step 4 counts 5 and 6 as finished, and says nothing of its own before it dies."""
    join(driver, 0)
    fenced = RankFenced(Finished(4, resume=b"four"), 4, 6, finished=6)
    answers(driver, server_0=fenced, server_1=RankFenced(None, 4, 6, finished=4))
    joined = resumed(driver)
    assert (joined.clock, joined.resume, joined.is_resumed) == (7, b"", True)


@pytest.mark.parametrize("first_clock", [0, 12])
def test_a_rank_that_finished_nothing_begins(driver: Driver, first_clock: int) -> None:
    before = RankFenced(None, NEVER, first_clock - 1)
    answers(driver, server_0=before, server_1=before)
    first = resumed(driver, Sync())
    assert (first.clock, first.resume, first.is_resumed) == (first_clock, b"", False)
    fenced = RankFenced(None, first_clock, first_clock, finished=first_clock - 1)
    answers(driver, server_0=fenced, server_1=fenced)
    again = resumed(driver)
    assert (again.clock, again.resume, again.is_resumed) == (first_clock, b"", False)


def test_who_does_not_ask_for_it_gets_no_state(driver: Driver) -> None:
    join(driver, 0)
    fenced = RankFenced(Finished(4, resume=b"four"), 4, 4, finished=4)
    answers(driver, server_0=fenced, server_1=fenced)
    joined = join(driver, 0)
    assert (joined.clock, joined.resume, joined.is_resumed) == (5, b"", False)


def test_a_repeated_message_gets_the_same_state(driver: Driver) -> None:
    join(driver, 0)
    fenced = RankFenced(Finished(4, resume=b"four"), 4, 4, finished=4)
    answers(driver, server_0=fenced, server_1=fenced)
    asked = JoinJob(0, 2, Sync(), 77, resume=True)
    assert driver.get(asked) == driver.get(asked)
    assert len(driver.bodies(FenceRank)) == 4


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_worker_that_died_while_it_left_begins_no_other_job_when_it_is_started_again(driver: Driver, world_size: int) -> None:
    for rank in range(world_size):
        join(driver, rank, world_size)
    fact = Finished(4, resume=b"four")
    answers(driver, server_0=RankFenced(fact, 4, 4, has_left=True, finished=4), server_1=RankFenced(Finished(3), 4, 4, finished=3))
    others = "1" if world_size == 2 else "nobody"
    with pytest.raises(JobMismatch, match=f"has roster {others}: rank 0 has left it, but this worker asks for rank 0, to go on"):
        driver.get(JoinJob(0, world_size, Sync(), 7, resume=True))
    assert start_of(driver) == ResolveRank(1, 0, 2, fact, 5, has_left=True)
    assert (driver.get(GetCluster()).left, len(driver.bodies(StartJob))) == ((0,), 2)
    with pytest.raises(InvalidRequest, match="nonce is of a try to join that became rank 0, which has left"):
        driver.get(JoinJob(0, world_size, Sync(), 7, resume=True))

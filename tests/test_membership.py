"""Whom a server listens to: every fence, and that none of them ever goes down."""

from dataclasses import replace

import numpy as np
import pytest

from conversation import map_of
from ps_proto.errors import (
    InvalidRequest,
    MapBehind,
    NotOwner,
    ParameterServerError,
    Recovering,
    RolledBack,
    StaleIncarnation,
    StaleOrder,
    StaleTimeline,
)
from ps_proto.requests import Fence
from ps_server.shard.membership import CLOCK_MAX, Membership

GOOD = Fence(map_version=3, rank=1, incarnation=4, clock=7, timeline=2)


def member() -> Membership:
    membership = Membership("server-0")
    membership.timeline = 2
    membership.world_size = 2
    membership.take_map(map_of(3, "server-0", "server-1"))
    membership.fence_rank(1, 4)
    return membership


def test_a_request_of_the_newest_passes() -> None:
    member().check(GOOD)
    member().check(Fence(map_version=3, timeline=2))  # an observer's


@pytest.mark.parametrize(
    ("fence", "error"),
    [
        (replace(GOOD, timeline=1), RolledBack),
        (Fence(map_version=3, timeline=1), StaleTimeline),  # an observer's
        (replace(GOOD, timeline=3), Recovering),
        (replace(GOOD, map_version=2), NotOwner),
        (replace(GOOD, map_version=4), MapBehind),
        (replace(GOOD, incarnation=3), StaleIncarnation),
        (replace(GOOD, incarnation=5), Recovering),
        (replace(GOOD, rank=2, incarnation=0), InvalidRequest),
        (replace(GOOD, rank=-2, incarnation=0), InvalidRequest),
        (replace(GOOD, clock=-1), InvalidRequest),
        (replace(GOOD, clock=CLOCK_MAX + 1), InvalidRequest),
    ],
)
def test_any_other_is_refused(fence: Fence, error: type[ParameterServerError]) -> None:
    with pytest.raises(error):
        member().check(fence)


def test_a_server_without_a_map_answers_nothing() -> None:
    with pytest.raises(Recovering, match="no shard map"):
        Membership("server-0").check(Fence(map_version=0))


def test_a_server_without_a_job_knows_no_rank() -> None:
    membership = Membership("server-0")
    membership.take_map(map_of(1, "server-0"))
    with pytest.raises(InvalidRequest, match="rank"):
        membership.check(Fence(map_version=1, rank=0))


def test_only_a_newer_map_is_followed() -> None:
    membership = member()
    membership.take_map(map_of(2, "server-0"))
    assert membership.shard_map == map_of(3, "server-0", "server-1")
    membership.take_map(map_of(4, "server-1", "server-0"))
    assert membership.shard_map == map_of(4, "server-1", "server-0")


def test_ownership_follows_the_map() -> None:
    membership = member()
    ids = np.arange(1000, dtype=np.uint64)
    assert not membership.owns("user", ids)
    with pytest.raises(NotOwner) as refusal:
        membership.check_owned("user", ids)
    assert refusal.value.map_version == 3
    mine = np.array([id for id in ids if membership.owns("user", ids[id : id + 1])], np.uint64)
    assert 0 < mine.size < ids.size
    membership.check_owned("user", mine)
    membership.check_owned("user", ids[:0])


def test_a_server_that_the_map_does_not_name_owns_nothing() -> None:
    membership = member()
    membership.take_map(map_of(4, "server-1"))
    assert not membership.owns("user", np.zeros(1, np.uint64))
    assert not Membership("server-0").owns("user", np.zeros(1, np.uint64))


def test_orders_follow_the_newest_coordinator() -> None:
    membership = member()
    membership.check_order(2, 0)
    membership.check_order(2, 0)
    with pytest.raises(StaleOrder, match="of term 2; this order is of term 1"):
        membership.check_order(1, 0)


def test_orders_are_those_of_one_cluster() -> None:
    membership = member()
    membership.check_order(1, 0)  # it does not say of which
    membership.check_order(1, 77)
    membership.check_order(1, 0)
    with pytest.raises(StaleOrder, match="of cluster 77; this order is of cluster 78"):
        membership.check_order(9, 78)
    membership.check_order(1, 77)


def test_what_moves_clocks_is_of_this_timeline() -> None:
    membership = member()
    membership.check_timeline(2)
    with pytest.raises(StaleTimeline):
        membership.check_timeline(1)
    with pytest.raises(Recovering, match="timeline 3"):
        membership.check_timeline(3)


def test_an_incarnation_never_goes_down() -> None:
    membership = member()
    membership.fence_rank(1, 4)
    with pytest.raises(StaleIncarnation):
        membership.fence_rank(1, 3)
    membership.fence_rank(1, 6)
    with pytest.raises(StaleIncarnation):
        membership.check(GOOD)


def test_a_start_is_settled_once() -> None:
    membership = member()
    assert membership.settle(1, 4)
    assert not membership.settle(1, 4)
    membership.fence_rank(1, 5)
    with pytest.raises(StaleIncarnation):
        membership.settle(1, 4)
    assert membership.settle(1, 5)


def test_a_new_job_retires_the_ranks_of_the_old_one_but_not_who_is_just_starting() -> None:
    membership = member()
    membership.settle(1, 4)
    membership.fence_rank(0, 9)  # asks for the new job, and is not settled yet
    membership.retire()
    with pytest.raises(StaleIncarnation):
        membership.check(GOOD)
    membership.check(replace(GOOD, rank=0, incarnation=9))
    membership.fence_rank(1, 5)
    membership.check(replace(GOOD, incarnation=5))

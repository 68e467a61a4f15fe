"""Plans beside orders to servers: they wait, have tasks done, and are given up."""

import itertools
import math
from typing import Any

import pytest

from ps_proto.errors import InvalidRequest, ParameterServerError, Recovering, StorageFailed, Unreachable
from ps_proto.orders import InstallTable
from ps_proto.requests import Done, GetStats
from ps_proto.values import TableSpec
from ps_server.coordinator.plans import ORDER_AGAIN_S, Do, Each, Now, Plan, Plans, Wait
from ps_server.events import Effect, Refuse, Reply, Tell, Work
from samples import FENCE
from sharding.shard_map import Server

SERVERS = {name: Server(name, f"{name}:1") for name in ("server-0", "server-1")}
FULL = StorageFailed("/checkpoints", "no space left on device")
ORDER, OTHER = InstallTable(1, TableSpec("user", 4)), GetStats(FENCE)


class Lane:
    """Plans with a time that the test sets, and what they have asked for so far."""

    def __init__(self, numbers: "itertools.count[int] | None" = None) -> None:
        self.plans = Plans(SERVERS, numbers or itertools.count(1))
        self.now_s = 0.0
        self.effects: list[Effect] = []

    def add(self, request: int, plan: Plan, wait_s: float = 100.0) -> None:
        self.plans.add(request, request, wait_s, self.now_s, lambda: plan)
        self.turn()

    def turn(self, after_s: float = 0.0) -> None:
        """Do what the coordinator's core does in each turn."""
        self.now_s += after_s
        self.plans.advance(self.now_s, self.effects)
        self.plans.expire(self.now_s, self.effects)
        self.plans.give_orders_again(self.now_s, self.effects)
        self.plans.advance(self.now_s, self.effects)

    def worked(self, number: int, outcome: object) -> None:
        self.plans.on_worked(number, outcome, self.now_s, self.effects)
        self.turn()

    def answer(self, outcome: object, *servers: str) -> None:
        """Answer the last order that each of these servers (all, where none is named) was given."""
        for server in servers or SERVERS:
            number = [tell.order for tell in self.tells() if tell.server == server][-1]
            self.plans.on_answer(number, outcome, self.now_s, self.effects)
        self.turn()

    def tells(self) -> list[Tell]:
        return [effect for effect in self.effects if isinstance(effect, Tell)]

    def work(self) -> list[Work]:
        return [effect for effect in self.effects if isinstance(effect, Work)]

    def outcomes(self) -> dict[int, Any]:
        """What each request was told."""
        ends = [effect for effect in self.effects if isinstance(effect, Reply | Refuse)]
        assert len({end.request for end in ends}) == len(ends), "one answer to a request"
        return {end.request: end.body if isinstance(end, Reply) else end.error for end in ends}


def poll(heard: list[Any]) -> Plan:
    """Ask twice with a pause, and have a task done between an order and another."""
    heard.append((yield ORDER))
    heard.append((yield Wait(2.0)))
    heard.append((yield Do("publish")))
    heard.append((yield OTHER))
    return Done(9)


def test_a_plan_gives_orders_waits_and_has_tasks_done_in_its_order() -> None:
    lane, heard = Lane(), list[Any]()
    lane.add(1, poll(heard))
    lane.answer(Done(3))
    assert heard == [[Done(3), Done(3)]]
    assert lane.plans.due_s() == [2.0, 100.0, 100.0]  # the wait, the request, the plan
    lane.turn(1.9)
    assert lane.work() == []
    lane.turn(0.1)
    (work,) = lane.work()
    assert work.task == "publish"
    assert lane.plans.due_s() == [100.0, 100.0]
    assert len(lane.tells()) == 2
    lane.worked(work.number, "published")
    assert heard[1:] == [None, "published"]
    assert [tell.body for tell in lane.tells()] == [ORDER, ORDER, OTHER, OTHER]
    lane.answer(Done(4))
    assert lane.outcomes() == {1: Done(9)}


def test_orders_and_tasks_of_two_lanes_have_numbers_of_their_own_and_hear_of_no_other() -> None:
    numbers = itertools.count(7)
    lanes, heard = (Lane(numbers), Lane(numbers)), (list[Any](), list[Any]())
    for lane, said in zip(lanes, heard, strict=True):
        lane.add(1, poll(said))
        lane.answer(Done(3))
        lane.turn(2.0)
    taken = [tell.order for lane in lanes for tell in lane.tells()] + [work.number for lane in lanes for work in lane.work()]
    assert sorted(taken) == list(range(7, 13))
    (work,) = lanes[1].work()
    lanes[0].worked(work.number, "of the other lane")
    lanes[0].plans.on_answer(lanes[1].tells()[0].order, Done(), 0.0, lanes[0].effects)
    assert len(heard[0]) == 2
    lanes[1].worked(work.number, "published")
    assert heard[1][2] == "published"


def test_the_error_of_a_task_is_raised_in_the_plan_which_may_go_on() -> None:
    lane = Lane()

    def plan() -> Plan:
        try:
            yield Do("publish")
        except StorageFailed as error:
            yield Do("abandon")
            raise InvalidRequest("checkpoint", str(error), "possible") from None
        return Done()

    lane.add(1, plan())
    lane.worked(lane.work()[0].number, FULL)
    assert [work.task for work in lane.work()] == ["publish", "abandon"]
    assert lane.outcomes() == {}
    lane.worked(lane.work()[1].number, None)
    assert isinstance(lane.outcomes()[1], InvalidRequest)


def test_a_plan_that_lets_the_error_of_a_task_pass_ends_with_it_and_the_next_begins() -> None:
    lane, heard = Lane(), list[Any]()

    def plan() -> Plan:
        yield Do("publish")
        return Done()

    lane.add(1, plan())
    lane.add(2, poll(heard))
    assert lane.tells() == []  # one after another
    lane.worked(lane.work()[0].number, FULL)
    assert lane.outcomes() == {1: FULL}
    assert len(lane.tells()) == 2


def test_a_plan_may_go_on_after_a_server_has_refused_its_order() -> None:
    lane = Lane()

    def plan() -> Plan:
        try:
            yield ORDER
        except InvalidRequest:
            yield OTHER
        return Done(5)

    lane.add(1, plan())
    lane.answer(Unreachable("server-0", "server-0:1", 1.0, "it is gone"), "server-0")
    lane.answer(InvalidRequest("rank", "7", "less"), "server-1")
    assert [tell.body for tell in lane.tells()] == [ORDER, ORDER, OTHER, OTHER]
    lane.turn(2 * ORDER_AGAIN_S)
    assert len(lane.tells()) == 4  # the first order, which one server never took, is not given again
    lane.answer(Done())
    assert lane.outcomes() == {1: Done(5)}


@pytest.mark.parametrize("wanted", [Wait(50.0), Do("publish")])
def test_one_whose_time_is_up_while_no_server_is_asked_is_told_that_it_takes_longer(wanted: Wait | Do) -> None:
    lane = Lane()

    def plan() -> Plan:
        yield wanted
        return Done()

    lane.add(1, plan(), wait_s=5.0)
    lane.add(2, poll([]), wait_s=20.0)  # it waits behind the other, which nobody waits for any more then
    lane.turn(5.0)
    assert isinstance(lane.outcomes()[1], Recovering)
    assert "5.0 s" in str(lane.outcomes()[1])
    assert len(lane.tells()) == 2


def test_what_came_of_the_task_of_a_plan_that_was_given_up_is_not_taken_for_anothers() -> None:
    lane, heard = Lane(), list[Any]()

    def plan() -> Plan:
        heard.append((yield Do("publish")))
        return Done()

    lane.add(1, plan(), wait_s=5.0)
    lane.add(2, plan(), wait_s=50.0)
    lane.turn(5.0)
    first, second = lane.work()
    lane.worked(first.number, "late")
    assert heard == []
    lane.worked(second.number, "in time")
    assert heard == ["in time"]


def each(heard: list[Any]) -> Plan:
    """Give each server an order of its own; where one is silent, give the first alone another."""
    try:
        heard.append((yield Each({"server-1": ORDER, "server-0": OTHER}, 5.0)))
    except Unreachable as error:
        heard.append((yield Now()))
        heard.append(error)
        heard.append((yield Each({"server-0": ORDER}, 5.0)))
    return Done()


def test_each_server_can_be_given_its_own_order() -> None:
    lane, heard = Lane(), list[Any]()
    lane.add(1, each(heard))
    assert [(tell.server, tell.body) for tell in lane.tells()] == [("server-1", ORDER), ("server-0", OTHER)]
    lane.answer(Done(0), "server-0")
    lane.answer(Done(1), "server-1")
    assert heard == [[Done(1), Done(0)]]  # as the orders were named
    assert lane.outcomes() == {1: Done()}


def test_a_server_that_does_not_follow_its_own_order_in_time_is_named_in_the_plan() -> None:
    lane, heard = Lane(), list[Any]()
    lane.turn(100.0)
    lane.add(1, each(heard))
    lane.answer(Done(), "server-0")
    lane.answer(Recovering("server-1", "it loads"), "server-1")
    lane.turn(ORDER_AGAIN_S)
    assert [tell.server for tell in lane.tells()] == ["server-1", "server-0", "server-1"]
    assert 105.0 in lane.plans.due_s()
    lane.turn(5.0 - ORDER_AGAIN_S)
    assert heard[0] == 105.0
    assert str(heard[1]) == str(Unreachable("server-1", "server-1:1", 5.0, "server-1 cannot answer now: it loads."))
    lane.answer(Done(7), "server-1")  # too late
    assert lane.tells()[-1].server == "server-0"
    lane.answer(Done(8), "server-0")
    assert heard[2:] == [[Done(8)]]
    assert lane.outcomes() == {1: Done()}


def test_the_time_is_told_at_once_also_at_the_start() -> None:
    lane = Lane()
    lane.turn(3.0)

    def plan() -> Plan:
        begun_s = yield Now()
        yield Wait(2.0)
        return Done(int((yield Now()) - begun_s))

    lane.add(1, plan())
    lane.turn(2.0)
    assert lane.outcomes() == {1: Done(2)}


# --- given up ---------------------------------------------------------------------------------------------------------------


def is_closed(said: list[str]) -> Plan:
    try:
        yield ORDER
    finally:
        said.append("closed")
    return Done()


def test_a_plan_for_all_comes_first_and_refuses_those_whose_plan_it_ends() -> None:
    lane, said, heard = Lane(), list[str](), list[Any]()
    lane.add(1, is_closed(said))
    lane.plans.add(1, 2, 100.0, 0.0, lambda: is_closed(said))  # shares the plan at work
    lane.add(3, poll([]))
    lane.plans.add_for_all("map", poll(heard), "the servers are taking a new shard map")
    lane.turn()
    assert said == ["closed"]
    refusal = lane.outcomes()
    assert sorted(refusal) == [1, 2]
    assert str(refusal[1]) == "The coordinator cannot answer now: the servers are taking a new shard map."
    assert isinstance(refusal[2], Recovering)
    assert len(lane.tells()) == 4  # the plan for all has begun, ahead of request 3
    lane.answer(Done(1))
    lane.turn(2.0)
    lane.worked(lane.work()[0].number, None)
    lane.answer(Done(2))
    assert len(heard) == 4
    assert len(lane.tells()) == 8  # now request 3 has its turn


def test_of_two_plans_for_all_the_later_one_of_the_same_key_counts() -> None:
    lane, said = Lane(), list[str]()
    lane.plans.add_for_all("rollback", is_closed(said), "it goes back")
    lane.plans.add_for_all("rollback", poll([]), "it goes back")
    lane.turn()
    assert len(lane.tells()) == 2
    lane.answer(Done(1))
    lane.plans.add_for_all("rollback", is_closed(said), "it goes back")
    lane.turn()
    lane.answer(Done(2))
    assert said == ["closed"]
    lane.turn(100.0)
    assert lane.work() == []  # the one that was at its Wait never goes on


def test_a_lane_can_be_given_up_from_outside_with_an_error_of_its_own() -> None:
    lane, said = Lane(), list[str]()
    error: ParameterServerError = FULL
    lane.plans.give_up(error)  # nothing runs
    lane.add(1, is_closed(said))
    lane.add(2, is_closed(said))
    lane.plans.give_up(error)
    lane.turn()
    assert lane.outcomes() == {1: FULL}
    lane.answer(Done())
    assert lane.outcomes() == {1: FULL, 2: Done()}


def test_all_plans_of_a_lane_can_be_ended_at_once() -> None:
    lane, said = Lane(), list[str]()
    lane.add(1, is_closed(said))
    lane.add(2, is_closed(said))
    assert [lane.plans.has(key) for key in (1, 2, 3)] == [True, True, False]
    busy = Recovering("The coordinator", "it goes back")
    lane.plans.clear(FULL, busy)
    lane.turn()
    assert lane.outcomes() == {1: FULL, 2: busy}
    assert not lane.plans.has(2)


def test_a_plan_without_a_deadline_is_due_at_no_time_and_hears_what_is_refused_for_good() -> None:
    lane = Lane()
    lane.add(1, poll([]), wait_s=math.inf)
    assert lane.plans.due_s() == []
    lane.answer(InvalidRequest("rank", "7", "less"), "server-1")
    assert isinstance(lane.outcomes()[1], InvalidRequest)

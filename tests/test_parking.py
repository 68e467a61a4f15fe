"""Requests that wait."""

from collections.abc import Callable

import pytest

from ps_proto.errors import Overloaded, ParameterServerError, RowsUnset, StaleTimeline
from ps_proto.requests import Done, Fence
from ps_server.events import Body, Refuse, Reply
from ps_server.shard import parking as parking_module
from ps_server.shard.counters import Counters
from ps_server.shard.parking import Parking, Wait

FENCE = Fence(map_version=1)


class Gate:
    """Waits until it is open; counts how often it was looked at."""

    def __init__(self) -> None:
        self.is_open = False
        self.looked = 0

    def attempt(self) -> Body | None:
        self.looked += 1
        return Done(7) if self.is_open else None

    def wait(self, wait_s: float = 10.0) -> Wait:
        return Wait(FENCE, wait_s, self.attempt, lambda after_s: RowsUnset("user", 1, after_s))


def parked(check: Callable[[Fence], None] = lambda fence: None) -> tuple[Parking, Counters]:
    counters = Counters()
    return Parking("server-0", counters, check), counters


def test_what_can_be_answered_is_answered_at_once() -> None:
    parking, counters = parked()
    gate = Gate()
    gate.is_open = True
    assert parking.answer_or_park(1, gate.wait(), 0.0) == Done(7)
    assert (len(parking), counters.waits) == (0, 0)
    assert parking.deadline_s() is None


def test_what_waits_is_answered_once_it_may_be() -> None:
    parking, counters = parked()
    gate = Gate()
    assert parking.answer_or_park(1, gate.wait(), 5.0) is None
    assert parking.wake(6.0) == []
    gate.is_open = True
    assert parking.wake(7.5) == [Reply(1, Done(7))]
    assert parking.wake(8.0) == []
    assert (counters.waits, counters.wait_s, counters.waits_timed_out) == (1, 2.5, 0)


def test_a_wait_ends_at_its_deadline_and_not_before() -> None:
    parking, counters = parked()
    parking.answer_or_park(1, Gate().wait(10.0), 5.0)
    assert parking.deadline_s() == 15.0
    assert parking.wake(14.9) == []
    (refusal,) = parking.wake(15.0)
    assert isinstance(refusal, Refuse)
    assert isinstance(refusal.error, RowsUnset)
    assert refusal.error.after_s == 10.0
    assert (len(parking), counters.waits_timed_out, counters.refused) == (0, 1, 1)


def test_what_may_be_answered_at_the_deadline_is() -> None:
    parking, _ = parked()
    gate = Gate()
    parking.answer_or_park(1, gate.wait(1.0), 0.0)
    gate.is_open = True
    assert parking.wake(2.0) == [Reply(1, Done(7))]


def test_time_alone_looks_only_at_those_whose_time_is_up() -> None:
    parking, _ = parked()
    gates = [Gate() for _ in range(3)]
    for request, (gate, wait_s) in enumerate(zip(gates, (9.0, 4.0, 6.0), strict=True)):
        parking.answer_or_park(request, gate.wait(wait_s), 0.0)
    assert parking.expire(3.9) == []
    gates[2].is_open = True
    effects = parking.expire(6.0)
    assert [type(effect) for effect in effects] == [Refuse, Reply]
    assert [gate.looked for gate in gates] == [1, 2, 2]
    assert parking.deadline_s() == 9.0


def test_a_number_that_is_used_again_waits_its_own_time() -> None:
    parking, _ = parked()
    parking.answer_or_park(1, Gate().wait(4.0), 0.0)
    parking.drop(1)
    parking.answer_or_park(1, Gate().wait(9.0), 0.0)
    assert parking.expire(4.0) == []
    assert parking.deadline_s() == 9.0


def test_deadlines_of_those_that_were_answered_do_not_pile_up() -> None:
    parking, _ = parked()
    parking.answer_or_park(0, Gate().wait(), 0.0)
    for request in range(1, 20_000):
        parking.answer_or_park(request, Gate().wait(), 0.0)
        parking.drop(request)
        assert parking.deadline_s() == 10.0
    assert len(parking._due) <= parking_module.DUE_GONE_MAX + 2


def test_a_wait_of_no_time_is_refused_in_the_next_look() -> None:
    parking, _ = parked()
    parking.answer_or_park(1, Gate().wait(0.0), 3.0)
    assert [type(effect) for effect in parking.wake(3.0)] == [Refuse]


def test_the_next_deadline_is_the_earliest() -> None:
    parking, _ = parked()
    for request, wait_s in ((1, 9.0), (2, 4.0), (3, 6.0)):
        parking.answer_or_park(request, Gate().wait(wait_s), 0.0)
    assert parking.deadline_s() == 4.0
    parking.drop(2)
    assert parking.deadline_s() == 6.0


def test_answers_come_in_the_order_of_the_questions() -> None:
    parking, _ = parked()
    gates = [Gate() for _ in range(4)]
    for request, gate in enumerate(gates):
        parking.answer_or_park(request, gate.wait(), 0.0)
    gates[1].is_open = True
    assert parking.wake(1.0) == [Reply(1, Done(7))]
    for gate in gates:
        gate.is_open = True
    assert parking.wake(2.0) == [Reply(0, Done(7)), Reply(2, Done(7)), Reply(3, Done(7))]


def test_one_that_nobody_waits_for_is_forgotten() -> None:
    parking, _ = parked()
    gate = Gate()
    parking.answer_or_park(1, gate.wait(), 0.0)
    parking.drop(1)
    parking.drop(1)
    gate.is_open = True
    assert parking.wake(1.0) == []


def test_a_fence_that_falls_behind_while_it_waits_is_refused() -> None:
    def check(fence: Fence) -> None:
        raise StaleTimeline(1, fence.timeline)

    parking, counters = parked(check)
    gate = Gate()
    parking.answer_or_park(1, gate.wait(), 0.0)
    gate.is_open = True
    (refusal,) = parking.wake(1.0)
    assert isinstance(refusal, Refuse)
    assert isinstance(refusal.error, StaleTimeline)
    assert (gate.looked, counters.refused) == (1, 1)


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking_module, "PARKED_MAX", 2)
    parking, _ = parked()
    gate = Gate()
    for request in (1, 2):
        parking.answer_or_park(request, gate.wait(), 0.0)
    with pytest.raises(Overloaded) as refusal:
        parking.answer_or_park(3, gate.wait(), 0.0)
    assert (refusal.value.waiting, refusal.value.limit, len(parking)) == (2, 2, 2)


def test_one_that_meets_a_bug_does_not_stop_the_others_for_ever() -> None:
    def bug() -> Body | None:
        if len(parking) == 2:  # the first look parks it
            raise MemoryError
        return None

    def give_up(after_s: float) -> ParameterServerError:
        return RowsUnset("user", 1, after_s)

    parking, _ = parked()
    gate = Gate()
    parking.answer_or_park(1, Wait(FENCE, 10.0, bug, give_up), 0.0)
    parking.answer_or_park(2, gate.wait(), 0.0)
    parking.answer_or_park(3, gate.wait(), 0.0)
    with pytest.raises(MemoryError):
        parking.wake(1.0)
    gate.is_open = True
    assert parking.wake(2.0) == [Reply(2, Done(7)), Reply(3, Done(7))]

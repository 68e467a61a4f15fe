"""A script that is started again, on its way to where it was: what it leaves out, and when it is there."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from lives import assert_lives_again, lived
from ps_proto.errors import InvalidRequest
from ps_worker.resume.position import OVER, Passes, Position
from ps_worker.resume.replay import Replay
from ps_worker.session import Session

Log = Callable[..., None]


class Reading:
    """A pass that stands somewhere."""

    is_at_end = is_used = False

    def __init__(self, place: int = 0) -> None:
        self.place = place

    def position(self) -> Position:
        return {"place": self.place}


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


# --- loops over steps ------------------------------------------------------------------------------------------------------------


def test_loops_over_steps_go_on_where_they_were() -> None:
    def script(session: Session, log: Log) -> None:
        for epoch in range(3):
            for step in session.steps(4):
                log(epoch, step, random.random())
                session.client.end_step()
            session.barrier()
        log("behind")

    assert_lives_again(script)


def test_a_loop_that_was_broken_off() -> None:
    def script(session: Session, log: Log) -> None:
        for step in session.steps(10):
            log("first", step)
            session.client.end_step()
            if step == 3:
                break
        for step in session.steps(3):
            log("second", step)
            session.client.end_step()

    assert_lives_again(script)


def test_a_loop_without_steps_in_it_is_refused() -> None:
    def script(session: Session, log: Log) -> None:
        for _ in session.steps(2):
            pass

    with pytest.raises(InvalidRequest, match="without a step in turn 0"):
        lived(script)


@pytest.mark.parametrize("count", [-1, True, 1.5])
def test_a_count_of_steps_is_a_whole_number(count: Any) -> None:
    def script(session: Session, log: Log) -> None:
        session.steps(count)

    with pytest.raises(InvalidRequest, match="count is"):
        lived(script)


# --- barriers, and what is in the rows -------------------------------------------------------------------------------------------


def test_barriers_on_the_way_are_passed_at_once_and_those_behind_it_have_their_numbers() -> None:
    def script(session: Session, log: Log) -> None:
        session.barrier()
        session.barrier()
        for _ in session.steps(3):
            session.barrier()
            session.client.end_step()
        session.barrier()

    whole = lived(script)
    assert [number for number, _ in whole.client.asked] == [0, 1, 2, 3, 4, 5]
    for step, first in ((1, 3), (2, 4), (3, 5)):
        again = lived(script, step, whole.states[step])
        assert [number for number, _ in again.client.asked] == list(range(first, 6))


def test_a_script_without_a_known_loop_is_there_with_its_first_step(caplog: pytest.LogCaptureFixture) -> None:
    def script(session: Session, log: Log) -> None:
        session.barrier()
        for _ in range(2):  # pretrained rows may come in many parts
            session.client.replay.leaves_out("client.assign")
        log(session.is_replaying)
        for _ in range(session.client.clock, 3):
            session.client.end_step()
            log(session.is_replaying)
        session.barrier()

    whole = lived(script)
    assert [number for number, _ in whole.client.asked] == [0, 1]
    caplog.clear()
    again = lived(script, 2, whole.states[2])
    assert [said for _, said in again.log] == [True, False]
    assert [number for number, _ in again.client.asked] == [1]
    assert caplog.messages == [
        "Rank 0 resumes at step 2.",
        "client.assign is left out: this script resumes at step 2, and the servers' rows have it already.",
    ]


def test_a_step_on_the_way_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def script(session: Session, log: Log) -> None:
        session.client.end_step()
        for _ in session.steps(3):
            session.client.end_step()

    again = lived(script, 2, lived(script).states[2])
    assert again.client.clock == 4
    assert "Step 2 is made before the place where this script was is reached again" in caplog.text


def test_a_script_that_did_not_start_again_leaves_out_nothing() -> None:
    replay = Replay()
    assert replay.is_over
    assert not replay.leaves_out("client.assign")
    assert not replay.passes_barrier()


# --- registered objects, and what is captured ---------------------------------------------------------------------------------


class Numbers:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, object]:
        return {"numbers": list(range(self.count))}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.count = len(state["numbers"])


def test_what_is_too_large_is_named() -> None:
    def script(session: Session, log: Log) -> None:
        session.register("small", Numbers(10))
        session.register("large", Numbers(20_000))
        session.client.end_step()

    with pytest.raises(
        InvalidRequest, match=r"\d\d\d,\d\d\d bytes, \d\d\d,\d\d\d of them for what is registered as 'large', but must be at"
    ):
        lived(script)


def test_objects_have_their_state_where_the_training_goes_on() -> None:
    def script(session: Session, log: Log) -> None:
        numbers = Numbers(5)
        session.register("numbers", numbers)
        if session.is_resumed:
            assert numbers.count == 5 + session.client.clock
        numbers.count = 5
        for _ in session.steps(4):
            log(numbers.count)
            session.client.end_step()
            numbers.count += 1  # as a scheduler that is stepped after the optimizer

    assert_lives_again(script)


# --- passes ------------------------------------------------------------------------------------------------------------------------


def test_outermost_passes_are_known_by_their_number() -> None:
    clock = Clock()
    before = Passes(clock)
    for steps in (2, 0, 1):  # the second is an evaluation
        one = Reading()
        assert before.begin(one) is None
        clock.now += steps
        before.end(one)
    assert before.begin(Reading(7)) is None
    clock.now += 1
    after = Passes(clock, before.state())
    evaluation = Reading()
    assert after.begin(Reading()) == OVER
    assert after.begin(evaluation) is None
    after.end(evaluation)
    assert after.begin(Reading()) == OVER
    assert after.is_behind
    fourth = Reading(8)
    assert after.begin(fourth) == {"place": 7}
    assert not after.is_behind
    assert after.state()["over"] == before.state()["over"]
    after.end(fourth)
    assert after.begin(Reading()) is None
    assert after.state()["over"] == [(True, 1), (False, 1), (True, 2)]


def test_passes_inside_a_pass_go_on_with_it() -> None:
    clock = Clock()
    before = Passes(clock)
    before.begin(Reading(1))
    before.begin(Reading(2))
    clock.now += 1
    before.begin(Reading(3))  # without a step since
    after = Passes(clock, before.state())
    outer, inner = Reading(), Reading()
    assert after.begin(outer) == {"place": 1}
    assert after.begin(inner) == {"place": 2}
    assert after.begin(Reading()) is None
    after.end(outer)  # and what is inside it
    after.end(inner)
    assert after.state() == {"over": [(True, 1)], "open": []}


def test_inside_a_pass_that_is_made_again_nothing_goes_on() -> None:
    clock = Clock()
    before = Passes(clock)
    evaluation = Reading()
    before.begin(evaluation)
    before.end(evaluation)
    before.begin(Reading(1))
    before.begin(Reading(2))
    clock.now += 1
    after = Passes(clock, before.state())
    again, inner, outer = Reading(), Reading(), Reading()
    assert after.begin(again) is None
    assert after.begin(inner) is None
    after.end(again)
    assert after.begin(outer) == {"place": 1}

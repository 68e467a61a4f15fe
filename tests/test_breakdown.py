import pytest

from ps_worker.profiling.breakdown import Breakdown, Row
from ps_worker.profiling.server_times import Split
from ps_worker.profiling.steps import StepTimes
from ps_worker.profiling.stopwatch import Carried, Ended
from ps_worker.profiling.taps import AWAIT, BESIDE, CALLS

OWN, OTHER = 1, 2


def ended(name: str, kind: str, thread: int, own_s: float, took_s: float | None = None) -> Ended:
    return Ended(name, kind, thread, 10.0, 10.0 + (own_s if took_s is None else took_s), own_s)


def test_calls_are_divided_as_the_servers_say() -> None:
    spans = [ended(CALLS, "pull", OWN, 4.0), ended("pull", "pull", OWN, 1.0, 5.0), ended(CALLS, "push", OWN, 2.0)]
    step = StepTimes.of(0.0, 16.0, spans, [], OWN)
    rows = Breakdown.of([step], {"pull": Split(0.5, 0.25)}).rows
    assert rows["pulls.waiting"].mean_s == 2.0
    assert rows["pulls.servers"].mean_s == 1.0
    assert rows["pulls.wire"].mean_s == 1.0
    assert rows["pushes.wire"].mean_s == 2.0  # the servers said nothing of pushes
    assert rows["worker.ids"].mean_s == 1.0
    assert rows["compute"] == Row(9.0, 9.0, 9.0, 9 / 16)


def test_what_ran_beside_the_training_is_not_the_steps_time_and_says_how_much_was_waited_for() -> None:
    beside = [ended(CALLS, "pull", OTHER, 3.0), ended(BESIDE, "pull", OTHER, 1.0, 4.0)]
    step = StepTimes.of(0.0, 8.0, [*beside, ended(AWAIT, "pull", OWN, 1.0)], [], OWN)
    seen = Breakdown.of([step, step], {"pull": Split(0.5, 0.0)})
    assert seen.beside_s == {"pull": 4.0}
    assert seen.hidden == {"pull": 0.75}
    # Of what was waited for, as much is the client's own work as of what ran beside: a quarter. The rest is divided as calls are.
    assert [seen.rows[f"pulls.{part}"].mean_s for part in ("waiting", "servers", "wire", "client")] == [0.375, 0.0, 0.375, 0.25]
    assert seen.rows["compute"].mean_s == 7.0


def test_no_less_than_nothing_is_hidden() -> None:
    """What was waited for may have begun before what ran beside: the one thread was kept from running."""
    step = StepTimes.of(0.0, 8.0, [ended(BESIDE, "pull", OTHER, 1.0), ended(AWAIT, "pull", OWN, 2.0)], [], OWN)
    assert Breakdown.of([step], {}).hidden == {"pull": 0.0}


def test_mean_and_percentiles_are_over_steps_and_bytes_are_counted() -> None:
    call = Carried("pull", "server-0", OWN, 0.0, 1.0, 800, 6400)
    steps = [StepTimes.of(0.0, float(seconds), [], [call] * (seconds % 2), OWN) for seconds in range(1, 102)]
    seen = Breakdown.of(steps, {})
    assert (seen.steps, seen.rows["step"]) == (101, Row(51.0, 51.0, 100.0, 1.0))
    assert (seen.sent_bytes, seen.received_bytes) == pytest.approx((800 * 51 / 101, 6400 * 51 / 101))

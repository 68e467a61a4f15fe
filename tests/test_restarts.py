"""How often a process is started again, and after which pause."""

from ps_worker.restarts import Restarts


def test_a_process_is_started_again_as_often_as_it_may_be_with_growing_pauses() -> None:
    restarts = Restarts(7)
    assert [restarts.pause_s() for _ in range(9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, None, None]


def test_an_end_that_is_not_its_fault_costs_nothing() -> None:
    restarts = Restarts(2)
    assert [restarts.pause_s(is_free) for is_free in (True, False, True, True, False, True, False)] == [0.0, 0.5, 0.0, 0.0, 1.0, 0.0, None]


def test_without_a_budget_nothing_is_started_again() -> None:
    assert [Restarts(0).pause_s(is_free) for is_free in (False, True)] == [None, None]


def test_a_long_life_does_not_overflow() -> None:
    restarts = Restarts(10_000)
    assert {restarts.pause_s() for _ in range(10_000)} == {0.5, 1.0, 2.0, 4.0, 8.0}

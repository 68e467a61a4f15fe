import pytest

from ps_proto import errors
from ps_worker.retry import Backoff, is_passing, is_refusal, is_waiting


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.5, longest_s=3.0)
    assert [backoff.pause_s(attempt, lambda: 1.0) for attempt in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_pause_is_between_half_and_all_of_its_length() -> None:
    backoff = Backoff(first_s=0.5, longest_s=8.0)
    assert backoff.pause_s(2, lambda: 0.0) == 1.0
    assert backoff.pause_s(2, lambda: 0.5) == 1.5
    assert backoff.pause_s(2, lambda: 1.0) == 2.0


def test_a_pause_after_ever_so_many_attempts_is_still_the_longest() -> None:
    assert Backoff().pause_s(100_000, lambda: 1.0) == 1.0


def test_no_error_is_of_two_kinds() -> None:
    kinds = {"passing": is_passing, "waiting": is_waiting, "refusal": is_refusal}
    samples: dict[str, list[errors.ParameterServerError]] = {
        "passing": [
            errors.Unreachable("server-0", "host:1", 1.0, "timed out"),
            errors.Recovering("server-0", "it starts"),
            errors.Overloaded("server-0", 5, 5),
            errors.MapBehind("server-0", 1, 2),
        ],
        "waiting": [
            errors.StalenessTimeout(3, 1, 0, 1, 10.0),
            errors.RowsUnset("user", 3, 10.0),
            errors.BarrierTimeout(0, "1", 10.0),
        ],
        "refusal": [
            errors.InvalidRequest("dim", "3", "4"),
            errors.UnknownTable("user"),
            errors.TableFull("user", 5),
            errors.RequestTooLarge("server-0", 6, 5),
        ],
        "none": [
            errors.NotOwner("server-0", 2),
            errors.StepPassed("server-0", 1, 2),
            errors.StaleIncarnation(0, 2, 1),
            errors.InternalError("server-0", "abc", "a bug"),
            errors.OptimizerFailed("server-0", "user", "mine", "mine.py, line 3: ValueError: no"),
        ],
    }
    for kind, members in samples.items():
        for error in members:
            assert [name for name, holds in kinds.items() if holds(error)] == ([kind] if kind in kinds else []), repr(error)


@pytest.mark.parametrize("uniform", [0.0, 0.3, 0.999])
def test_pauses_never_shrink_from_one_attempt_to_the_next(uniform: float) -> None:
    pauses = [Backoff().pause_s(attempt, lambda: uniform) for attempt in range(40)]
    assert pauses == sorted(pauses)

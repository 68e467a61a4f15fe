"""Spans, with a clock that the test moves on."""

import threading

import pytest

from ps_worker.profiling import stopwatch
from ps_worker.profiling.stopwatch import Stopwatch
from ticking import Ticking


@pytest.fixture
def clock() -> Ticking:
    return Ticking()


@pytest.fixture
def watch(clock: Ticking) -> Stopwatch:
    return Stopwatch(clock)


def owned(watch: Stopwatch) -> list[tuple[str, str, float]]:
    return [(span.name, span.kind, span.own_s) for span in watch.take()[0]]


def test_a_span_within_another_counts_once(clock: Ticking, watch: Stopwatch) -> None:
    with watch.span("outer"):
        clock.pass_s(1.0)
        with watch.span("inner", "pull"):
            clock.pass_s(0.5)
            with watch.span("innermost", "push"):
                clock.pass_s(0.25)
        with watch.span("inner", "end"):
            clock.pass_s(0.125)
        clock.pass_s(2.0)
    # The kind of the first within, where a span has none of its own.
    assert owned(watch) == [("innermost", "push", 0.25), ("inner", "pull", 0.5), ("inner", "end", 0.125), ("outer", "pull", 3.0)]
    assert owned(watch) == []  # taken


def test_a_span_that_ends_in_an_error_is_one_too(clock: Ticking, watch: Stopwatch) -> None:
    def fail() -> None:
        with watch.span("outer"):
            clock.pass_s(1.0)
            with watch.span("inner"):
                raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert owned(watch) == [("inner", "", 0.0), ("outer", "", 1.0)]


def test_one_span_may_be_entered_within_itself_and_again(clock: Ticking, watch: Stopwatch) -> None:
    span = watch.span("again")
    for _ in range(2):
        with span:
            clock.pass_s(1.0)
            with span:
                clock.pass_s(0.5)
    assert [own_s for _, _, own_s in owned(watch)] == [0.5, 1.0, 0.5, 1.0]


def test_spans_of_another_thread_are_within_none_of_this_one(clock: Ticking, watch: Stopwatch) -> None:
    def beside() -> None:
        with watch.span("beside"):
            clock.pass_s(4.0)

    with watch.span("outer"):
        thread = threading.Thread(target=beside, name="other")
        thread.start()
        thread.join()
        clock.pass_s(1.0)
    beside_it, outer = watch.take()[0]
    assert (beside_it.own_s, outer.own_s) == (4.0, 5.0)  # the thread of the training waited for the other one
    assert (outer.thread, watch.threads[beside_it.thread]) == (watch.thread, "other")


def test_only_the_thread_of_a_profile_is_looked_at(clock: Ticking, watch: Stopwatch) -> None:
    nothing = stopwatch.span("plan")
    assert nothing is stopwatch.span("pool")  # off: nothing is made, nothing recorded
    stopwatch.begin(watch)
    try:
        with stopwatch.span("plan"):
            clock.pass_s(0.5)
        others: list[object] = []
        thread = threading.Thread(target=lambda: others.extend([stopwatch.span("plan"), stopwatch.is_watched()]))
        thread.start()
        thread.join()
        assert others == [nothing, False]
        assert stopwatch.is_watched()
    finally:
        stopwatch.end(watch)
    assert stopwatch.span("plan") is nothing
    assert owned(watch) == [("plan", "", 0.5)]

"""What a client's threads tell each other while one of them waits."""

import logging
from collections.abc import Iterator

import pytest

from ps_proto.errors import StalenessTimeout, UnfinishedPush
from ps_worker.asking import Operation, Pause
from ps_worker.connection import _on_wait
from ps_worker.driver import Driver, Lane
from test_driver import FakeTransport

WAITS = StalenessTimeout(clock=7, min_clock=3, bound=4, rank=0, after_s=10.0)


@pytest.fixture
def pushes() -> Iterator[Lane]:
    driver = Driver(FakeTransport())
    lane = Lane(driver, "push")
    yield lane
    lane.close()
    driver.close()


def fails() -> Operation[None]:
    yield Pause(0.0)
    raise UnfinishedPush(3, 1)


def test_a_wait_ends_with_the_error_of_a_queued_push_that_nobody_heard_and_is_told_once(
    pushes: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    """A rank may wait for its own step, whose push has failed beside it."""
    heard, unheard = pushes.submit(fails()), pushes.submit(fails())
    with pytest.raises(UnfinishedPush):
        heard.result()
    pushes.wait()
    with pytest.raises(UnfinishedPush):
        _on_wait(pushes, WAITS)
    with caplog.at_level(logging.WARNING, "rowstead"):
        _on_wait(pushes, WAITS)
    assert caplog.messages == ["Step 7 waits for rank 0, for 10 s so far."]
    with pytest.raises(UnfinishedPush):
        unheard.result()

"""Wait for something to become true, without guessing how long it takes."""

import time
from collections.abc import Callable

POLL_S = 0.02


def poll_until(predicate: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Return as soon as `predicate()` holds; after `timeout_s` raise AssertionError."""
    deadline_s = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline_s, f"not so within {timeout_s:g} s"
        time.sleep(POLL_S)

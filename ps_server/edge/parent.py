"""End with the process that started this one, also when that one was killed with -9."""

import asyncio
import os
from collections.abc import Callable

POLL_S = 0.5


async def wait_for_exit_of(parent: int, parent_now: Callable[[], int] = os.getppid, poll_s: float = POLL_S) -> None:
    """Return once this process's parent is not `parent` any more: an orphan is given to another process.

    It asks again and again, because both ways to be told fail: Linux's PR_SET_PDEATHSIG follows the *thread* that started us, and the
    writing end of a pipe stays open in every child that the parent forks.
    """
    while parent_now() == parent:  # noqa: ASYNC110  # no event tells of this, see above
        await asyncio.sleep(poll_s)

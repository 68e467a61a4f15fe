"""An orphan notices: its parent's process id is not the one that it was told."""

import asyncio

from ps_server.edge.parent import wait_for_exit_of


async def test_the_wait_ends_once_the_parent_is_another_one() -> None:
    seen = iter([7, 7, 1])
    await asyncio.wait_for(wait_for_exit_of(7, parent_now=lambda: next(seen), poll_s=0.0), timeout=10)
    assert next(seen, None) is None  # asked three times


async def test_a_parent_that_went_before_the_first_look_is_noticed_at_once() -> None:
    await asyncio.wait_for(wait_for_exit_of(7, parent_now=lambda: 1, poll_s=3600.0), timeout=10)

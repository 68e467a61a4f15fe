"""Work in a thread of its own, awaited by the event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


def run_aside(name: str, work: Callable[[], None]) -> "asyncio.Future[None]":
    """Run `work` in a thread; return a future of the running loop that ends as it does.

    The thread is a daemon, since a stop must not wait for it; nothing cancels it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(None)

    def run() -> None:
        outcome: BaseException | None = None
        try:
            work()
        except BaseException as error:  # the thread's top: whoever waits gets it
            outcome = error
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done

"""A profile of a whole script, as ROWSTEAD_PROFILE or `rowstead launch --profile` ask for it: printed when its client closes."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ps_proto.errors import InvalidRequest

if TYPE_CHECKING:
    from ps_worker.client import Client

VARIABLE = "ROWSTEAD_PROFILE"
ON, OFF = "1", "0"


def is_profile_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether the variable says so; empty counts as not set. InvalidRequest for what is neither 0 nor 1."""
    value = environment.get(VARIABLE) or OFF
    if value not in (ON, OFF):
        raise InvalidRequest(VARIABLE, repr(value), f"{ON}, for a profile of each worker, or {OFF}")
    return value == ON


def profile_until_closed(client: "Client") -> None:
    """Profile a client with a rank until it closes, then print the report to stderr. Where a profile runs in this thread, do nothing."""
    from ps_worker.profiling.profile import Profile
    from ps_worker.profiling.stopwatch import is_watched

    if is_watched():
        return
    profile = Profile(client)
    profile.start()

    def ending(end: Callable[[], None], asks_servers: bool) -> Callable[[], None]:
        def ended() -> None:
            for name in ("close", "disconnect"):
                vars(client).pop(name, None)
            try:
                profile.stop(asks_servers)
                with suppress(OSError, ValueError):  # nobody reads stderr, or the script has closed it
                    print(f"{profile.report()}\n", end="", file=sys.stderr)  # one write: ranks share the terminal
            finally:  # also after a Ctrl-C while the servers are asked
                end()

        return ended

    vars(client)["close"] = ending(client.close, asks_servers=True)
    vars(client)["disconnect"] = ending(client.disconnect, asks_servers=False)

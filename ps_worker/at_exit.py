"""What happens to connections that are still open when the interpreter ends."""

import concurrent.futures.thread  # noqa: F401  # what is registered last runs first: its hook, which waits for threads, must be there before ours
import os
import threading
import weakref
from typing import Protocol


class Disconnectable(Protocol):
    """What holds threads and connections."""

    def disconnect(self) -> None:
        """End what is under way, and both."""
        ...


_owners: "weakref.WeakKeyDictionary[Disconnectable, int]" = weakref.WeakKeyDictionary()  # -> the process that made it


def disconnect_at_exit(connection: Disconnectable) -> None:
    """End it before the interpreter waits for its threads, unless it is gone by then."""
    _owners[connection] = os.getpid()


def _disconnect_all() -> None:
    """End what is under way of clients that nobody closed, so that the interpreter can end; none leaves its job."""
    for connection, owner in list(_owners.items()):
        if owner == os.getpid():  # in a fork, a DataLoader's child say, neither its threads nor its connections are there
            connection.disconnect()


# Not atexit: by then the interpreter has waited for the threads of every executor, and one of ours may be in a wait of minutes.
threading._register_atexit(_disconnect_all)  # type: ignore[attr-defined]  # private, but Python's own executors end in the same way

"""The lease of a rank, renewed beside the training for as long as its connection is there (R13)."""

import logging
import os
import time
import weakref
from threading import Event, Thread
from typing import TYPE_CHECKING

from ps_proto.errors import ParameterServerError, RolledBack, StaleIncarnation
from ps_worker.protocol.membership import RENEWALS
from ps_worker.retry import is_passing

if TYPE_CHECKING:
    from ps_worker.connection import Connection

log = logging.getLogger("rowstead")


class LeaseKeeper:
    """Renews the lease of a connection's rank, of `lease_s` seconds, in a thread that keeps neither the process nor the connection alive.

    It ends once another worker has the rank, or the cluster went back to a checkpoint: what the user calls next says so. Where the
    coordinator does not answer it tries again: training needs none.
    """

    def __init__(self, connection: "Connection", lease_s: float) -> None:
        self._stopped = stopped = Event()
        self._pid = os.getpid()
        there = weakref.ref(connection, lambda _: stopped.set())
        self._thread = Thread(target=_keep, args=(there, lease_s, stopped), name="rowstead-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let a renewal that is under way be the last."""
        self._stopped.set()

    def close(self) -> None:
        """Wait for its end, which the end of its transport brings at once; a second time, or in a forked child, does nothing."""
        self.stop()
        if os.getpid() == self._pid:
            self._thread.join()


def _keep(there: "weakref.ref[Connection]", lease_s: float, stopped: Event) -> None:
    failures = 0
    begun_s = time.monotonic()
    while not stopped.wait(max(0.0, begun_s + lease_s / RENEWALS - time.monotonic())):
        begun_s = time.monotonic()
        connection = there()
        if connection is None:
            return
        try:
            connection.run(connection.worker.renew())
        except (RolledBack, StaleIncarnation):
            return
        except ParameterServerError as error:
            failures += 1
            if failures == RENEWALS and is_passing(error):
                log.warning("Rank %d's lease is not renewed: %s Training goes on.", connection.worker.rank, error)
        else:
            failures = 0
        del connection  # while it waits, nothing of the client is held

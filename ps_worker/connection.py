"""A worker's protocol on a transport, with the lanes in which its operations are queued."""

import logging
import random
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TypeVar

from ps_proto.errors import ClientClosed, ParameterServerError, StalenessTimeout
from ps_proto.values import TableSpec
from ps_worker.asking import Operation, Patience, World
from ps_worker.at_exit import disconnect_at_exit
from ps_worker.capturing import Capture
from ps_worker.driver import Driver, Lane, Transport
from ps_worker.inputs import check_table
from ps_worker.later_pulls import LaterPulls
from ps_worker.leasing import LeaseKeeper
from ps_worker.protocol import Worker

log = logging.getLogger("rowstead")

T = TypeVar("T")


class Connection:
    """Runs the worker's operations: in the caller's thread, or one after another in the lane for their kind, beside it."""

    def __init__(self, address: str, transport: Transport, patience: Patience) -> None:
        self.is_closed = False
        self.driver = Driver(transport)
        self.pulls, self.pushes, self.barriers = [Lane(self.driver, name) for name in ("pull", "push", "barrier")]
        on_wait = partial(_on_wait, self.pushes)  # not a method of ours: a client that is let go of must go at once
        world = World(time.monotonic, random.Random(secrets.randbits(64)).random, on_wait, Lock(), transport.lend)
        self.worker = Worker(address, world, patience)
        self.planning = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rowstead-plan")  # a thread from the first plan on
        self.later_pulls = LaterPulls(self.worker.may_ask_ahead)  # as above
        self.capture = Capture(self.worker.attach_resume, partial(_say_again, self.pushes, self.worker))
        self._lease: LeaseKeeper | None = None
        disconnect_at_exit(self)

    @property
    def transport(self) -> Transport:
        """What carries the calls."""
        return self.driver.transport

    def keep_lease(self) -> None:
        """Renew the lease of the rank that the worker has, where it got one, until this is disconnected or let go of."""
        if self.worker.lease_s > 0:
            self._lease = LeaseKeeper(self, self.worker.lease_s)

    def run(self, operation: Operation[T]) -> T:
        """Run it in the caller's thread, whatever is queued."""
        return self.driver.run(operation)

    def check_open(self, action: str) -> None:
        """Raise ClientClosed after `disconnect`."""
        if self.is_closed:
            raise ClientClosed(action)

    def know(self, *tables: object) -> None:
        """Make sure that the worker knows these tables; InvalidRequest for what is no name, UnknownTable where one does not exist."""
        names = [check_table(table) for table in tables]
        if not self.worker.knows(names):
            self.run(self.worker.know(names))

    def spec(self, table: str) -> TableSpec:
        """Return a table as the worker knows it; errors as `know`."""
        self.know(table)
        return self.worker.tables[table]

    def disconnect(self) -> None:
        """End what is under way, all threads and all connections; a second time does nothing."""
        self.is_closed = True
        if self._lease is not None:
            self._lease.stop()
        self.later_pulls.fail(ClientClosed("pull for a step that it does not reach"))
        self.driver.transport.close()  # first: what is still under way, after an exception, ends at once and not after its retries
        self.planning.shutdown()  # before the pulls, some of which may wait for it
        self.pulls.close()
        self.pushes.close()
        self.barriers.close()
        if self._lease is not None:
            self._lease.close()
        self.driver.close()


def _say_again(pushes: Lane, worker: Worker, state: bytes) -> None:
    """Tell the servers what the worker resumes from after the step before, of which they may have heard."""
    pushes.run(worker.say_again(state))


def _on_wait(pushes: Lane, error: ParameterServerError) -> None:
    """Say whom we wait for; called from the tenth second on, every ten seconds.

    Raise instead what a queued push has ended in and nobody has heard: the servers may be waiting for that very push.
    """
    pushes.raise_failed()
    if isinstance(error, StalenessTimeout):
        log.warning("Step %d waits for rank %d, for %.0f s so far.", error.clock, error.rank, error.after_s)
    else:
        log.warning("Still waiting: %s", error)

"""Which timeline the cluster is in, which grows when all servers go back to a checkpoint, and which ranks have to run in it."""

import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

from ps_proto.errors import ParameterServerError
from ps_proto.requests import Cluster, GetCluster
from ps_worker.transport.grpc import GrpcTransport

POLL_S = 0.25
CALL_TIMEOUT_S = 2.0


class _Known(NamedTuple):
    """One answer, and when it was asked for. `left`, `job`, `missed`: as in Cluster."""

    timeline: int = 0
    asked_s: float = 0.0
    is_running: bool = False
    left: frozenset[int] = frozenset()
    job: int = 0
    missed: frozenset[int] = frozenset()


class TimelineWatch:
    """Asks the coordinator again and again for the length of a `with` block, in a thread: it may be away, and nobody waits for it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._known = _Known()
        self._transport = GrpcTransport()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._ask_until_ended, name="rowstead-timeline", daemon=True)

    @property
    def timeline(self) -> int:
        """The greatest that was told."""
        return self._known.timeline

    def is_as_of(self, now_s: float) -> bool:
        """Whether it was told at `now_s`, monotonic time, or later."""
        return self._known.asked_s >= now_s

    def has_left(self, rank: int, timeline: int) -> bool:
        """Whether the rank, of a worker that ended well and began in `timeline`, has left the job for good, as far as is known.

        Once the servers have gone back to a checkpoint, a rank that has left since then has to run again.
        """
        known = self._known
        return known.timeline == timeline or not known.is_running or rank in known.left

    def is_out(self, rank: int) -> bool:
        """Whether the rank is out of the job that runs, or ran last, by its own word."""
        return rank in self._known.left

    def is_missed(self, rank: int) -> bool:
        """Whether the job that ran last has ended without the rank, which was removed from it."""
        return rank in self._known.missed

    @property
    def job(self) -> int:
        """The number of the job that runs, or ran last; 0: none that a worker has taken part in since a rollback."""
        return self._known.job

    def __enter__(self) -> Self:
        self._ask()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._has_ended.set()
        self._transport.close()  # which ends a call that is under way
        self._thread.join()

    def _ask_until_ended(self) -> None:
        while not self._has_ended.wait(POLL_S):
            self._ask()

    def _ask(self) -> None:
        asked_s = time.monotonic()
        try:
            cluster = self._transport.call(self._address, GetCluster(), CALL_TIMEOUT_S)
        except ParameterServerError:  # it is being started again
            return
        assert isinstance(cluster, Cluster)
        if cluster.timeline >= self.timeline:
            left, missed = frozenset(cluster.left), frozenset(cluster.missed)
            self._known = _Known(cluster.timeline, asked_s, cluster.world_size > 0, left, cluster.job, missed)

"""Which timeline the cluster is in: it grows when all servers go back to a checkpoint."""

import threading
import time
from types import TracebackType
from typing import Self

from ps_proto.errors import ParameterServerError
from ps_proto.requests import Cluster, GetCluster
from ps_worker.transport.grpc import GrpcTransport

POLL_S = 0.25
CALL_TIMEOUT_S = 2.0


class TimelineWatch:
    """Asks the coordinator again and again for the length of a `with` block, in a thread: it may be away, and nobody waits for it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._known = (0, 0.0)  # the timeline, and when it was asked for; one value, so that a reader has both of one answer
        self._transport = GrpcTransport()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._ask_until_ended, name="rowstead-timeline", daemon=True)

    @property
    def timeline(self) -> int:
        """The greatest that was told."""
        return self._known[0]

    def is_as_of(self, now_s: float) -> bool:
        """Whether it was told at `now_s`, monotonic time, or later."""
        return self._known[1] >= now_s

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
        self._known = (max(self.timeline, cluster.timeline), asked_s)

"""The checkpoint at a job's end: the cluster must not be ended before it is complete."""

import threading
import time

from ps_proto.errors import CheckpointFailed, ClientClosed, ParameterServerError
from ps_proto.requests import CheckpointTaken, Cluster, GetCluster, TakeCheckpoint
from ps_worker.retry import is_passing
from ps_worker.transport.grpc import GrpcTransport

WAIT_S = 600.0
AGAIN_S = 0.5
TRIES = 3  # where it fails: a server that dies under it comes back, and then the coordinator says that all go back


class LastCheckpoint:
    """Asks the coordinator for a checkpoint, in a thread. It takes one by itself once all ranks have left, and none where that is complete.

    `said`  what came of it, as a sentence; "" until it has ended.     `said_s`  when that was, monotonic time.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._transport = GrpcTransport()
        self.said, self.said_s = "", 0.0
        self._thread = threading.Thread(target=self._run, name="rowstead-last-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait no longer for it."""
        self._transport.close()
        self._thread.join()

    def _run(self) -> None:
        said = self._outcome()
        self.said_s = time.monotonic()
        self.said = said

    def _outcome(self) -> str:
        deadline_s, failures = time.monotonic() + WAIT_S, 0
        while True:
            wait_s = deadline_s - time.monotonic()
            try:
                taken = self._taken(wait_s)
            except ClientClosed as error:
                return str(error)
            except ParameterServerError as error:
                failures += isinstance(error, CheckpointFailed)
                may_pass = is_passing(error) or (isinstance(error, CheckpointFailed) and failures < TRIES)
                if not may_pass or time.monotonic() + AGAIN_S >= deadline_s:
                    return f"There is no checkpoint of the job's end: {error}"
                time.sleep(AGAIN_S)  # the coordinator, or a server, is being started again
            else:
                return f"The job's end is in checkpoint {taken.number} in {taken.path}."

    def _taken(self, wait_s: float) -> CheckpointTaken:
        """Return the checkpoint that has the job's end: the coordinator's own, or else another one."""
        cluster = self._transport.call(self._address, GetCluster(), wait_s, "The coordinator")
        assert isinstance(cluster, Cluster)
        if cluster.end is not None:
            return cluster.end
        taken = self._transport.call(self._address, TakeCheckpoint("", full=False, at_least=-1, wait_s=wait_s), wait_s, "The coordinator")
        assert isinstance(taken, CheckpointTaken)
        return taken

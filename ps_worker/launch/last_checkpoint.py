"""The checkpoint at a job's end: the cluster must not be ended before it is complete."""

import threading
import time

from ps_proto.errors import CheckpointFailed, ClientClosed, ParameterServerError
from ps_proto.requests import CheckpointTaken, TakeCheckpoint
from ps_worker.retry import is_passing
from ps_worker.transport.grpc import GrpcTransport

WAIT_S = 600.0
AGAIN_S = 0.5
TRIES = 3  # where it fails: a server that dies under it comes back, and then the coordinator says that all go back


class LastCheckpoint:
    """Asks the coordinator for a checkpoint, in a thread. It takes one by itself once all ranks have left, so this one adds little to it.

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
                asked = TakeCheckpoint("", full=False, at_least=-1, wait_s=wait_s)
                taken = self._transport.call(self._address, asked, wait_s, "The coordinator")
            except ClientClosed as error:
                return str(error)
            except ParameterServerError as error:
                failures += isinstance(error, CheckpointFailed)
                may_pass = is_passing(error) or (isinstance(error, CheckpointFailed) and failures < TRIES)
                if not may_pass or time.monotonic() + AGAIN_S >= deadline_s:
                    return f"There is no checkpoint of the job's end: {error}"
                time.sleep(AGAIN_S)  # the coordinator, or a server, is being started again
            else:
                assert isinstance(taken, CheckpointTaken)
                return f"The job's end is in checkpoint {taken.number} in {taken.path}."

"""The checkpoint at a job's end: the cluster must not be ended before it is complete."""

import threading
import time

from ps_proto.errors import ClientClosed, ParameterServerError
from ps_proto.requests import CheckpointTaken, TakeCheckpoint
from ps_worker.retry import is_passing
from ps_worker.transport.grpc import GrpcTransport

WAIT_S = 600.0
AGAIN_S = 0.5


class LastCheckpoint:
    """Asks the coordinator for a checkpoint, in a thread. It takes one by itself once all ranks have left, so this one adds little to it.

    `said`  what came of it, as a sentence; "" until it has ended.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._transport = GrpcTransport()
        self.said = ""
        self._thread = threading.Thread(target=self._run, name="rowstead-last-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait no longer for it."""
        self._transport.close()
        self._thread.join()

    def _run(self) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not self.said:
            wait_s = deadline_s - time.monotonic()
            try:
                asked = TakeCheckpoint("", full=False, at_least=-1, wait_s=wait_s)
                taken = self._transport.call(self._address, asked, wait_s, "The coordinator")
            except ClientClosed as error:
                self.said = str(error)
            except ParameterServerError as error:
                if is_passing(error) and time.monotonic() + AGAIN_S < deadline_s:
                    time.sleep(AGAIN_S)  # the coordinator, or a server, is being started again
                else:
                    self.said = f"There is no checkpoint of the job's end: {error}"
            else:
                assert isinstance(taken, CheckpointTaken)
                self.said = f"The job's end is in checkpoint {taken.number} in {taken.path}."

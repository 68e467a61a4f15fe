"""The coordinator as a process."""

import secrets

from ps_proto.methods import COORDINATOR
from ps_proto.parts import REQUEST_BYTES_MAX
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.settings import CoordinatorSettings
from ps_server.edge.loop import CoreLoop
from ps_server.edge.sender import Sender
from ps_server.edge.servicer import NO_ANSWERS
from ps_server.edge.serving import run_process
from ps_server.events import Persist


def run_coordinator(settings: CoordinatorSettings) -> int:
    """Run the coordinator until it is told to stop; return the exit code."""
    return run_process("coordinator", settings, lambda sender: CoordinatorRole(settings, sender))


class CoordinatorRole:
    """What the coordinator does beside being a process; it is ready as soon as it listens."""

    service = COORDINATOR
    max_request_bytes = REQUEST_BYTES_MAX
    answers = NO_ANSWERS

    def __init__(self, settings: CoordinatorSettings, sender: Sender) -> None:
        core = CoordinatorCore(CoreSettings(settings.servers, cluster=secrets.randbits(64)))
        self.loop = CoreLoop(core, sender.send, name="The coordinator", store=_forget)

    async def join(self, address: str) -> None:
        """Nothing is left to do."""

    async def close(self) -> None:
        """Refuse what waits and what comes."""
        await self.loop.close()


def _forget(persist: Persist) -> None:
    """Keep nothing: the cluster's state lasts as long as this process."""

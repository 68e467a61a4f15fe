"""How a process ends that cannot go on."""

from structlog.testing import capture_logs

from ps_proto.methods import COORDINATOR
from ps_proto.requests import Done, GetCluster
from ps_server.coordinator.settings import CoordinatorSettings
from ps_server.edge import serving
from ps_server.edge.loop import CoreLoop
from ps_server.edge.sender import Sender
from ps_server.edge.servicer import NO_ANSWERS
from ps_server.events import Persist, Reply
from scripted_core import ScriptedCore


class ForgetfulRole:
    """Serves a core whose state cannot be stored."""

    service = COORDINATOR
    max_request_bytes = 1 << 20
    answers = NO_ANSWERS

    def __init__(self, sender: Sender) -> None:
        core = ScriptedCore()
        core.scripts[GetCluster] = lambda asked: [Persist({"map": b"1"}), Reply(asked.request, Done())]
        self.loop = CoreLoop(core, sender.send, store=self._store)
        self.told: list[object] = []

    def _store(self, persist: Persist) -> None:
        raise OSError("no space left on device")

    async def join(self, address: str) -> None:
        self.loop.ask(GetCluster(), self.told.append)

    async def close(self) -> None:
        await self.loop.close()


async def test_a_process_that_cannot_store_its_state_ends_with_an_error_and_says_why() -> None:
    with capture_logs() as logs:
        assert await serving._run(CoordinatorSettings.model_validate({"servers": 1}), ForgetfulRole) == serving.REFUSED
    (last,) = [line for line in logs if line["event"].startswith("cannot go on")]
    assert "no space left on device" in last["cause"]

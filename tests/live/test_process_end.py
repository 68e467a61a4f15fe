"""How a process ends that cannot go on."""

import asyncio

import pytest
from structlog.testing import capture_logs

from ps_proto.errors import CorruptFile, NotOwner, ParameterServerError, StaleOrder
from ps_proto.methods import COORDINATOR
from ps_proto.requests import Done, GetCluster, RegisterServer
from ps_server.coordinator.process import CoordinatorRole
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


async def test_a_process_whose_role_cannot_begin_ends_with_an_error_and_says_why() -> None:
    def no_role(sender: Sender) -> ForgetfulRole:
        raise CorruptFile("/state/coordinator.sqlite3", "file is not a database")

    with capture_logs() as logs:
        assert await serving._run(CoordinatorSettings.model_validate({"servers": 1}), no_role) == serving.REFUSED
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "/state/coordinator.sqlite3 is not as it was written: file is not a database. Nothing was loaded; use another copy."
    ]


@pytest.mark.parametrize(
    "refusal",
    [StaleOrder("server-0", 7, 1), StaleOrder("server-0", 7, 1, "cluster"), NotOwner("server-0", 7)],
    ids=["another coordinator", "another cluster", "another owner"],
)
async def test_a_coordinator_whose_order_is_too_old_ends(refusal: ParameterServerError, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: Sender, server: str, address: str, body: object) -> object:
        raise refusal

    monkeypatch.setattr(Sender, "send", refuse)
    with capture_logs():
        role = CoordinatorRole(CoordinatorSettings.model_validate({"servers": 1}), Sender())
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    role.loop.on_broken = lambda: answer.set_result(role.loop.broken_by)
    role.loop.ask(RegisterServer("server-0", "host:1", nonce=1), lambda outcome: None)
    if isinstance(refusal, StaleOrder) and refusal.what == "term":
        assert await answer is refusal
    else:
        for _ in range(10):
            await asyncio.sleep(0)
        assert role.loop.broken_by is None
    await role.close()

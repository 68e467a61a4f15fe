"""A server on its way to serve: its kernels first, then its lanes, then the coordinator."""

import asyncio
import threading
from typing import Any

import pytest

from ps_proto.errors import Recovering
from ps_proto.frames import VERSION
from ps_proto.orders import AskProcess, ProcessNamed
from ps_proto.requests import LaneOffered, OpenLane, RegisterServer, ServerRegistered
from ps_server.edge import process as process_module
from ps_server.edge.process import ServerRole
from ps_server.edge.settings import ServerSettings

ADDRESS, TIMEOUT_S = "127.0.0.1:7001", 20.0


class NotedSender:
    """Takes what is sent, and answers at once."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    async def send(self, server: str, address: str, body: object) -> object:
        self.sent.append(body)
        return ServerRegistered("server-0", 1)


async def test_nobody_hears_of_a_server_before_its_kernels_are_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    is_warming, is_warm = threading.Event(), threading.Event()

    def warm_up() -> None:
        is_warming.set()
        assert is_warm.wait(TIMEOUT_S)

    monkeypatch.setattr(process_module, "warm_up", warm_up)
    sender: Any = NotedSender()
    role = ServerRole(ServerSettings.model_validate({"coordinator": "127.0.0.1:7000", "name": "server-0"}), sender)
    joining = asyncio.create_task(role.join(ADDRESS))
    try:
        assert await asyncio.to_thread(is_warming.wait, TIMEOUT_S)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not joining.done(), "it is this that makes it say that it serves"
        assert sender.sent == []
        with pytest.raises(Recovering, match="it is starting"):
            role.answers[OpenLane](OpenLane(VERSION))
        assert isinstance(role.answers[AskProcess](AskProcess()), ProcessNamed)
    finally:
        is_warm.set()
    await asyncio.wait_for(joining, TIMEOUT_S)
    (registered,) = sender.sent
    assert isinstance(registered, RegisterServer)
    assert (registered.server, registered.address) == ("server-0", ADDRESS)
    assert role.answers[AskProcess](AskProcess()) == ProcessNamed(registered.nonce)
    assert isinstance(role.answers[OpenLane](OpenLane(VERSION)), LaneOffered)
    await role.close()

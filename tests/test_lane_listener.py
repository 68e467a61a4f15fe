import asyncio
import errno
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ps_proto.frames import VERSION
from ps_proto.requests import LaneOffered, OpenLane
from ps_server.edge.bound_port import CannotListen
from ps_server.edge.lane import greeting as greeting_module
from ps_server.edge.lane import listener as listener_module
from ps_server.edge.lane.listener import LaneListener, LaneSettings
from ps_server.edge.loop import CoreLoop
from scripted_core import ScriptedCore
from test_lane_fuzz import nobody

HOST = "127.0.0.1"


def core_loop() -> CoreLoop:
    return CoreLoop(ScriptedCore(), nobody, name="server-0")


def mode_of(folder: Path) -> int | None:
    return folder.stat().st_mode & 0o777 if folder.exists() else None


async def test_it_offers_what_it_listens_on() -> None:
    settings = LaneSettings(HOST, max_request_bytes=1_000)
    listener = LaneListener(core_loop(), settings)
    offer = listener.offer(OpenLane(VERSION))
    assert offer == LaneOffered("server-0", VERSION, listener.unix_path, listener.port, settings.token, 1_000)
    assert len(offer.token) == 32
    folder = Path(offer.unix_path).parent
    assert mode_of(folder) == 0o700
    await listener.close()
    assert mode_of(folder) is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, offer.port), 1.0)


async def test_every_server_has_a_token_of_its_own() -> None:
    assert LaneSettings(HOST).token != LaneSettings(HOST).token


async def test_a_port_that_is_taken_is_said_in_a_sentence() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"for lanes on port {port} of {HOST}: address already in use.*--lane-port"):
            LaneListener(core_loop(), LaneSettings(HOST, port))


async def test_a_host_that_is_not_here_is_said_in_a_sentence() -> None:
    with pytest.raises(CannotListen, match=r"203\.0\.113\.1"):
        LaneListener(core_loop(), LaneSettings("203.0.113.1"))


async def test_without_a_place_for_a_unix_socket_there_is_tcp_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 120)  # the path of a socket has 108 bytes at most
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with capture_logs() as logs:
        listener = LaneListener(core_loop(), LaneSettings(HOST))
    assert listener.unix_path == ""
    assert listener.port > 0
    assert [log["event"] for log in logs] == ["no lane over a unix socket"]
    assert [listening.family for listening in listener._sockets] == [socket.AF_INET], "nobody waits at one that does not listen"
    await listener.close()
    assert list(folder.iterdir()) == []


async def test_who_says_no_hello_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting_module, "HELLO_S", 0.05)
    listener = LaneListener(core_loop(), LaneSettings(HOST))
    with capture_logs() as logs:
        reader, writer = await asyncio.open_connection(HOST, listener.port)
        assert await asyncio.wait_for(reader.read(), 20) == b""
    assert [(log["event"], log["cause"]) for log in logs] == [("a lane was not let in", "no hello within 0.05 s")]
    assert not listener._greetings
    writer.close()
    await writer.wait_closed()
    await listener.close()


async def test_one_that_is_closed_ends_those_who_have_not_said_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    has_come = asyncio.Event()

    def noted(*arguments: Any) -> greeting_module.Greeting:
        has_come.set()
        return greeting_module.Greeting(*arguments)

    monkeypatch.setattr(listener_module, "Greeting", noted)
    listener = LaneListener(core_loop(), LaneSettings(HOST))
    reader, writer = await asyncio.open_connection(HOST, listener.port)
    await asyncio.wait_for(has_come.wait(), 20)
    await listener.close()
    assert await asyncio.wait_for(reader.read(), 20) == b""
    assert not listener._greetings
    writer.close()
    await writer.wait_closed()


async def test_when_there_are_too_many_open_files_it_waits_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """A listening socket that cannot accept."""

        def __init__(self, listening: socket.socket) -> None:
            self._listening = listening
            self.tries = 0
            self.has_tried_again = asyncio.Event()

        def accept(self) -> None:
            self.tries += 1
            if self.tries == 3:
                self.has_tried_again.set()
            raise OSError(errno.EMFILE, "Too many open files")

        def fileno(self) -> int:
            return self._listening.fileno()

    monkeypatch.setattr(listener_module, "PAUSE_S", 0.01)
    listener = LaneListener(core_loop(), LaneSettings(HOST))
    real = listener._sockets[0]
    full: Any = Full(real)
    asyncio.get_running_loop().add_reader(real.fileno(), listener._accept, full)  # in place of the real one
    with capture_logs() as logs, socket.create_connection((HOST, listener.port)):
        await asyncio.wait_for(full.has_tried_again.wait(), 20)
        assert [log["event"] for log in logs] == ["no lane can be let in for now"] * full.tries
    await listener.close()

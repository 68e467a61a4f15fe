"""Which way a worker's rows take: the best that can be had, the one that was asked for, or none; and that the log says which."""

import ctypes
import logging
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faulty_proxy import FaultyProxy
from ps_proto.errors import InvalidRequest, Recovering, Unreachable
from ps_proto.frames import VERSION
from ps_proto.requests import GetStats, Pull, Pulled, Stats, TableIds
from ps_server.events import Asked, Effect, Reply
from ps_worker.transport.choice import ARENA, AUTO, GRPC, LANES, TCP, UNIX
from ps_worker.transport.lanes import Lanes
from ps_worker.transport.negotiated import BREAKS_MAX, NegotiatedTransport
from samples import FENCE, IDS, ROWS, same
from scripted_core import ScriptedCore
from served_lanes import HOST, TIMEOUT_S, ServedLanes, served_lanes

ASK = GetStats(FENCE)
NUMBERS = Stats({"rows": 1.0}, {})
NOBODY = 65_534


@pytest.fixture
def served() -> Iterator[ServedLanes]:
    core = ScriptedCore()
    core.reply(GetStats, NUMBERS)
    with served_lanes(core) as it:
        yield it


@contextmanager
def transport_of(choice: str) -> Iterator[NegotiatedTransport]:
    it = NegotiatedTransport(choice, arena_bytes=1 << 20)
    try:
        yield it
    finally:
        it.close()


def kind_of(served: ServedLanes, choice: str = AUTO) -> str:
    """Return the way that a worker finds, once it has asked for something."""
    with transport_of(choice) as transport:
        assert transport.call(served.address, ASK, TIMEOUT_S, "server-0") == NUMBERS
        (kind,) = transport.kinds.values() if choice != GRPC else [GRPC]
        return kind


def refused_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server((HOST, 0)) as it:
        port: int = it.getsockname()[1]
        return port


@contextmanager
def as_another_user(folder: str) -> Iterator[None]:
    """See files as one who may not enter the folder."""
    if os.geteuid() != 0:
        mode = os.stat(folder).st_mode
        os.chmod(folder, 0)
        try:
            yield
        finally:
            os.chmod(folder, mode)
        return
    libc = ctypes.CDLL(None)
    libc.setfsuid(NOBODY)  # of this thread
    try:
        yield
    finally:
        libc.setfsuid(0)


def test_shared_memory_is_the_first_choice(served: ServedLanes) -> None:
    assert kind_of(served) == ARENA
    assert served.offers_asked == 1


@pytest.mark.parametrize("choice", [*LANES, GRPC])
def test_a_choice_is_what_is_used(served: ServedLanes, choice: str) -> None:
    assert kind_of(served, choice) == choice
    assert served.offers_asked == (choice != GRPC)


def test_without_memory_files_frames_go_over_the_unix_socket(served: ServedLanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert kind_of(served) == UNIX


def test_a_system_that_forbids_memory_files_is_one_without(served: ServedLanes, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(name: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    assert kind_of(served) == UNIX


BY_ARENA = """
import sys
import numpy as np
from ps_proto.requests import Fence, Pull, TableIds
from ps_worker.transport.negotiated import NegotiatedTransport

transport, pull = NegotiatedTransport("arena", arena_bytes=1 << 22), Pull(Fence(1), (TableIds("user", np.arange(5_000, dtype=np.uint64)),))
for _ in range(2):
    (rows,) = transport.call(sys.argv[1], pull, 20).rows
assert (rows == 7).all() and rows.shape == (5_000, 64)
assert transport._arena.free_bytes() <= (1 << 22) - rows.nbytes
transport.close()
"""


def test_shared_memory_needs_no_dev_shm(served: ServedLanes) -> None:
    def answer(asked: Asked) -> list[Effect]:
        rows = asked.make_rows((5_000, 64), np.dtype(np.float32))
        rows[...] = 7
        return [Reply(asked.request, Pulled((rows,), 1))]

    served.core.scripts[Pull] = answer
    in_own_mounts = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs -o size=64k,ro none /dev/shm && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*in_own_mounts, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets no process have mounts of its own")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*in_own_mounts, sys.executable, "-c", BY_ARENA, served.address], check=True, timeout=TIMEOUT_S, env=environment)
    assert [asked.is_borrowed for asked in served.core.asked()] == [True, True]


def test_a_limit_on_the_size_of_files_leaves_the_unix_socket(served: ServedLanes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
    try:
        assert kind_of(served) == UNIX
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_path_of_another_host_does_not_exist_here(served: ServedLanes, tmp_path: Path) -> None:
    served.offer = replace(served.offer, unix_path=str(tmp_path / "lane"))
    assert kind_of(served) == TCP


def test_a_path_behind_which_nobody_listens_is_no_way(served: ServedLanes, tmp_path: Path) -> None:
    path = tmp_path / "lane"
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(str(path))
    served.offer = replace(served.offer, unix_path=str(path))
    assert kind_of(served) == TCP


def test_a_server_without_a_unix_socket_is_reached_over_tcp(served: ServedLanes) -> None:
    served.offer = replace(served.offer, unix_path="")
    assert kind_of(served) == TCP


def test_another_user_may_not_enter_the_servers_folder(served: ServedLanes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rowstead")
    with as_another_user(os.path.dirname(served.offer.unix_path)):
        assert kind_of(served) == TCP
    assert "Permission denied" in caplog.text


def test_another_servers_token_lets_nobody_in(served: ServedLanes) -> None:
    served.offer = replace(served.offer, token=b"x" * 32)
    assert kind_of(served) == GRPC


def test_where_no_port_can_be_reached_grpc_carries_everything(served: ServedLanes) -> None:
    served.offer = replace(served.offer, unix_path="", port=refused_port())
    served.core.reply(Pull, Pulled((ROWS,), 7))
    with transport_of(AUTO) as transport:
        for _ in range(2):
            assert same(transport.call(served.address, Pull(FENCE, (TableIds("user", IDS),)), TIMEOUT_S), Pulled((ROWS,), 7))
        assert transport.kinds == {served.address: GRPC}
    assert served.offers_asked == 1


@pytest.mark.parametrize("port", ["none", "http2"])
def test_behind_a_proxy_that_only_speaks_http2_grpc_carries_everything(served: ServedLanes, tmp_path: Path, port: str) -> None:
    with FaultyProxy(seed=1, lose=0.0, double=0.0) as proxy:
        proxy.target = served.address
        ports = {"none": 0, "http2": int(proxy.address.rpartition(":")[2])}
        served.offer = replace(served.offer, unix_path=str(tmp_path / "lane"), port=ports[port])
        with transport_of(AUTO) as transport:
            assert transport.call(proxy.address, ASK, TIMEOUT_S) == NUMBERS
            assert transport.kinds == {proxy.address: GRPC}


@pytest.mark.parametrize("refusal", [InvalidRequest("the call to server-0", "refused with UNIMPLEMENTED", "one that it serves")])
def test_an_older_server_is_called_over_grpc(served: ServedLanes, refusal: InvalidRequest) -> None:
    served.offer = refusal
    assert kind_of(served) == GRPC


def test_a_server_of_another_version_is_called_over_grpc(served: ServedLanes) -> None:
    served.offer = replace(served.offer, version=VERSION + 1)
    assert kind_of(served) == GRPC


def test_a_server_that_is_starting_or_away_is_asked_again(served: ServedLanes) -> None:
    offer, served.offer = served.offer, Recovering("server-0", "it is starting")
    with transport_of(AUTO) as transport:
        with pytest.raises(Recovering):
            transport.call(served.address, ASK, TIMEOUT_S)
        served.offer = offer
        assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS
        assert transport.kinds == {served.address: ARENA}
        with pytest.raises(Unreachable):
            transport.call(f"{HOST}:{refused_port()}", ASK, TIMEOUT_S)


# --- what was asked for and cannot be had -------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", LANES)
def test_a_choice_that_cannot_be_had_is_an_error_that_says_why(served: ServedLanes, choice: str, tmp_path: Path) -> None:
    served.offer = replace(served.offer, unix_path=str(tmp_path / "lane"), port=refused_port())
    with transport_of(choice) as transport, pytest.raises(InvalidRequest) as caught:
        transport.call(served.address, ASK, TIMEOUT_S, "server-0")
    assert (caught.value.field, caught.value.got) == ("transport", repr(choice))
    assert "server-0" in caught.value.want
    assert ("Connection refused" if choice == TCP else "No such file") in caught.value.want
    assert served.core.events == []


def test_a_choice_whose_server_is_too_busy_to_answer_is_waited_for(served: ServedLanes) -> None:
    with socket.create_server((HOST, 0)) as silent, transport_of(TCP) as transport:
        offer, served.offer = served.offer, replace(served.offer, port=silent.getsockname()[1])
        with pytest.raises(Unreachable, match="no tcp: no answer"):
            transport.call(served.address, ASK, 0.3)
        served.offer = offer
        assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS


def test_a_choice_that_could_be_had_before_is_waited_for(served: ServedLanes) -> None:
    with transport_of(TCP) as transport:
        assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS
        offer, served.offer = served.offer, replace(served.offer, port=refused_port())
        served.in_loop(lambda: [connection._transport.abort() for connection in served.listener._connections])
        for _ in range(3):
            with pytest.raises(Unreachable):
                transport.call(served.address, ASK, TIMEOUT_S)
        served.offer = offer
        assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS


def test_a_way_that_breaks_again_and_again_is_left_for_the_next(served: ServedLanes) -> None:
    def break_lanes(asked: Asked) -> list[Effect]:
        connections: Any = served.listener._connections
        for connection in connections:
            connection._transport.abort()
        return [Reply(asked.request, NUMBERS)] if not connections else []

    with transport_of(AUTO) as transport, ExitStack() as then:
        then.callback(served.core.reply, GetStats, NUMBERS)
        served.core.scripts[GetStats] = break_lanes
        kinds = []
        for _ in range(len(LANES) * BREAKS_MAX):
            with pytest.raises(Unreachable) as caught:
                transport.call(served.address, ASK, TIMEOUT_S)
            kinds.append(caught.value.cause.rpartition(" ")[2])
        assert kinds == [kind for kind in LANES for _ in range(BREAKS_MAX)]
        assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS
        assert transport.kinds == {served.address: GRPC}


def test_where_grpc_broke_lanes_are_looked_for_again(served: ServedLanes) -> None:
    offer, served.offer = served.offer, replace(served.offer, unix_path="", port=0)
    with transport_of(AUTO) as transport:
        assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS
        assert transport.kinds == {served.address: GRPC}
        served.offer = offer  # of the server that is started in its place
        assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS
        assert served.offers_asked == 1, "nobody asks as long as it works"
        del served.core.scripts[GetStats]
        with pytest.raises(Unreachable):
            transport.call(served.address, ASK, 0.2)
        served.core.reply(GetStats, NUMBERS)
        assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS
        assert transport.kinds == {served.address: ARENA}


def test_a_way_that_works_in_between_is_kept(served: ServedLanes) -> None:
    with transport_of(AUTO) as transport:
        for _ in range(2 * BREAKS_MAX):
            assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS
            served.in_loop(lambda: [connection._transport.abort() for connection in served.listener._connections])
            with pytest.raises(Unreachable):
                transport.call(served.address, ASK, TIMEOUT_S)
        assert transport.call(served.address, ASK, TIMEOUT_S) == NUMBERS
        assert transport.kinds == {served.address: ARENA}


# --- the log ------------------------------------------------------------------------------------------------------------------


def test_the_log_says_once_for_each_server_which_way_and_why(served: ServedLanes, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "rowstead")
    path = tmp_path / "lane"
    served.offer = replace(served.offer, unix_path=str(path))
    with transport_of(AUTO) as transport:
        for _ in range(3):
            transport.call(served.address, ASK, TIMEOUT_S, "server-0")
        (record,) = caplog.records
        assert record.levelno == logging.INFO
        assert record.getMessage().startswith(f"Rows travel to server-0 at {served.address} by tcp (no arena: [Errno 2] No such file")
        served.in_loop(lambda: [connection._transport.abort() for connection in served.listener._connections])
        with pytest.raises(Unreachable):
            transport.call(served.address, ASK, TIMEOUT_S, "server-0")
        transport.call(served.address, ASK, TIMEOUT_S, "server-0")
        assert len(caplog.records) == 1, "it is the way that it was"


def test_falling_back_to_grpc_is_a_warning(served: ServedLanes, caplog: pytest.LogCaptureFixture) -> None:
    served.offer = replace(served.offer, unix_path="", port=0)
    assert kind_of(served) == GRPC
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().count("the server does not listen there") == 3


def test_a_way_whose_hello_is_not_answered_is_no_way(served: ServedLanes, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as silent:
        served.offer = replace(served.offer, unix_path="", port=silent.getsockname()[1])
        with transport_of(AUTO) as transport:
            assert transport.call(served.address, ASK, 0.5) == NUMBERS
            assert transport.kinds == {served.address: GRPC}


def test_no_connection_is_left_behind(served: ServedLanes, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []
    connect = Lanes._connect

    def noted(self: Lanes, timeout_s: float) -> socket.socket:
        opened.append(connect(self, timeout_s))
        return opened[-1]

    monkeypatch.setattr(Lanes, "_connect", noted)
    served.offer = replace(served.offer, token=b"x" * 32)
    assert kind_of(served) == GRPC
    assert len(opened) == 3
    assert all([it.fileno() == -1 for it in opened])

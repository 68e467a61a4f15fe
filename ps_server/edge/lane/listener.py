"""Listens for lanes, on a unix socket for workers on this host and on a TCP port for all."""

import asyncio
import errno
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from ps_proto.frames import VERSION
from ps_proto.requests import LaneOffered, OpenLane
from ps_server.edge.bound_port import CannotListen
from ps_server.edge.lane.arena import Arenas, MappedArena
from ps_server.edge.lane.connection import LaneConnection
from ps_server.edge.lane.greeting import Greeting
from ps_server.edge.lane.socket_folder import SocketFolder
from ps_server.edge.loop import CoreLoop

BACKLOG = 512
BUFFER_BYTES = 1 << 21  # of the kernel, for each direction
TOKEN_BYTES = 32
OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S = 1.0
# As gRPC's pings: a worker whose host has vanished must not be waited for.
KEEP_ALIVE_IDLE_S, KEEP_ALIVE_EVERY_S, KEEP_ALIVE_COUNT = 20, 10, 3

log = structlog.get_logger()


@dataclass(frozen=True)
class LaneSettings:
    """How lanes are served, and what they ask of those who come; what encrypts them will be named here.

    host               where the TCP port is.     port  0: a free one.
    max_request_bytes  the most array bytes of one request.
    token              what a hello must bring; those who may call over gRPC get it there.
    """

    host: str
    port: int = 0
    max_request_bytes: int = 8 << 30
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES))


class LaneListener:
    """Lets workers in, and keeps their connections until `close`. Made and used in the thread of a running event loop."""

    def __init__(self, loop: CoreLoop, settings: LaneSettings) -> None:
        """Listen. Raises CannotListen where the TCP port cannot be had; without a unix socket it goes on, and says so."""
        self._loop = loop
        self._settings = settings
        self._arenas = Arenas()
        self._connections: set[LaneConnection] = set()
        self._greetings: set[Greeting] = set()
        self._letting_in: set[asyncio.Task[None]] = set()
        self._folder: SocketFolder | None = None
        self._sockets = [_listen_on_tcp(settings.host, settings.port)]
        self.port: int = self._sockets[0].getsockname()[1]
        self.unix_path = self._listen_on_unix()
        for listening in self._sockets:
            listening.setblocking(False)
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def offer(self, asked: OpenLane) -> LaneOffered:
        """Answer a worker that asks how to come."""
        settings = self._settings
        return LaneOffered(self._loop.name, VERSION, self.unix_path, self.port, settings.token, settings.max_request_bytes)

    async def close(self) -> None:
        """End all connections and let nobody in any more."""
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
            listening.close()
        for greeting in list(self._greetings):
            greeting.close()
        await asyncio.gather(*self._letting_in, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()
        self._close_folder()

    def _listen_on_unix(self) -> str:
        """Return the path of the socket, in a folder that only this user may enter; "" where there can be none."""
        try:
            self._folder = SocketFolder.make()
            self._sockets.append(_listen_on_path(self._folder.socket_path))
        except OSError as error:
            log.warning("no lane over a unix socket", cause=str(error))
            self._close_folder()
            return ""
        return self._folder.socket_path

    def _close_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _accept(self, listening: socket.socket) -> None:
        try:
            connected, _ = listening.accept()
        except OSError as error:
            if error.errno in OUT_OF:
                log.warning("no lane can be let in for now", cause=str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening.fileno())  # else it is called again at once, for as long as that lasts
                loop.call_later(PAUSE_S, self._go_on, listening)
            return
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            _tune_tcp(connected)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self._greetings.add(Greeting(connected, self._settings.token, self._arenas, self._let_in, self._greetings.discard))

    def _go_on(self, listening: socket.socket) -> None:
        """Accept again, unless it was closed meanwhile."""
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _let_in(self, connected: socket.socket, arena: MappedArena | None) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(connected, arena))
        self._letting_in.add(task)
        task.add_done_callback(self._letting_in.discard)

    async def _connect(self, connected: socket.socket, arena: MappedArena | None) -> None:
        connection = LaneConnection(self._loop, self._settings.max_request_bytes, arena, self._connections.discard)
        self._connections.add(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, connected)
        except OSError as error:
            log.warning("a lane ends", cause=str(error))
            self._connections.discard(connection)
            connected.close()


def _listen_on_tcp(host: str, port: int) -> socket.socket:
    listening = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        if listening is not None:
            listening.close()
        why = str(error.strerror).lower()
        raise CannotListen(f"Cannot listen for lanes on port {port} of {host}: {why}. Choose another --lane-port or --host.") from None
    return listening


def _listen_on_path(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(path)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _tune_tcp(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", KEEP_ALIVE_IDLE_S), ("TCP_KEEPINTVL", KEEP_ALIVE_EVERY_S), ("TCP_KEEPCNT", KEEP_ALIVE_COUNT)):
        with suppress(AttributeError, OSError):  # not every system has all of them
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

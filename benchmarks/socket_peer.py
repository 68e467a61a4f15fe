"""A process that answers each request of so many bytes with a reply of so many, over a blocking socket: the floor of whoever sends rows.

    python benchmarks/socket_peer.py ADDRESS REQUEST_BYTES REPLY_BYTES      ADDRESS: a path, or host:port

It connects, and ends when the other side does. Neither side is pinned to a core, and neither spins.
"""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from benchmarks.case import WrongAnswer

Kind = Literal["unix", "tcp"]


class SocketPeer:
    """That process and the socket to it, for the length of a `with` block."""

    def __init__(self, kind: Kind, request_bytes: int, reply_bytes: int) -> None:
        self._kind = kind
        self._request = bytes(request_bytes)
        self._expected = reply_of(reply_bytes)
        self._reply = bytearray(reply_bytes)
        self._view = memoryview(self._reply)

    def __enter__(self) -> Self:
        with tempfile.TemporaryDirectory() as folder, _listener(self._kind, folder) as listener:
            name = listener.getsockname()
            address = name if self._kind == "unix" else f"{name[0]}:{name[1]}"
            arguments = [address, str(len(self._request)), str(len(self._reply))]
            self._process = subprocess.Popen([sys.executable, "-m", "benchmarks.socket_peer", *arguments], cwd=Path(__file__).parents[1])
            listener.settimeout(30.0)
            self._socket, _ = listener.accept()
        self._socket.settimeout(None)
        _send_at_once(self._socket)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()
        self._process.wait(timeout=30.0)

    def exchange(self) -> None:
        """Send a request, and receive its reply into the same memory each time."""
        self._socket.sendall(self._request)
        receive(self._socket, self._view)

    def check(self) -> None:
        """Raise WrongAnswer unless the last reply arrived whole."""
        if self._reply != self._expected:
            raise WrongAnswer("the socket's reply is not what was sent")


def reply_of(size: int) -> bytes:
    """Return bytes that differ from their neighbours."""
    pattern = bytes(range(251))
    return (pattern * (size // len(pattern) + 1))[:size]


def receive(connection: socket.socket, view: memoryview) -> bool:
    """Fill `view`; return whether there was so much before the end."""
    received = 0
    while received < len(view):
        count = connection.recv_into(view[received:])
        if not count:
            return False
        received += count
    return True


def _listener(kind: Kind, folder: str) -> socket.socket:
    if kind == "tcp":
        return socket.create_server(("127.0.0.1", 0))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/peer")
    listener.listen()
    return listener


def _connected(address: str) -> socket.socket:
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def _send_at_once(connection: socket.socket) -> None:
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def main(arguments: Sequence[str]) -> None:
    address, request_bytes, reply_bytes = arguments
    request, reply = memoryview(bytearray(int(request_bytes))), reply_of(int(reply_bytes))
    with _connected(address) as connection:
        _send_at_once(connection)
        while receive(connection, request):
            connection.sendall(reply)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Listen on a port, or say in a sentence why that cannot be."""

import socket

import grpc.aio

from ps_server.edge.address import join_address


class CannotListen(Exception):
    """A host and port that this process cannot listen on; prints a sentence that names them."""


def bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Let `server` listen on (host, port); return the port, which is a free one where `port` was 0. Raises CannotListen.

    The server must have been made with `("grpc.so_reuseport", 0)`: else two processes share a port, each with half of the requests.
    """
    try:
        bound: int = server.add_insecure_port(join_address(host, port))
    except RuntimeError:
        raise CannotListen(f"Cannot listen on port {port} of {host}: {_why_not(host, port)}. Choose another --port or --host.") from None
    return bound


def _why_not(host: str, port: int) -> str:
    """Ask the system for the reason, which gRPC keeps to itself."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return str(error.strerror).lower()
    return "it was taken a moment ago"

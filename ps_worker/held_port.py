"""A free port that stays free for one of ours to listen on, now and again later.

It is bound here, with SO_REUSEADDR and without listening: Linux then gives it to nobody who asks for any free port, while a process that
sets SO_REUSEADDR too, as gRPC and torch do, may listen on it. Who connects while none listens is refused at once.
"""

import socket


class HeldPort:
    """A free port of `host`, kept until close(). Raises OSError for a host that is none of this machine's."""

    def __init__(self, host: str) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._held = socket.socket(family, kind, protocol)
        try:
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.bind(address)
        except BaseException:
            self._held.close()
            raise

    @property
    def port(self) -> int:
        port: int = self._held.getsockname()[1]
        return port

    def close(self) -> None:
        """Let go of it; a second time does nothing."""
        self._held.close()

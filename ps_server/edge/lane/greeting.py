"""The hello of a connection: who knows the token is let in, over the unix socket perhaps with an arena.

worker                                  server
hello, message: the token      --->     (over the unix socket, a memory file's descriptor may come along)
                               <---     hello; or an error, and the end
"""

import asyncio
import hmac
import os
import socket
from collections.abc import Callable
from contextlib import suppress

import structlog

from ps_proto.errors import InvalidRequest, ParameterServerError
from ps_proto.frames import ERROR, HEAD_BYTES, HELLO, Head, begin_of
from ps_proto.status import to_detail
from ps_server.edge.lane.arena import Arenas, MappedArena

HELLO_S = 10.0
TOKEN_BYTES_MAX = 64

log = structlog.get_logger()


class Greeting:
    """Reads the hello from a connected, non-blocking socket, then calls `let_in(connected, arena)`, or closes it with a line in the log.

    `on_end` is called when it is over: whoever keeps it must let go of it then, and of its worker's arena with it.
    """

    def __init__(
        self,
        connected: socket.socket,
        token: bytes,
        arenas: Arenas,
        let_in: Callable[[socket.socket, MappedArena | None], None],
        on_end: Callable[["Greeting"], None],
    ) -> None:
        self._socket = connected
        self._token = token
        self._arenas = arenas
        self._let_in = let_in
        self._on_end = on_end
        self._data = b""
        self._arena: MappedArena | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connected.fileno(), self._read)
        self._timer = self._loop.call_later(HELLO_S, self._refuse, f"no hello within {HELLO_S:g} s")

    def close(self) -> None:
        """End it without a word; once, and before it is over."""
        self._leave()
        self._socket.close()

    def _read(self) -> None:
        try:
            if not self._take():
                return
            self._socket.send(Head(HELLO).pack())
        except BlockingIOError:
            return
        except ParameterServerError as error:
            self._refuse(str(error), error)
        except (OSError, ValueError) as error:  # ValueError: of mmap
            self._refuse(str(error), InvalidRequest("the hello", str(error), "one that can be taken"))
        else:
            self._leave()
            self._let_in(self._socket, self._arena)

    def _take(self) -> bool:
        """Take what has come, and nothing beyond the hello; return whether it is whole."""
        head = Head.unpack(self._data) if len(self._data) >= HEAD_BYTES else None
        data = self._receive((HEAD_BYTES if head is None else head.begin_bytes) - len(self._data))
        if not data:
            raise ConnectionResetError("the connection ended before its hello")
        self._data += data
        if len(self._data) < HEAD_BYTES:
            return False
        head = Head.unpack(self._data)
        if head.kind != HELLO or head.message_bytes > TOKEN_BYTES_MAX or head.arrays_bytes:
            raise InvalidRequest("the first frame", f"of kind {head.kind} and {head.message_bytes} bytes", "a hello with a token")
        if len(self._data) < head.begin_bytes:
            return self._take()
        if not hmac.compare_digest(self._data[HEAD_BYTES : HEAD_BYTES + head.message_bytes], self._token):
            raise InvalidRequest("the token", "another", "the one that this server hands out over gRPC, which changes when it restarts")
        return True

    def _receive(self, nbytes: int) -> bytes:
        if self._socket.family != socket.AF_UNIX:
            return self._socket.recv(nbytes)
        data, descriptors, _, _ = socket.recv_fds(self._socket, nbytes, 1)
        try:
            for descriptor in descriptors:
                self._arena = self._arenas.get(descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return data

    def _refuse(self, why: str, error: ParameterServerError | None = None) -> None:
        log.warning("a lane was not let in", cause=why)
        if error is not None:
            detail = to_detail(error)
            with suppress(OSError):  # it has gone
                self._socket.send(begin_of(Head(ERROR, message_bytes=len(detail)), detail))
        self.close()

    def _leave(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._on_end(self)

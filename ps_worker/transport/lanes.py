"""The lanes to one server: a connection for each call that is under way, kept for the next."""

import socket
from typing import Any

from ps_proto.errors import ParameterServerError, RequestTooLarge
from ps_proto.frames import filled
from ps_proto.requests import Assign, LaneOffered, Pull, Push
from ps_worker.transport.arena import Arena
from ps_worker.transport.choice import TCP
from ps_worker.transport.lane import Lane, LaneBroken, LaneRefused
from ps_worker.transport.lane_registry import LaneRegistry

IDLE_MAX = 16  # connections kept for later; a pull and a push at once need two, prefetching a few more
CONNECT_S = 2.0  # a firewall that swallows what it does not know must not hold a worker up for long
HELLO_S = 5.0  # nor what takes a connection and says nothing; but a server may be busy with a large request
BUFFER_BYTES = 1 << 21  # of the kernel, for each direction


class Lanes:
    """Calls one server by lanes of one kind; any number of threads at once."""

    def __init__(self, kind: str, host: str, offered: LaneOffered, arena: Arena | None, registry: LaneRegistry) -> None:
        """`host`: of the server, for TCP. `arena`: for the kind of that name."""
        self.kind = kind
        self._host = host
        self._offered = offered
        self._arena = arena
        self._registry = registry
        self._idle: list[Lane] = []
        self._row_sizes_bytes: dict[str, int] = {}  # by table, as replies have shown them: so large are the rooms that its rows need
        self._is_retired = False

    def try_out(self, timeout_s: float) -> None:
        """Open the first connection. Raises LaneRefused, LaneBroken or OSError where there can be none."""
        self._idle.append(self._open(timeout_s))

    def call(self, body: Any, timeout_s: float, peer: str) -> Any:
        """Return the reply; raise the server's error, RequestTooLarge, or LaneBroken."""
        self._check_size(body, peer)
        self._registry.sweep()
        lane = self._take_idle() or self._open_for_call(timeout_s)
        try:
            reply = lane.call(body, timeout_s, peer, self._room_bytes(body))
        except ParameterServerError:
            self._put_back(lane)
            raise
        except BaseException:
            self._registry.end(lane)
            raise
        self._put_back(lane)
        if isinstance(body, Pull):
            shown = [(part.table, rows.itemsize * rows.shape[1]) for part, rows in zip(body.tables, reply.rows, strict=False)]
            self._row_sizes_bytes.update(shown)  # a hint
        return reply

    def retire(self) -> None:
        """Keep no connection any more: others are going to be used."""
        self._is_retired = True
        while (lane := self._take_idle()) is not None:
            self._registry.end(lane)

    def _check_size(self, body: Any, peer: str) -> None:
        """Raise what the server would: it would end the connection first."""
        if isinstance(body, Push | Assign):
            nbytes = sum([part.ids.nbytes + part.rows.nbytes for part in body.tables])
        elif isinstance(body, Pull):
            nbytes = sum([part.ids.nbytes for part in body.tables])
        else:
            return
        if nbytes > self._offered.max_request_bytes:
            raise RequestTooLarge(peer, nbytes, self._offered.max_request_bytes)

    def _room_bytes(self, body: Any) -> int:
        """Return how much room the reply's rows need; 0 where that is not known yet."""
        if self._arena is None or not isinstance(body, Pull):
            return 0
        try:
            return sum([filled(part.ids.size * self._row_sizes_bytes[part.table]) for part in body.tables])
        except KeyError:
            return 0

    # --- connections -------------------------------------------------------------------------------------------------------------

    def _take_idle(self) -> Lane | None:
        try:
            return self._idle.pop()  # the one used last: its memory is warm
        except IndexError:
            return None

    def _open_for_call(self, timeout_s: float) -> Lane:
        try:
            return self._open(timeout_s)
        except (OSError, LaneRefused) as error:
            raise LaneBroken(str(error)) from None

    def _open(self, timeout_s: float) -> Lane:
        connected = self._connect(min(timeout_s, CONNECT_S))
        try:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                connected.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
            connected.settimeout(None)
            lane = Lane(connected, self._offered.token, self._arena, min(timeout_s, HELLO_S))
        except BaseException:
            connected.close()
            raise
        self._registry.add(lane)
        return lane

    def _connect(self, timeout_s: float) -> socket.socket:
        if self.kind == TCP:
            connected = socket.create_connection((self._host, self._offered.port), timeout_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connected
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.settimeout(timeout_s)
            connected.connect(self._offered.unix_path)
        except BaseException:
            connected.close()
            raise
        return connected

    def _put_back(self, lane: Lane) -> None:
        if not lane.is_sound or len(self._idle) >= IDLE_MAX:
            self._registry.end(lane)
            return
        self._idle.append(lane)
        if self._is_retired:  # asked last: another thread may have said so just now
            self.retire()

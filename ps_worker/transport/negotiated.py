"""Calls each server by the best way that it can be had, and everything else over gRPC.

A worker asks a server over gRPC how it listens (OpenLane), and tries one way after another: shared memory, a unix socket, TCP, as
choice.py lists them; where there is none, gRPC carries the rows too. So it finds out by trying: a path of another host does not exist,
one of another user may not be entered, a proxy that only speaks HTTP/2 lets no TCP connection through.
"""

import logging
import os
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_proto.address import split_address
from ps_proto.errors import ClientClosed, InvalidRequest, Unreachable
from ps_proto.frames import METHOD_NUMBERS, VERSION
from ps_proto.parts import PART_SIZE_BYTES
from ps_proto.requests import LaneOffered, OpenLane
from ps_worker.transport.arena import Arena
from ps_worker.transport.choice import ARENA, AUTO, GRPC, LANES, TCP
from ps_worker.transport.grpc import GrpcTransport
from ps_worker.transport.lane import ARENA_BYTES_MIN, LaneBroken, LaneRefused, LaneTimedOut
from ps_worker.transport.lane_registry import LaneRegistry
from ps_worker.transport.lanes import Lanes

ARENA_BYTES = 1 << 30  # of address space; of memory only what is touched
BREAKS_MAX = 3  # in a row; then the next kind is tried: something in between does not like this one
OFFER_S = 10.0

log = logging.getLogger("rowstead")


class NegotiatedTransport:
    """Calls by address; any number of threads may call at once. `choice` is one of TRANSPORTS."""

    def __init__(self, choice: str = AUTO, part_size_bytes: int = PART_SIZE_BYTES, arena_bytes: int = ARENA_BYTES) -> None:
        self._choice = choice
        self._grpc = GrpcTransport(part_size_bytes)
        self._arena_bytes = arena_bytes
        self._arena: Arena | None = None
        self._lanes: dict[str, Lanes | None] = {}  # address -> how to call it; None: over gRPC
        self._breaks: dict[tuple[str, str], int] = {}  # (address, kind) -> in a row
        self._said: dict[str, str] = {}  # address -> the kind that the log told last
        self._locks: dict[str, threading.Lock] = {}  # address -> held by the thread that negotiates there
        self._lock = threading.Lock()  # guards _arena and _breaks
        self._registry = LaneRegistry()
        self._pid = os.getpid()

    @property
    def kinds(self) -> dict[str, str]:
        """How each server that was called is reached: address -> one of TRANSPORTS."""
        return {address: GRPC if lanes is None else lanes.kind for address, lanes in dict(self._lanes).items()}

    @property
    def times_arena_full(self) -> int:
        """How often rows travelled in the frame because the arena had no place for them."""
        return 0 if self._arena is None else self._arena.times_full

    def call(self, address: str, body: Any, timeout_s: float, peer: str = "The peer") -> Any:
        """Return the reply to a request; raise the ParameterServerError that the peer raised.

        Unreachable where there is none within `timeout_s` seconds, or the connection broke; ClientClosed after close(). InvalidRequest
        in a child that was forked after this was made, and where the chosen transport cannot be had.
        """
        if self._choice == GRPC or type(body) not in METHOD_NUMBERS:
            return self._grpc.call(address, body, timeout_s, peer)
        if os.getpid() != self._pid:
            raise InvalidRequest("this process", f"a fork of process {self._pid}, whose connection this is", "that process itself")
        try:
            lanes = self._lanes[address]
        except KeyError:
            lanes = self._negotiate(address, timeout_s, peer)
        if lanes is None:
            try:
                return self._grpc.call(address, body, timeout_s, peer)
            except Unreachable:
                with self._lock:
                    if self._lanes.get(address) is None:
                        self._lanes.pop(address, None)  # what comes back there may have lanes
                raise
        started_s = time.monotonic()
        try:
            reply = lanes.call(body, timeout_s, peer)
        except LaneBroken as error:
            if self._registry.is_closed:
                raise ClientClosed(f"call {type(body).__name__}") from None
            if not isinstance(error, LaneTimedOut):
                self._forget(address, lanes)
            raise Unreachable(peer, address, time.monotonic() - started_s, f"{error}, by {lanes.kind}") from None
        if self._breaks:
            self._breaks.pop((address, lanes.kind), None)
        return reply

    def lend(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return a place of the arena where some server shares one, for what is too large to travel in the frame; else None.

        Half of the arena stays for rows that are pulled, however many pushes are queued.
        """
        arena = self._arena
        if arena is None or nbytes < ARENA_BYTES_MIN or os.getpid() != self._pid or arena.free_bytes() - nbytes < arena.nbytes // 2:
            return None
        block = arena.find(nbytes)
        return None if block is None else block.array(0, (nbytes,), np.dtype(np.uint8))

    def close(self) -> None:
        """Close every connection; calls that are under way end as ClientClosed. A forked child leaves its parent's alone."""
        if os.getpid() != self._pid:
            return
        self._registry.close()
        self._grpc.close()
        for lanes in list(self._lanes.values()):
            if lanes is not None:
                lanes.retire()

    # --- negotiation -------------------------------------------------------------------------------------------------------------

    def _negotiate(self, address: str, timeout_s: float, peer: str) -> Lanes | None:
        with self._locks.setdefault(address, threading.Lock()):
            if address in self._lanes:  # another thread did
                return self._lanes[address]
            reasons: list[str] = []
            offered = self._offer(address, min(timeout_s, OFFER_S), peer, reasons)
            lanes = None if offered is None else self._first_that_works(address, offered, timeout_s, peer, reasons)
            if lanes is None and self._choice != AUTO:
                if address in self._said:  # it could be had before: the server may be restarting
                    raise Unreachable(peer, address, 0.0, "; ".join(reasons))
                raise InvalidRequest(
                    "transport", repr(self._choice), f"one that can be had with {peer} at {address} ({'; '.join(reasons)})"
                )
            self._say(address, peer, GRPC if lanes is None else lanes.kind, reasons)
            self._lanes[address] = lanes
            return lanes

    def _offer(self, address: str, timeout_s: float, peer: str, reasons: list[str]) -> LaneOffered | None:
        """Ask how the server listens; None where it has no lanes that this version speaks. Raises Unreachable."""
        try:
            offered = self._grpc.call(address, OpenLane(VERSION), timeout_s, peer)
        except InvalidRequest as error:  # an older server, or a proxy that lets only some methods through
            reasons.append(f"no lanes: {error}")
            return None
        assert isinstance(offered, LaneOffered)
        if offered.version != VERSION:
            reasons.append(f"no lanes: it speaks version {offered.version} and this worker {VERSION}")
            return None
        return offered

    def _first_that_works(self, address: str, offered: LaneOffered, timeout_s: float, peer: str, reasons: list[str]) -> Lanes | None:
        """Open lanes of the best kind; None where there are none. Raises Unreachable where the only choice gives no answer yet."""
        host, _ = split_address(address)
        for kind in LANES if self._choice == AUTO else (self._choice,):
            try:
                if not (offered.port if kind == TCP else offered.unix_path):
                    raise OSError("the server does not listen there")
                if self._breaks.get((address, kind), 0) >= BREAKS_MAX and self._choice == AUTO:
                    raise OSError(f"it broke {BREAKS_MAX} times in a row")
                lanes = Lanes(kind, host, offered, self._shared_memory() if kind == ARENA else None, self._registry)
                lanes.try_out(timeout_s)
                return lanes
            except (OSError, LaneRefused, LaneBroken) as error:
                reasons.append(f"no {kind}: {error}")
                if isinstance(error, LaneTimedOut) and self._choice != AUTO:  # it took the connection: it may be busy
                    raise Unreachable(peer, address, 0.0, reasons[-1]) from None
        return None

    def _shared_memory(self) -> Arena:
        with self._lock:
            if self._arena is None:
                self._arena = Arena(self._arena_bytes)
            return self._arena

    def _forget(self, address: str, lanes: Lanes) -> None:
        """Negotiate anew with the next call."""
        with self._lock:
            if self._lanes.get(address) is lanes:
                self._breaks[address, lanes.kind] = self._breaks.get((address, lanes.kind), 0) + 1
                del self._lanes[address]
        lanes.retire()

    def _say(self, address: str, peer: str, kind: str, reasons: list[str]) -> None:
        if self._said.get(address) == kind:
            return
        self._said[address] = kind
        level = logging.WARNING if kind == GRPC else logging.INFO
        log.log(level, "Rows travel to %s at %s by %s%s.", peer, address, kind, f" ({'; '.join(reasons)})" if reasons else "")

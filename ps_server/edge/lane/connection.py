"""One connection of the fast lane: frames in, requests to the core, answers out."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from ps_proto.codec import ID
from ps_proto.errors import InvalidRequest, ParameterServerError
from ps_proto.frames import (
    ALIGNMENT_BYTES,
    ERROR,
    HEAD_BYTES,
    IN_ARENA,
    IN_FRAME,
    LANE_METHODS,
    REPLY,
    REQUEST,
    Array,
    Head,
    Incoming,
    begin_of,
    filled,
    filled_bytes,
    message_of,
    pieces_of,
)
from ps_proto.status import to_detail
from ps_server.edge.lane.arena import MappedArena, Room
from ps_server.edge.loop import CoreLoop, Outcome
from sharding.arrays import empty_aligned

SCRATCH_BYTES = 1 << 16  # for heads and messages; arrays go straight to their place
JOINED_BYTES_MAX = 1 << 15  # of arrays: to copy them costs less than to write them apart, which wakes the worker twice
UNREAD_BYTES_MAX = 64 << 20  # of answers that a worker does not take; then its next requests wait

log = structlog.get_logger()


class LaneConnection(asyncio.BufferedProtocol):
    """Takes the frames of a worker that was let in. It may ask for the next before it has its answer; answers come as they are ready.

    A frame that is none, or lies, ends the connection: what follows it cannot be understood. The worker gets the reason where it can.
    """

    def __init__(self, loop: CoreLoop, bytes_max: int, arena: MappedArena | None, on_end: Callable[["LaneConnection"], None]) -> None:
        """`bytes_max`: the most array bytes of one request. `on_end`: called when it is over."""
        self._loop = loop
        self._bytes_max = bytes_max
        self._arena = arena
        self._on_end = on_end
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._begin = self._end = 0  # what of the scratch is yet to be looked at
        self._targets: deque[memoryview] = deque()  # where the bytes to come belong: arrays of the request that is coming in
        self._head = Head(REQUEST)
        self._incoming: Incoming | None = None
        self._waiting: dict[int, int] = {}  # call -> request
        self._is_paused = False  # whether answers wait for the worker to take them
        self._transport: Any = None

    # --- asyncio's calls -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes belong."""
        return self._targets[0] if self._targets else self._scratch[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has come."""
        try:
            if self._targets:
                self._fill(nbytes)
            else:
                self._end += nbytes
            self._take_frames()
        except ParameterServerError as error:
            self._refuse(error)
        except Exception as bug:
            self._refuse(self._loop.report(bug, "a frame"))

    def pause_writing(self) -> None:
        """Take no more from a worker that does not read, also of what is there already."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self.buffer_updated(0)  # some frames may be there already
        if not self._is_paused:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the core that nobody waits any more. From here on nothing is written to the arena for this connection."""
        for request in self._waiting.values():
            self._loop.drop(request)
        self._waiting.clear()
        self._on_end(self)

    def close(self) -> None:
        """End the connection once what was answered is sent."""
        self._transport.close()

    # --- frames in ---------------------------------------------------------------------------------------------------------------

    def _fill(self, nbytes: int) -> None:
        """Note that so many bytes of the first target are there."""
        target = self._targets[0]
        if nbytes < len(target):
            self._targets[0] = target[nbytes:]
            return
        self._targets.popleft()
        if not self._targets:
            self._ask()

    def _take_frames(self) -> None:
        while not (self._targets or self._is_paused or self._transport.is_closing()) and self._take_frame():
            pass

    def _take_frame(self) -> bool:
        """Take what is there of the next frame; return whether it was all of it."""
        have = self._end - self._begin
        if have < HEAD_BYTES:
            self._make_place(HEAD_BYTES)
            return False
        self._head = Head(REQUEST)  # what a refusal answers where there is no head
        self._head = head = Head.unpack(self._scratch[self._begin : self._end])
        if head.kind != REQUEST or head.method >= len(LANE_METHODS) or head.call in self._waiting:
            given = f"of kind {head.kind}, method {head.method} and call {head.call}"
            raise InvalidRequest("a frame", given, "a request of a known method, under a number that is not in use")
        if have < head.begin_bytes:
            self._make_place(head.begin_bytes)
            return False
        begin = self._begin + HEAD_BYTES
        message = bytes(self._scratch[begin : begin + head.message_bytes])
        self._begin += head.begin_bytes
        self._incoming = Incoming(LANE_METHODS[head.method], message, self._loop.name, self._bytes_max)
        if head.place == IN_ARENA:
            self._take_from_arena(self._incoming)
        else:
            self._take_from_frame(self._incoming)
        if self._begin == self._end:
            self._begin = self._end = 0
        if self._targets:
            return False
        self._ask()
        return True

    def _take_from_arena(self, incoming: Incoming) -> None:
        """Let the rows lie where they are. Ids are copied: the core relies on them, and the worker could change what it shares."""
        arena = self._arena
        if arena is None:
            raise InvalidRequest("a frame's place", "the arena", "the frame: this lane has no arena")
        begin = self._head.arrays_begin

        def make(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            nonlocal begin
            array = arena.array(begin, shape, dtype)
            begin += filled(array.nbytes)
            return array.copy() if dtype == ID else array

        incoming.rooms(self._head, make)

    def _take_from_frame(self, incoming: Incoming) -> None:
        if self._head.place != IN_FRAME:
            raise InvalidRequest("a frame's place", str(self._head.place), f"{IN_FRAME} or {IN_ARENA}")
        for room in incoming.rooms(self._head, empty_aligned):
            if room.nbytes:
                self._aim(room.data.cast("B"))
                self._aim(memoryview(bytearray(-room.nbytes % ALIGNMENT_BYTES)))

    def _aim(self, target: memoryview) -> None:
        """Fill a target from the scratch as far as that goes; the rest is to come."""
        there = min(len(target), self._end - self._begin)
        target[:there] = self._scratch[self._begin : self._begin + there]
        self._begin += there
        if there < len(target):
            self._targets.append(target[there:])

    def _make_place(self, nbytes: int) -> None:
        """See that `nbytes` from the first one that is there fit into the scratch."""
        have = self._end - self._begin
        scratch = self._scratch
        if nbytes > len(scratch) or (have == 0 and len(scratch) > SCRATCH_BYTES):
            scratch = memoryview(bytearray(max(nbytes, SCRATCH_BYTES)))
        scratch[:have] = self._scratch[self._begin : self._end]
        self._scratch, self._begin, self._end = scratch, 0, have

    # --- requests to the core, answers out ---------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Hand the request to the core, which may answer at once."""
        head, incoming, arena = self._head, self._incoming, self._arena
        assert incoming is not None
        self._incoming = None
        body = incoming.value()
        has_room = arena is not None and head.room_bytes > 0
        make_rows = Room(arena, head.room_begin, head.room_bytes).rows if arena is not None and has_room else empty_aligned
        is_borrowed = has_room or head.place == IN_ARENA
        request = self._loop.ask(body, lambda outcome: self._answer(head, outcome), make_rows, is_borrowed)
        if request is not None:
            self._waiting[head.call] = request

    def _answer(self, asked: Head, outcome: Outcome) -> None:
        self._waiting.pop(asked.call, None)
        try:
            if not isinstance(outcome, ParameterServerError):
                message, arrays = message_of(outcome)
                self._send_reply(asked, message, arrays)
                return
            refusal = outcome
        except ParameterServerError as error:
            refusal = error
        except Exception as bug:
            refusal = self._loop.report(bug, LANE_METHODS[asked.method].__name__)
        self._send_error(asked, refusal)

    def _send_reply(self, asked: Head, message: bytes, arrays: list[NDArray[Any]]) -> None:
        nbytes = filled_bytes(arrays)
        place = IN_ARENA if nbytes and self._lie_in_room(asked, arrays) else IN_FRAME
        begin = asked.room_begin if place == IN_ARENA else 0
        pieces = [begin_of(Head(REPLY, asked.method, asked.call, len(message), place, nbytes, begin), message)]
        if place == IN_FRAME:
            pieces += pieces_of(arrays)
        if len(pieces) > 1 and nbytes <= JOINED_BYTES_MAX:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            self._transport.write(piece)

    def _lie_in_room(self, asked: Head, arrays: list[NDArray[Any]]) -> bool:
        """Return whether the arrays lie in the room that was asked for, one behind the other."""
        if self._arena is None or not asked.room_bytes:
            return False
        begin = asked.room_begin
        for array in arrays:
            if not self._arena.holds_at(begin, array):
                return False
            begin += filled(array.nbytes)
        return True

    def _send_error(self, asked: Head, error: ParameterServerError) -> None:
        detail = to_detail(error)
        self._transport.write(begin_of(Head(ERROR, asked.method, asked.call, len(detail)), detail))

    def _refuse(self, error: ParameterServerError) -> None:
        """End the connection with one line in the log."""
        log.warning("a lane ends: its worker sent what cannot be taken", cause=str(error))
        self._targets.clear()
        self._send_error(self._head, error)
        self._transport.close()

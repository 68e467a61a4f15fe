"""One connection of the fast lane to one server: one call at a time, over a blocking socket."""

import math
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ps_proto.errors import InvalidRequest, ParameterServerError
from ps_proto.frames import (
    ALIGNMENT_BYTES,
    ERROR,
    HEAD_BYTES,
    HELLO,
    IN_ARENA,
    IN_FRAME,
    METHOD_NUMBERS,
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
from ps_proto.methods import METHODS
from ps_proto.status import from_detail
from ps_worker.transport.arena import Arena, Block
from sharding.arrays import empty_aligned

SCRATCH_BYTES = 1 << 16  # the begin of a reply is received here; arrays go straight to their place
ARENA_BYTES_MIN = 1 << 15  # fewer bytes travel faster in the frame, and should not keep places of the arena
PIECES_MAX = 1_000  # buffers in one system call; Linux takes 1,024
REPLY_BYTES_MAX = 2**63 - 1  # a reply is as large as what was asked for
TIMEOUT_STEP_S = 5.0  # longer timeouts are rounded up to whole seconds, so that they seldom have to be set anew


class LaneBroken(Exception):
    """The connection is of no use any more; prints why."""


class LaneTimedOut(LaneBroken):
    """There was no answer in time."""


class LaneRefused(Exception):
    """The server does not let this connection in; prints why."""


class Lane:
    """A connection that was let in. After a call that raised LaneBroken, or was interrupted, `give_up` is all that is left to do."""

    def __init__(self, connected: socket.socket, token: bytes, arena: Arena | None, timeout_s: float) -> None:
        """Say hello. Raises LaneRefused, or LaneBroken; the socket stays the caller's until it has succeeded."""
        self._socket = connected
        self._arena = arena
        self.is_sound = True  # whether it may serve another call
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._calls = 0
        self._timeout_s = 0.0
        self._deadline_s = 0.0
        self._lent: tuple[Sequence[Array], Block | None] = (), None  # what the server may look at, and what it may write to
        self._greet(token, timeout_s)

    def call(self, body: Any, timeout_s: float, peer: str, room_bytes: int) -> Any:
        """Return the reply to a request; raise the error that the server raised, InvalidRequest for what fits no message, or LaneBroken.

        room_bytes: how long the arrays of the reply will be, as far as that is known.
        """
        self._begin(timeout_s)
        self._calls += 1
        message, arrays = message_of(body)
        nbytes = filled_bytes(arrays)
        begin, room = None, None
        if self._arena is not None:
            begin = self._lay(arrays, nbytes, self._arena) if nbytes >= ARENA_BYTES_MIN else None
            room = self._arena.allocate(room_bytes) if room_bytes >= ARENA_BYTES_MIN else None
            self._lent = self._lent[0], room
        head = Head(
            REQUEST,
            METHOD_NUMBERS[type(body)],
            self._calls,
            len(message),
            IN_FRAME if begin is None else IN_ARENA,
            nbytes,
            begin or 0,
            0 if room is None else room.begin,
            0 if room is None else room.nbytes,
        )
        if begin is not None:
            arrays = []
        try:
            self._send([begin_of(head, message), *pieces_of(arrays)])
        except OSError:
            self.is_sound = False  # the server may have said why before it closed
        return self._read_reply(METHODS[type(body)].reply, peer, room)

    def give_up(self) -> None:
        """End the connection from this side. `has_ended` tells when the server is done with it; until then it may write to the arena."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)  # not close: a forked child may have the connection open too
        self._socket.setblocking(False)

    def has_ended(self) -> bool:
        """Return whether the server has closed a connection that was given up; then what it was lent is free."""
        try:
            while self._socket.recv_into(self._scratch):
                pass
        except BlockingIOError:
            return False
        except OSError:  # reset: closed too
            pass
        self.close()
        return True

    @property
    def has_lent(self) -> bool:
        """Whether a call that did not end has lent the server memory."""
        return bool(self._lent[0]) or self._lent[1] is not None

    def interrupt(self) -> None:
        """End what is under way in another thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, of a connection that no call uses."""
        self._lent = (), None
        self._socket.close()

    # --- the hello ---------------------------------------------------------------------------------------------------------------

    def _greet(self, token: bytes, timeout_s: float) -> None:
        self._begin(timeout_s)
        hello = begin_of(Head(HELLO, message_bytes=len(token)), token)
        try:
            if self._arena is None:
                self._socket.sendall(hello)
            else:
                socket.send_fds(self._socket, [hello], [self._arena.descriptor])
        except OSError as error:
            raise LaneBroken(str(error)) from None
        head, message, _ = self._read_begin()
        if head.kind == ERROR:
            raise LaneRefused(str(from_detail(message) or "for a reason that this version does not know"))
        if head.kind != HELLO:
            raise LaneBroken("it does not answer a hello")

    # --- out ---------------------------------------------------------------------------------------------------------------------

    def _begin(self, timeout_s: float) -> None:
        """Let everything until the next call of this take at most `timeout_s`."""
        self._deadline_s = time.monotonic() + timeout_s
        if timeout_s > TIMEOUT_STEP_S:
            timeout_s = math.ceil(timeout_s)
        if timeout_s != self._timeout_s:  # the kernel's timeouts, not Python's: those cost a poll for each call
            self._timeout_s = timeout_s
            value = struct.pack("ll", int(timeout_s), max(1, int(timeout_s % 1 * 1e6)))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def _lay(self, arrays: Sequence[Array], nbytes: int, arena: Arena) -> int | None:
        """Return where in the arena the arrays begin, which is where they lie already or where they are copied to; None: it is full."""
        begin = arena.place_of(arrays)
        if begin is None:
            block = arena.allocate(nbytes)
            if block is None:
                return None
            begin, arrays = block.begin, _copied(arrays, block)
        self._lent = arrays, None
        return begin

    def _send(self, pieces: list[Any]) -> None:
        while pieces:
            try:
                sent = self._socket.sendmsg(pieces[:PIECES_MAX])
            except BlockingIOError:
                raise LaneTimedOut("the server takes nothing") from None
            _advance(pieces, sent)
            if pieces:
                self._check_time("the server did not take the whole request")

    # --- in ----------------------------------------------------------------------------------------------------------------------

    def _read_reply(self, kind: type, peer: str, room: Block | None) -> Any:
        head, message, rest = self._read_begin()
        if head.kind not in (REPLY, ERROR) or (head.kind == REPLY and head.call != self._calls):
            raise LaneBroken(f"it answers call {self._calls} with a frame of kind {head.kind} and call {head.call}")
        self._lent = (), None  # who has answered is done with it
        if head.kind == ERROR:
            raise _error_of(message, peer)
        try:
            incoming = Incoming(kind, message, peer, REPLY_BYTES_MAX)
            if head.place == IN_FRAME:
                self._fill(incoming.rooms(head, empty_aligned), rest)
            else:
                incoming.rooms(head, _Placer(room, head).array)
            return incoming.value()
        except ParameterServerError as error:
            raise LaneBroken(f"it sends what is no reply: {error}") from None

    def _read_begin(self) -> tuple[Head, bytes, memoryview]:
        """Return head and message of the next frame, and what has come of its arrays."""
        have = self._receive_at_least(HEAD_BYTES, 0)
        try:
            head = Head.unpack(self._scratch)
        except InvalidRequest as error:
            raise LaneBroken(f"it sends what is no frame: {error}") from None
        if head.begin_bytes > len(self._scratch):
            self._scratch, scratch = memoryview(bytearray(head.begin_bytes)), self._scratch
            self._scratch[:have] = scratch[:have]
        have = self._receive_at_least(head.begin_bytes, have)
        message = bytes(self._scratch[HEAD_BYTES : HEAD_BYTES + head.message_bytes])
        return head, message, self._scratch[head.begin_bytes : have]

    def _receive_at_least(self, nbytes: int, have: int) -> int:
        """Receive to the scratch, where `have` bytes are, until there are `nbytes`; return how many there are."""
        while have < nbytes:
            have += self._receive([self._scratch[have:]], 0)
            if have < nbytes:
                self._check_time("the answer was not whole")
        return have

    def _fill(self, rooms: Sequence[Array], rest: memoryview) -> None:
        """Receive the arrays, of which `rest` has come already."""
        targets: list[Any] = []
        for room in rooms:
            if room.nbytes:
                targets += [room.data.cast("B"), memoryview(bytearray(-room.nbytes % ALIGNMENT_BYTES))]
        if len(rest) > sum([len(target) for target in targets]):
            raise LaneBroken("it sends more than its reply")
        while rest:
            taken = min(len(rest), len(targets[0]))
            targets[0][:taken] = rest[:taken]
            _advance(targets, taken)
            rest = rest[taken:]
        targets = [target for target in targets if len(target)]
        while targets:
            _advance(targets, self._receive(targets[:PIECES_MAX], socket.MSG_WAITALL))
            if targets:
                self._check_time("the answer was not whole")

    def _receive(self, targets: list[Any], flags: int) -> int:
        try:
            received = self._socket.recvmsg_into(targets, 0, flags)[0]
        except BlockingIOError:
            raise LaneTimedOut("no answer") from None
        except OSError as error:
            raise LaneBroken(str(error)) from None
        if not received:
            raise LaneBroken("the server closed the connection")
        return received

    def _check_time(self, problem: str) -> None:
        if time.monotonic() > self._deadline_s:
            raise LaneTimedOut(problem)


class _Placer:
    """Says where in its room each array of a reply lies."""

    def __init__(self, room: Block | None, head: Head) -> None:
        if room is None or head.place != IN_ARENA or head.arrays_begin != room.begin or head.arrays_bytes > room.nbytes:
            raise InvalidRequest(
                "the place of its arrays", f"{head.place}, {head.arrays_begin}", "the frame, or the room that it was given"
            )
        self._room = room
        self._offset = 0

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        array = self._room.array(self._offset, shape, dtype)
        self._offset += filled(array.nbytes)
        return array


def _copied(arrays: Sequence[Array], block: Block) -> list[Array]:
    """Return copies of the arrays in a block, one behind the other."""
    copies, offset = [], 0
    for array in arrays:
        copies.append(block.array(offset, array.shape, array.dtype))
        copies[-1][...] = array
        offset += filled(array.nbytes)
    return copies


def _advance(buffers: list[Any], nbytes: int) -> None:
    """Drop the first `nbytes` of what the buffers hold."""
    count = 0
    while count < len(buffers) and nbytes >= len(buffers[count]):
        nbytes -= len(buffers[count])
        count += 1
    del buffers[:count]
    if nbytes:
        buffers[0] = memoryview(buffers[0])[nbytes:]


def _error_of(detail: bytes, peer: str) -> ParameterServerError:
    return from_detail(detail) or InvalidRequest(
        f"the call to {peer}", "refused for a reason that this version does not know", "one it serves"
    )

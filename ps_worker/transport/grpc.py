"""Call peers over gRPC, from ordinary threads."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

# A DataLoader forks, and gRPC's own fork handlers would stall that. It is read when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from ps_proto.channel import CLIENT_OPTIONS
from ps_proto.errors import ClientClosed, InvalidRequest
from ps_proto.methods import METHODS, Method, Reader, to_bytes
from ps_proto.parts import PART_SIZE_BYTES
from ps_proto.status import from_call

REPLY_BYTES_MAX = 2**63 - 1  # a reply is as large as what was asked for
CLOSE_S = 2.0


# The process that first opened a channel. gRPC's threads do not survive a fork, so in a child of it every call would hang.
_grpc_pid: int | None = None


class GrpcTransport:
    """Calls by address; channels are opened when first needed. Any number of threads may call at once."""

    def __init__(self, part_size_bytes: int = PART_SIZE_BYTES) -> None:
        self._part_size_bytes = part_size_bytes
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()  # guards _channels and _is_closed
        self._is_closed = False

    def call(self, address: str, body: Any, timeout_s: float, peer: str = "The peer") -> Any:
        """Return the reply to a request; raise the ParameterServerError that the peer raised.

        Unreachable where there is none within `timeout_s` seconds, and where the network or a proxy says no; ClientClosed after close();
        InvalidRequest in a child that was forked after the first call.
        """
        method = METHODS[type(body)]
        started_s = time.monotonic()
        reader = Reader(method.reply, peer, REPLY_BYTES_MAX)
        try:
            self._exchange(method, address, to_bytes(body, self._part_size_bytes), timeout_s, reader)
        except grpc.RpcError as error:
            if self._is_closed:
                raise self._closed(method) from None
            raise from_call(error, peer=peer, address=address, after_s=time.monotonic() - started_s) from None
        return reader.value()

    def lend(self, nbytes: int) -> None:
        """Lend nothing: messages are made of what is sent, wherever it lies."""

    def close(self) -> None:
        """Close the channels; calls that are under way end as ClientClosed. A forked child leaves its parent's alone."""
        if _grpc_pid not in (None, os.getpid()):
            return
        with self._lock:
            self._is_closed = True
            channels = list(self._channels.values())
            self._channels.clear()
        # A Ctrl-C at the wrong instant leaves a call behind whose end channel.close() awaits for ever (grpc/grpc#19973): it gets CLOSE_S.
        closers = [threading.Thread(target=channel.close, name="rowstead-close", daemon=True) for channel in channels]
        for closer in closers:
            closer.start()
        deadline_s = time.monotonic() + CLOSE_S
        for closer in closers:
            closer.join(max(0.0, deadline_s - time.monotonic()))

    def _exchange(self, method: Method, address: str, messages: Iterator[bytes], timeout_s: float, reader: Reader) -> None:
        """Send the messages, let `reader` take the reply's. The first is made before the call: what fits none starts no call."""
        first = next(messages)
        second = next(messages, None)
        channel = self._channel(method, address)
        # One message is the same on the wire whether it is called a stream or not, but gRPC starts a thread to send a stream.
        if second is None:
            self._read(method, partial(_callable(channel, method, is_stream=False), first, timeout=timeout_s), reader)
        else:
            request = itertools.chain((first, second), messages)
            call = _Apart(partial(_callable(channel, method, is_stream=True), request, timeout=timeout_s))
            call.run(lambda start: self._read(method, start, reader))

    def _read(self, method: Method, start: Callable[[], Any], reader: Reader) -> None:
        try:
            replies = start()
        except ValueError:  # another thread has closed the channel
            raise self._closed(method) from None
        if isinstance(replies, bytes):
            reader.take(replies)
            return
        try:
            for message in replies:
                reader.take(message)
        finally:
            replies.cancel()  # of no effect where all has been read

    def _channel(self, method: Method, address: str) -> grpc.Channel:
        global _grpc_pid
        if _grpc_pid not in (None, os.getpid()):
            raise InvalidRequest(
                "this process", f"a fork of process {_grpc_pid}, which uses gRPC", "one that was spawned, or that process itself"
            )
        with self._lock:
            if self._is_closed:
                raise self._closed(method)
            if address not in self._channels:
                _grpc_pid = os.getpid()
                self._channels[address] = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
            return self._channels[address]

    def _closed(self, method: Method) -> ClientClosed:
        return ClientClosed(f"call {method.name}")


class _Apart:
    """A call that sends a stream, in a thread of its own. A Ctrl-C, which only reaches the main thread, then never lands inside of gRPC.

    There it may leave a lock held and the sending thread at work, for ever (grpc/grpc#19973). Here the call is cancelled, and has let go
    of the caller's arrays, before the KeyboardInterrupt goes on.
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._started: Future[Any] = Future()
        self._ended: Future[None] = Future()

    def run(self, read: Callable[[Callable[[], Any]], None]) -> None:
        """Call `read` with what starts the call, and wait for its end."""
        thread = threading.Thread(target=self._carry, args=(read,), name="rowstead-stream", daemon=True)
        try:
            thread.start()
            self._ended.result()
        finally:
            if not self._ended.done():
                threading.Thread(target=self._cancel, name="rowstead-cancel", daemon=True).start()
                wait([self._ended], timeout=CLOSE_S)

    def _carry(self, read: Callable[[Callable[[], Any]], None]) -> None:
        try:
            read(self._begin)
        except BaseException as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def _begin(self) -> Any:
        try:
            replies = self._start()
        except BaseException as error:
            self._started.set_exception(error)
            raise
        self._started.set_result(replies)
        return replies

    def _cancel(self) -> None:
        with suppress(Exception):  # one that could not start needs no end
            self._started.result().cancel()


def _callable(channel: grpc.Channel, method: Method, is_stream: bool) -> Any:
    if is_stream:  # its reply is read as a stream too, of one message or more: only such a call can be cancelled
        return channel.stream_stream(method.path)
    return channel.unary_stream(method.path) if method.streams_reply else channel.unary_unary(method.path)

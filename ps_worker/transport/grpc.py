"""Call peers over gRPC, from ordinary threads."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
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
            for message in self._exchange(method, address, to_bytes(body, self._part_size_bytes), timeout_s):
                reader.take(message)
        except grpc.RpcError as error:
            if self._is_closed:
                raise self._closed(method) from None
            raise from_call(error, peer=peer, address=address, after_s=time.monotonic() - started_s) from None
        return reader.value()

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

    def _exchange(self, method: Method, address: str, messages: Iterator[bytes], timeout_s: float) -> Iterator[bytes]:
        """Yield the reply's messages. The request's first one is made before the call, so that a request that fits none starts none."""
        first = next(messages)
        second = next(messages, None)
        # One message is the same on the wire whether it is called a stream or not, but gRPC starts a thread to send a stream.
        is_stream = second is not None
        request: Any = itertools.chain((first, second), messages) if is_stream else first
        channel = self._channel(method, address)
        try:
            replies: Any = _callable(channel, method, is_stream)(request, timeout=timeout_s)
        except ValueError:  # another thread has closed the channel
            raise self._closed(method) from None
        if isinstance(replies, bytes):
            yield replies
            return
        try:
            yield from replies
        finally:
            replies.cancel()  # else, after a Ctrl-C, server and sending thread wait for each other; of no effect where all has been read

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


def _callable(channel: grpc.Channel, method: Method, is_stream: bool) -> Any:
    if is_stream:  # its reply is read as a stream too, of one message or more: only such a call can be cancelled
        return channel.stream_stream(method.path)
    return channel.unary_stream(method.path) if method.streams_reply else channel.unary_unary(method.path)

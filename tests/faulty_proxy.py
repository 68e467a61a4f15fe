"""A gRPC proxy between workers and one server that loses requests, loses answers and sends requests twice, from a seed."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc

from ps_proto.channel import CLIENT_OPTIONS, SERVER_OPTIONS

THREADS = 64  # each parked pull holds one
FORWARD_TIMEOUT_S = 60.0


class FaultyProxy(grpc.GenericRpcHandler):
    """Listens at `address` and forwards to `target`, which is set once the server's address is known. `faults` counts what it did."""

    def __init__(self, seed: int, lose: float, double: float) -> None:
        self.target = ""
        self.faults: Counter[str] = Counter()
        self._lose, self._double = lose, double
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self._channel: grpc.Channel | None = None
        self._server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[self], options=SERVER_OPTIONS)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.stop(grace=0).wait()
        if self._channel is not None:
            self._channel.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Take every rpc as streams of bytes: a single message is a stream of one."""
        path = handler_call_details.method

        def forward(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            messages = list(requests)
            fate = self._fate()
            if fate == "request lost":
                context.abort(grpc.StatusCode.UNAVAILABLE, fate)
            if fate == "request doubled":
                self._ask(path, messages, context)
            replies = self._ask(path, messages, context)
            if fate == "answer lost":
                context.abort(grpc.StatusCode.UNAVAILABLE, fate)
            yield from replies

        return grpc.stream_stream_rpc_method_handler(forward)

    def _fate(self) -> str:
        with self._lock:
            number = self._rng.random()
            fates = (("request lost", self._lose / 2), ("answer lost", self._lose / 2), ("request doubled", self._double))
            for fate, chance in fates:
                if number < chance:
                    self.faults[fate] += 1
                    return fate
                number -= chance
            return "forwarded"

    def _ask(self, path: str, messages: list[bytes], context: grpc.ServicerContext) -> list[bytes]:
        try:
            return list(self._open_call(path)(iter(messages), timeout=FORWARD_TIMEOUT_S))
        except grpc.RpcError as error:
            metadata: Any = error.trailing_metadata() or ()
            context.set_trailing_metadata(tuple((key, value) for key, value in metadata))
            context.abort(error.code(), error.details() or "")

    def _open_call(self, path: str) -> Any:
        with self._lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(self.target, options=CLIENT_OPTIONS)
            return self._channel.stream_stream(path)

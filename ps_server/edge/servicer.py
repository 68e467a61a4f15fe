"""Serve a core over gRPC: messages to a value, the value to the core, its answer to messages, its refusal to a status.

Handlers take and give bytes and parse by hand, so that malformed ones are a typed error as any other (gRPC itself would say UNKNOWN).
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from ps_proto.errors import ParameterServerError
from ps_proto.methods import METHODS, Method, Reader, to_bytes
from ps_proto.parts import PART_SIZE_BYTES, REQUEST_BYTES_MAX
from ps_proto.status import DETAIL_KEY, to_status
from ps_server.edge.loop import CoreLoop
from ps_server.events import Body

Context = grpc.aio.ServicerContext[Any, Any]
Answers = Mapping[type, Callable[[Any], Body]]

NO_ANSWERS: Answers = {}


def add_servicer(
    server: grpc.aio.Server,
    service: str,
    loop: CoreLoop,
    max_request_bytes: int = REQUEST_BYTES_MAX,
    part_size_bytes: int = PART_SIZE_BYTES,
    answers: Answers = NO_ANSWERS,
) -> None:
    """Let `server` answer all methods of `service` from `loop`.

    Requests of the classes in `answers` are answered there: what the edge knows, the core is not asked.
    A request that announces more than `max_request_bytes` of arrays is RequestTooLarge; replies are cut at `part_size_bytes`.
    """
    servicer = Servicer(loop, max_request_bytes, part_size_bytes, answers)
    handlers = {method.name: servicer.handler(method) for method in METHODS.values() if method.service == service}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


class Servicer:
    """Answers calls from a CoreLoop."""

    def __init__(self, loop: CoreLoop, max_request_bytes: int, part_size_bytes: int, answers: Answers) -> None:
        self._loop = loop
        self._max_request_bytes = max_request_bytes
        self._part_size_bytes = part_size_bytes
        self._answers = answers

    def handler(self, method: Method) -> "grpc.RpcMethodHandler[Any, Any]":  # generic in its stub only
        """Return what gRPC calls for each call of a method."""

        async def to_one(request: Any, context: Context) -> bytes:
            (message,) = [message async for message in self._answer(method, request, context)]
            return message

        async def to_many(request: Any, context: Context) -> AsyncIterator[bytes]:
            async for message in self._answer(method, request, context):
                yield message

        match method.streams_request, method.streams_reply:
            case False, False:
                return grpc.unary_unary_rpc_method_handler(to_one)
            case True, False:
                return grpc.stream_unary_rpc_method_handler(to_one)
            case False, True:
                return grpc.unary_stream_rpc_method_handler(to_many)
            case _:
                return grpc.stream_stream_rpc_method_handler(to_many)

    async def _answer(self, method: Method, request: bytes | AsyncIterable[bytes], context: Context) -> AsyncIterator[bytes]:
        """Yield the reply's messages, or end the call with a status: the one place where exceptions become statuses."""
        try:
            body = await self._read(method, request)
            answer = self._answers.get(method.request)
            reply = await self._loop.submit(body) if answer is None else answer(body)
            for message in to_bytes(reply, self._part_size_bytes):
                yield message
            return
        except ParameterServerError as error:
            refusal = error
        except Exception as bug:
            refusal = self._loop.report(bug, method.name)
        code, sentence, detail = to_status(refusal)
        await context.abort(code, sentence, trailing_metadata=((DETAIL_KEY, detail),))

    async def _read(self, method: Method, request: bytes | AsyncIterable[bytes]) -> object:
        reader = Reader(method.request, self._loop.name, self._max_request_bytes)
        if isinstance(request, bytes):
            reader.take(request)
        else:
            async for message in request:
                reader.take(message)
        return reader.value()

"""Carry a core's orders to other servers, and a server's own requests to the coordinator."""

import time
from typing import Any

import grpc
import grpc.aio

from ps_proto.channel import CLIENT_OPTIONS
from ps_proto.methods import METHODS, Reader, to_bytes
from ps_proto.status import from_call
from ps_server.events import Body

TIMEOUT_S = 10.0
REPLY_BYTES_MAX = 1 << 30


class Sender:
    """Calls peers from an asyncio loop, for requests and replies that travel whole. Channels are opened when first needed."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def send(self, server: str, address: str, body: Body) -> Body:
        """Return the reply of `server` at `address`; raise the ParameterServerError that it raised, or Unreachable."""
        method = METHODS[type(body)]
        (message,) = to_bytes(body)
        started_s = time.monotonic()
        call: Any = self._channel(address).unary_unary(method.path)
        try:
            data = await call(message, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise from_call(error, peer=server, address=address, after_s=time.monotonic() - started_s) from None
        reader = Reader(method.reply, server, REPLY_BYTES_MAX)
        reader.take(data)
        return reader.value()

    async def close(self) -> None:
        """Close the channels; calls that are under way end as Unreachable."""
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
        return self._channels[address]

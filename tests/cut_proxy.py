"""A TCP proxy before one port that treats connections badly, byte by byte, from a seed: HTTP/2 and lanes alike.

    cut        after so many bytes, which may end within a frame, both sides find the connection reset
    half-open  after so many bytes nothing arrives any more in one direction, while the other one works; later the connection is reset
    late       after so many bytes the client's next ones are held back, and arrive although it gave up and has asked again meanwhile,
               by another connection: so requests overtake one another

Every connection is slow and delivers its bytes in pieces of other sizes. The first ones have the fates that the test hands in, in an order
from the seed; those that come when all have been dealt out are whole, so that a run ends.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"
CUT, HALF_OPEN, LATE = FATES = ("cut", "half-open", "late")
BUDGET_BYTES = (1_000, 30_000)  # how many bytes a connection forwards before its fate comes
DELAY_S = 0.002  # the most that each piece takes
PIECE_BYTES = 20_000  # the most of one
HALF_OPEN_S, LATE_S = 0.8, 0.6  # longer than the clients of a test wait for an answer
START_S = 10.0


@dataclass
class _Connection:
    """One that a client opened: its fate, once `budget` more bytes have passed; `client` and `server` write to the two ends.

    `loses_requests`: whether a half-open or late one treats what the client sends so, and not what the server does.
    """

    fate: str
    budget: int
    loses_requests: bool
    rng: random.Random
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter

    def befalls(self, is_of_client: bool) -> bool:
        """Return whether its fate comes now to what the client, or the server, has sent."""
        return self.fate != "" and self.budget < 0 and (self.fate == CUT or is_of_client == self.loses_requests)

    def reset(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class CutProxy:
    """Listens at `address` for the length of its block, and forwards to `target`. `faults` counts the fates that came."""

    def __init__(self, seed: int, fates: Sequence[str] = FATES, target: str = "") -> None:
        self.target = target
        self.port = 0
        self.faults: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._fates = list(fates)
        self._rng.shuffle(self._fates)
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="cut-proxy")
        self._started = threading.Event()
        self._stop: Callable[[], Any] = lambda: None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()
        self._thread.join()

    async def _serve(self) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await stopped.wait()
        server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _carry(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        rng = random.Random(self._rng.getrandbits(64))
        host, port = self.target.rsplit(":", 1)
        try:
            from_server, server = await asyncio.open_connection(host, int(port))
        except OSError:
            client.transport.abort()
            return
        fate = self._fates.pop() if self._fates else ""
        loses_requests = fate == LATE or rng.random() < 0.5
        connection = _Connection(fate, rng.randint(*BUDGET_BYTES), loses_requests, rng, client, server)
        try:
            await _both(self._pump(connection, from_client, server, True), self._pump(connection, from_server, client, False))
        finally:
            connection.reset()

    async def _pump(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_of_client: bool) -> None:
        """Carry one direction until its end, or the connection's."""
        while data := await reader.read(connection.rng.randint(1, PIECE_BYTES)):
            await asyncio.sleep(connection.rng.uniform(0.0, DELAY_S))
            before, connection.budget = max(connection.budget, 0), connection.budget - len(data)
            if connection.befalls(is_of_client):
                if not await self._meet_fate(connection, writer, data[:before]):
                    return
                data = data[before:]
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def _meet_fate(self, connection: _Connection, writer: asyncio.StreamWriter, first: bytes) -> bool:
        """Let the connection's fate come behind these bytes; return whether it goes on."""
        fate, connection.fate = connection.fate, ""
        self.faults[fate] += 1
        writer.write(first)
        await writer.drain()
        if fate != CUT:
            await asyncio.sleep(LATE_S if fate == LATE else HALF_OPEN_S)
        if fate != LATE:
            connection.reset()
        return fate == LATE


async def _both(*pumps: Coroutine[Any, Any, None]) -> None:
    """Run both directions to their ends; one that is reset ends the other one too."""
    with suppress(OSError):
        await asyncio.gather(*pumps)

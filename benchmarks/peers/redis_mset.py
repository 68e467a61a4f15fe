"""Redis: a row is a string under its id. It has no optimizer: a push writes whole rows, and nobody reads them before, as training would."""

import importlib
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.bed import DIM, Rows
from benchmarks.peers.running import serving
from benchmarks.peers.store import Places, Store

redis: Any = importlib.import_module("redis")

ROW_BYTES = 4 * DIM
START_S, START_TRIES = 10.0, 200
FLAGS = ("--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--protected-mode", "yes")


class Redis(Store):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def as_keys(self, places: Places) -> list[bytes]:
        packed = places.tobytes()
        return [packed[begin : begin + 8] for begin in range(0, len(packed), 8)]

    def as_rows(self, pulled: Any) -> Rows:
        rows: Rows = pulled
        return rows

    def create(self, num_rows: int) -> None:
        self._connection.flushall()

    def assign(self, keys: list[bytes], rows: Rows) -> None:
        self.push(keys, rows)

    def pull(self, keys: list[bytes]) -> Rows:
        return np.frombuffer(b"".join(self._connection.mget(keys)), np.float32).reshape(-1, DIM)

    def push(self, keys: list[bytes], gradients: Rows) -> None:
        packed = gradients.tobytes()
        values = [packed[begin : begin + ROW_BYTES] for begin in range(0, len(packed), ROW_BYTES)]
        self._connection.mset(dict(zip(keys, values, strict=True)))

    def apply(self, rows: Rows, state: Rows, gradients: Rows) -> None:
        rows[:] = gradients


@contextmanager
def opened(kind: str) -> Iterator[Store]:
    program = shutil.which("redis-server")
    assert program is not None
    address: dict[str, str | int]
    with tempfile.TemporaryDirectory() as folder:
        if kind == "unix":
            address, where = {"unix_socket_path": f"{folder}/redis"}, ["--port", "0", "--unixsocket", f"{folder}/redis"]
        else:
            port = _free_port()
            address, where = {"host": "127.0.0.1", "port": port}, ["--port", str(port)]
        with (
            serving([program, *FLAGS, *where, "--dir", folder]),
            redis.Redis(**address, retry=_retry(), retry_on_error=[redis.ConnectionError]) as connection,
        ):
            connection.ping()  # again and again, until the server listens
            yield Redis(connection)


def _retry() -> Any:
    constant = importlib.import_module("redis.backoff").ConstantBackoff(START_S / START_TRIES)
    return importlib.import_module("redis.retry").Retry(constant, START_TRIES)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])

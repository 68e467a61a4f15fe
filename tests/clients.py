"""Clients of clusters in this process, and what tests of them share."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inprocess import PATIENCE, InProcess
from ps_proto.values import SGD, Adam, Async, BoundedStaleness, Mode, Sync, TableSpec, Uniform
from ps_worker.asking import Patience
from ps_worker.client import Client
from ps_worker.records import Records

BRIEF = Patience(rpc_timeout_s=10.0, retry_timeout_s=0.05, wait_timeout_s=0.05, backoff=PATIENCE.backoff)
USER = TableSpec("user", 3, SGD(1.0), Uniform(-0.5, 0.5), seed=7)
ITEM = TableSpec("item", 2, SGD(1.0))
EXTREMES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
MODES = [Sync(), Async(), BoundedStaleness(1)]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)
Rows = npt.NDArray[np.float32]


def ones(count: int, dim: int = 3, value: float = 1.0) -> Rows:
    return np.full((count, dim), value, np.float32)


def alone(mode: Mode | None = None, servers: int = 2, *specs: TableSpec, **options: Any) -> tuple[InProcess, Client]:
    """A cluster with one worker, and its tables."""
    cluster = InProcess(servers, **options)
    client = cluster.connect(0, 1, mode or Async())
    for spec in specs or (USER, ITEM):
        client.create_table(spec)
    return cluster, client


def in_thread(action: Callable[[], Any]) -> "tuple[threading.Thread, list[Any]]":
    """Run it beside the test; the list gets its result or the exception that it ended in."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(action())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


MOMENTS = TableSpec("user", 3, Adam(lr=0.5))


def records_of(client: Client, table: str) -> Records:
    return Records.joined(list(client.export_records(table)))

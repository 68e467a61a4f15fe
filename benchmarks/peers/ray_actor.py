"""Ray: an actor that holds the table in numpy. Arrays of more than 100 KB travel through Ray's shared-memory object store."""

import importlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.bed import DIM, Rows
from benchmarks.dense import LEARNING_RATE
from benchmarks.peers.store import DenseStore, Places, Store, adagrad

OBJECT_STORE_BYTES = 1 << 30

ray: Any = importlib.import_module("ray")


class Table:
    """What the actor is."""

    def create(self, num_rows: int) -> None:
        self._rows = np.zeros((num_rows, DIM), np.float32)
        self._state = np.zeros_like(self._rows)

    def create_dense(self, values: Rows) -> None:
        self._dense = values.copy()

    def assign(self, places: Places, rows: Rows) -> None:
        self._rows[places] = rows

    def pull(self, places: Places) -> Rows:
        return np.take(self._rows, places, axis=0)

    def push(self, places: Places, gradients: Rows) -> None:
        rows, state = self._rows[places], self._state[places]
        adagrad(rows, state, gradients)
        self._rows[places], self._state[places] = rows, state

    def pull_dense(self) -> Rows:
        return self._dense

    def push_dense(self, gradients: Rows) -> None:
        self._dense -= np.float32(LEARNING_RATE) * gradients


class RayActor(DenseStore):
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def create(self, num_rows: int) -> None:
        ray.get(self._actor.create.remote(num_rows))

    def assign(self, keys: Places, rows: Rows) -> None:
        ray.get(self._actor.assign.remote(keys, rows))

    def pull(self, keys: Places) -> Any:
        return ray.get(self._actor.pull.remote(keys))

    def push(self, keys: Places, gradients: Rows) -> None:
        ray.get(self._actor.push.remote(keys, gradients))

    def create_dense(self, values: Rows) -> None:
        ray.get(self._actor.create_dense.remote(values))

    def pull_dense(self) -> Any:
        return ray.get(self._actor.pull_dense.remote())

    def push_dense(self, gradients: Rows) -> None:
        ray.get(self._actor.push_dense.remote(gradients))


@contextmanager
def opened() -> Iterator[Store]:
    """Start Ray; its processes end with the one that started them, by Ray's own care."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="error",
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            yield RayActor(ray.remote(Table).remote())
        finally:
            ray.shutdown()

"""TensorFlow: variables on a `ps` task of a `tf.distribute.Server`, over grpc, where ParameterServerStrategy puts them."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.bed import ADAGRAD, DIM, Rows
from benchmarks.dense import LEARNING_RATE
from benchmarks.peers.running import serving
from benchmarks.peers.store import DenseStore, Places, Store

tf: Any = importlib.import_module("tensorflow")

SERVER = "/job:ps/replica:0/task:0/device:CPU:0"
HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


class TensorFlow(DenseStore):
    """Reads are eager, which is faster here than a tf.function; a write is a tf.function, whose result comes after what it did."""

    def as_keys(self, places: Places) -> Any:
        return self._here(places)

    def as_values(self, values: Rows) -> Any:
        return self._here(values)

    def _here(self, array: Any) -> Any:
        with tf.device(HERE):
            return tf.constant(array)

    def create(self, num_rows: int) -> None:
        with tf.device(SERVER):
            table = self._table = tf.Variable(tf.zeros((num_rows, DIM)), trainable=False)
            state = self._state = tf.Variable(tf.zeros((num_rows, DIM)), trainable=False)

        def assign(keys: Any, rows: Any) -> Any:
            return tf.raw_ops.ResourceScatterUpdate(resource=table.handle, indices=keys, updates=rows)

        def push(keys: Any, gradients: Any) -> Any:
            return tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle, accum=state.handle, lr=ADAGRAD.lr, epsilon=ADAGRAD.eps, grad=gradients, indices=keys
            )

        rows = tf.TensorSpec((None, DIM), tf.float32)
        keys = tf.TensorSpec((None,), tf.int64)
        self._assign, self._push = _waited(assign, keys, rows), _waited(push, keys, rows)

    def assign(self, keys: Any, rows: Any) -> None:
        self._assign(keys, rows).numpy()

    def pull(self, keys: Any) -> Any:
        with tf.device(SERVER):
            rows = tf.raw_ops.ResourceGather(resource=self._table.handle, indices=keys, dtype=tf.float32)
        return rows.numpy()

    def push(self, keys: Any, gradients: Any) -> None:
        self._push(keys, gradients).numpy()

    def create_dense(self, values: Any) -> None:
        with tf.device(SERVER):
            dense = self._dense = tf.Variable(values, trainable=False)

        def push(gradients: Any) -> Any:
            return tf.raw_ops.ResourceApplyGradientDescent(var=dense.handle, alpha=np.float32(LEARNING_RATE), delta=gradients)

        self._push_dense = _waited(push, tf.TensorSpec(values.shape, tf.float32))

    def pull_dense(self) -> Any:
        with tf.device(SERVER):
            values = self._dense.read_value()
        return values.numpy()

    def push_dense(self, gradients: Any) -> None:
        self._push_dense(gradients).numpy()


def _waited(work: Any, *signature: Any) -> Any:
    """Return a tf.function that runs `work` on the server and returns a number from there once it has run."""

    def run(*arguments: Any) -> Any:
        with tf.device(SERVER), tf.control_dependencies([work(*arguments)]):
            return tf.identity(tf.constant(0))

    return tf.function(run, input_signature=signature, autograph=False)


def serve() -> None:
    """Be the server until killed; print the port first."""
    server = tf.distribute.Server({"ps": ["127.0.0.1:0"]}, job_name="ps", task_index=0, protocol="grpc")
    print(server.target.rpartition(":")[2], flush=True)
    server.join()


@contextmanager
def opened() -> Iterator[Store]:
    with serving([sys.executable, "-c", f"from {__name__} import serve; serve()"]) as server:
        assert server.stdout is not None
        tf.config.experimental_connect_to_host(f"grpc://127.0.0.1:{int(server.stdout.readline())}", "ps")
        yield TensorFlow()

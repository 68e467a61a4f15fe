"""Checkpoints of a table of dim 16 with Adagrad: written beside a plain write, loaded beside a plain read, felt by whoever trains."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import ps_worker as ps
from benchmarks.bed import Ids, Rows, check_rows
from benchmarks.case import Case, Figure, Goal, WrongAnswer
from benchmarks.growth import ADAGRAD, DIM, RECORD_BYTES, TABLE, gradients_of, ids_of
from benchmarks.sizes import Sizes
from ps_proto.orders import AskRestore, RollBack, Source
from ps_proto.requests import Fence, GetCluster, Pull, TableIds
from ps_worker.local_cluster import LocalCluster
from ps_worker.process_log import FileLogs
from ps_worker.transport.grpc import GrpcTransport

CHECKED = 1_000
TOUCHED = 100  # one row of so many changes before an increment
PULLED_IDS, PAUSE_S = 16, 0.001
PIECE_BYTES = 4 << 20
TERM = 1 << 40  # of orders: beyond what any coordinator here comes to
POLL_S = 0.01  # a coordinator asks ten times a second; 500 answers a second take from the loop that they are about
TIMEOUT_S = 600.0


class CheckpointBed:
    """A server whose table is filled, another one that loads its checkpoints, and a folder for these."""

    def __init__(self, sizes: Sizes, rng: np.random.Generator, stack: ExitStack) -> None:
        self.rng = rng
        self.rows_count = sizes.growth_rows
        self.nbytes = self.rows_count * (8 + RECORD_BYTES)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rowstead-bench-")))
        self.root, self._plain = folder / "checkpoints", folder / "plain"
        cluster = stack.enter_context(_cluster(f"--checkpoints={self.root}", "--checkpoint-full-every=1000000"))
        self._loading = stack.enter_context(_cluster())
        self._transport = stack.enter_context(closing(GrpcTransport()))
        self._timeline = 0
        self.client = stack.enter_context(ps.connect(cluster.address, rank=0, world_size=1, mode=ps.Async()))
        self.client.create_table(ps.TableSpec(TABLE, dim=DIM, optimizer=ADAGRAD))
        for begin in range(0, self.rows_count, sizes.growth_batch):
            numbers = np.arange(begin, min(begin + sizes.growth_batch, self.rows_count), dtype=np.uint64)
            self.client.push(TABLE, ids_of(numbers), gradients_of(numbers))

    def write_plainly(self) -> float:
        """Write as many bytes as a checkpoint of all rows has, to one file, until they are durable; return the seconds that it took."""
        data = np.ones(self.nbytes, np.uint8).data  # not counted: a server has its rows in memory, too
        begin_s = time.perf_counter()
        with self._plain.open("wb", buffering=0) as file:
            while data:
                data = data[file.write(data) or 0 :]
            os.fsync(file.fileno())
        took_s = time.perf_counter() - begin_s
        self._plain.unlink()
        return took_s

    def drop(self, number: int) -> None:
        """Let the system forget what it has in memory of a checkpoint's files."""
        for path in self._files(number):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read_plainly(self, number: int) -> None:
        """Read all files of a checkpoint into one piece of memory that holds them all, as nobody has touched it before."""
        paths = self._files(number)
        buffer = np.empty(sum([path.stat().st_size for path in paths]), np.uint8)
        begin = 0
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer[begin:].data):
                    begin += count

    def _files(self, number: int) -> list[Path]:
        return [path for path in self.root.glob(f"checkpoint-{number:010d}/**/*") if path.is_file()]

    def load(self, number: int) -> float:
        """Let the other server load a checkpoint, by the orders that a coordinator gives; return the seconds that it took."""
        cluster = self._transport.call(self._loading.address, GetCluster(), TIMEOUT_S)
        self._timeline += 1
        shard_map = replace(cluster.shard_map, version=cluster.shard_map.version + self._timeline)
        (server,) = shard_map.servers
        spec = ps.TableSpec(TABLE, dim=DIM, optimizer=ADAGRAD)
        order = RollBack(TERM, 0, self._timeline, shard_map, (spec,), None, Source(str(self.root), number))
        begin_s = time.perf_counter()
        self._transport.call(server.address, order, TIMEOUT_S)
        while (state := self._transport.call(server.address, AskRestore(TERM, 0, self._timeline), TIMEOUT_S)).phase == "loading":
            time.sleep(POLL_S)
        took_s = time.perf_counter() - begin_s
        if state.phase != "loaded" or state.rows != self.rows_count:
            raise WrongAnswer(f"the server that loads is {state.phase} with {state.rows} rows: {state.why}")
        self._fence = Fence(shard_map.version, timeline=self._timeline)
        return took_s

    def check_loaded(self) -> None:
        """Raise WrongAnswer unless the other server has the same rows."""
        ids = ids_of(self.rng.integers(0, self.rows_count, CHECKED, dtype=np.uint64))
        (server,) = self._transport.call(self._loading.address, GetCluster(), TIMEOUT_S).shard_map.servers
        pulled: Any = self._transport.call(server.address, Pull(self._fence, (TableIds(TABLE, ids),), None, TIMEOUT_S), TIMEOUT_S)
        check_rows(pulled.rows[0], self.client.pull(TABLE, ids))


class Pulling:
    """Pulls a few ids again and again for the length of a block. `longest_s`: the longest of these calls."""

    def __init__(self, client: ps.Client, ids: Ids) -> None:
        self.longest_s = 0.0
        self._client, self._ids = client, ids
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._pull)

    def __enter__(self) -> "Pulling":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def _pull(self) -> None:
        while True:
            begin_s = time.perf_counter()
            self._client.pull(TABLE, self._ids)
            self.longest_s = max(self.longest_s, time.perf_counter() - begin_s)
            if self._is_over.wait(PAUSE_S):
                return


class Writing(Case):
    """A checkpoint of all rows, asked for by a client, while another thread of it pulls 16 ids again and again.

    time          until it is complete; the floor writes one file of as many bytes, and syncs it
    longest turn  of the server; the floor is the longest of as many copies of 4 MiB as there are pieces
    longest pull  of the other thread; the floor is that beside the plain file
    """

    name = "checkpoint, written"
    figures = (
        Figure("time", "s", Goal("at least", 0.5)),
        Figure("longest turn", "ms", Goal("at most", 50.0, of="ours")),
        Figure("longest pull", "ms", Goal("at most", 100.0, of="ours")),
    )

    def __init__(self, bed: CheckpointBed) -> None:
        self._bed = bed

    def prepare(self) -> None:
        self._ids = ids_of(self._bed.rng.integers(0, self._bed.rows_count, PULLED_IDS, dtype=np.uint64))

    def floor(self) -> tuple[float, ...]:
        with Pulling(self._bed.client, self._ids) as pulling:
            took_s = self._bed.write_plainly()
        piece = np.ones(PIECE_BYTES, np.uint8)
        copies = [_seconds(piece.copy) for _ in range(max(1, self._bed.nbytes // PIECE_BYTES))]
        return took_s, 1e3 * max(copies), 1e3 * pulling.longest_s

    def ours(self) -> tuple[float, ...]:
        with Pulling(self._bed.client, self._ids) as pulling:
            begin_s = time.perf_counter()
            self._taken = self._bed.client.checkpoint(full=True)
            took_s = time.perf_counter() - begin_s
        return took_s, 1e3 * self._taken.stall_s, 1e3 * pulling.longest_s

    def check(self) -> None:
        if self._taken.rows != self._bed.rows_count:
            raise WrongAnswer(f"the checkpoint has {self._taken.rows} rows of {self._bed.rows_count}")


class Loading(Case):
    """A server loads a checkpoint of all rows, from the order to its end; the floor reads the same files into new memory, and keeps them.

    from the disk  after the system has forgotten the files, as on another machine     from memory  while it has them, as after a crash
    """

    name = "checkpoint, loaded"
    figures = (Figure("from the disk", "s", Goal("at least", 0.5)), Figure("from memory", "s", Goal("at least", 0.25)))

    def __init__(self, bed: CheckpointBed) -> None:
        self._bed = bed
        self._number = bed.client.checkpoint(full=True).number

    def prepare(self) -> None:
        """Nothing differs from round to round."""

    def floor(self) -> tuple[float, ...]:
        self._bed.drop(self._number)
        return _seconds(lambda: self._bed.read_plainly(self._number)), _seconds(lambda: self._bed.read_plainly(self._number))

    def ours(self) -> tuple[float, ...]:
        self._bed.drop(self._number)
        return self._bed.load(self._number), self._bed.load(self._number)

    def check(self) -> None:
        self._bed.check_loaded()


class Incrementing(Case):
    """A checkpoint of the one row in a hundred that changed; the floor writes plainly what a checkpoint of all rows has."""

    name = "checkpoint, 1 % touched"
    figures = (Figure("time", "s", Goal("at most", 0.5)),)

    def __init__(self, bed: CheckpointBed) -> None:
        self._bed = bed

    def prepare(self) -> None:
        numbers = self._bed.rng.choice(self._bed.rows_count, self._bed.rows_count // TOUCHED, replace=False).astype(np.uint64)
        gradients: Rows = np.ones((numbers.size, DIM), np.float32)
        self._bed.client.push(TABLE, ids_of(numbers), gradients)

    def floor(self) -> tuple[float, ...]:
        return (self._bed.write_plainly(),)

    def ours(self) -> tuple[float, ...]:
        begin_s = time.perf_counter()
        self._taken = self._bed.client.checkpoint()
        return (time.perf_counter() - begin_s,)

    def check(self) -> None:
        if self._taken.rows != self._bed.rows_count // TOUCHED:
            raise WrongAnswer(f"the increment has {self._taken.rows} rows")
        self._bed.load(self._taken.number)
        self._bed.check_loaded()


CASES = (Writing, Loading, Incrementing)


@contextmanager
def checkpoint_bed(sizes: Sizes, seed: int) -> Iterator[CheckpointBed]:
    """Run both servers for the length of the block."""
    with ExitStack() as stack:
        yield CheckpointBed(sizes, np.random.default_rng(seed), stack)


@contextmanager
def checkpoint_case(case: type[Writing | Loading | Incrementing], bed: CheckpointBed) -> Iterator[Case]:
    """Open one of CASES."""
    yield case(bed)


def _cluster(*coordinator_flags: str) -> LocalCluster:
    return LocalCluster(1, TIMEOUT_S, FileLogs(None), ["--log-level=warning"], coordinator_flags=coordinator_flags)


def _seconds(work: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s

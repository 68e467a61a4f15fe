"""Start-up: from the command line to a server that says over gRPC that it serves, with a cache of compiled kernels and without."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

import ps_worker as ps
from benchmarks.bed import Rows, check_rows
from benchmarks.case import Case, Figure, Goal, WrongAnswer

LIMITS_S = {"warm": 2.0, "cold": 20.0}
WAIT_S = 120.0
POLL_S = 0.005
IMPORTS = "import grpc.aio, numba, numpy, uvloop, google.protobuf.message"
TABLE, DIM = "first", 16


class StartUp(Case):
    """Beside a bare Python that imports the libraries that a server needs.

    It is checked that the server's first pull and push compile nothing: a server that serves has its kernels.
    """

    def __init__(self, kind: str, cache: Path) -> None:
        self.name = f"start-up, {kind}"
        self.figures = (Figure("until it serves", "s", Goal("at most", LIMITS_S[kind], of="ours")),)
        self._is_cold = kind == "cold"
        self._cache = cache

    def prepare(self) -> None:
        """Have a cache of compiled kernels, or none."""
        if self._is_cold:
            shutil.rmtree(self._cache, ignore_errors=True)
        elif not self._cache.exists():
            self._serve()

    def floor(self) -> tuple[float, ...]:
        begin_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        return (time.perf_counter() - begin_s,)

    def ours(self) -> tuple[float, ...]:
        return (self._serve(),)

    def check(self) -> None:
        if self._compiled_later:
            raise WrongAnswer(
                f"a server that said it serves compiled {len(self._compiled_later)} kernels after that: {self._compiled_later}"
            )
        check_rows(self._pulled, np.full((4, DIM), -1.0, np.float32))

    def _serve(self) -> float:
        """Return the seconds that a server takes; then pull and push once, and end it."""
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            started = stack.enter_context(_process("ps_server.coordinator", Path(folder) / "coordinator", "--servers=1"))
            coordinator = _address(started, Path(folder) / "coordinator")
            begin_s = time.perf_counter()
            flags = (f"--coordinator={coordinator}", "--name=server-0")
            server = stack.enter_context(_process("ps_server", Path(folder) / "server", *flags, cache=self._cache))
            _wait_until_it_serves(_address(server, Path(folder) / "server"))
            took_s = time.perf_counter() - begin_s
            compiled = self._compiled()
            self._pulled = _train(coordinator)
            self._compiled_later = sorted(self._compiled() - compiled)
        return took_s

    def _compiled(self) -> set[str]:
        return {path.name for path in self._cache.rglob("*.nbc")}


def _train(coordinator: str) -> Rows:
    """Push once and return what is pulled then."""
    with ps.connect(coordinator, rank=0, world_size=1, mode=ps.Async()) as client:
        client.create_table(ps.TableSpec(TABLE, dim=DIM, optimizer=ps.SGD(lr=1.0)))
        ids = np.arange(4, dtype=np.uint64)
        client.push(TABLE, ids, np.ones((4, DIM), np.float32))
        return client.pull(TABLE, ids)


@contextmanager
def _process(module: str, announced: Path, *flags: str, cache: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of ours for the length of the block; it writes its address to the file `announced`."""
    command = [sys.executable, "-m", module, *flags, f"--announce={announced}", "--log-level=warning"]
    environment = {**os.environ} if cache is None else {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    process = subprocess.Popen(command, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=WAIT_S)


def _address(process: subprocess.Popen[bytes], announced: Path) -> str:
    deadline_s = time.monotonic() + WAIT_S
    while not announced.exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"A process did not say where it listens; its exit code is {process.returncode}")
        time.sleep(POLL_S)
    return announced.read_text().strip()


def _wait_until_it_serves(address: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        request = health_pb2.HealthCheckRequest()
        while check(request, timeout=WAIT_S, wait_for_ready=True).status != health_pb2.HealthCheckResponse.SERVING:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"The server at {address} does not serve after {WAIT_S:g} s")
            time.sleep(POLL_S)


@contextmanager
def start_up_case(kind: str) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as folder:
        yield StartUp(kind, Path(folder) / "kernels")

"""A cluster of one's own on this machine: a coordinator and servers as subprocesses on loopback."""

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from ps_proto.errors import ClusterFailed, InvalidRequest, ParameterServerError
from ps_proto.plugins import join_names
from ps_proto.requests import Cluster, GetCluster
from ps_worker.child import Child
from ps_worker.held_port import HeldPort
from ps_worker.post import Post
from ps_worker.process_log import FileLogs, Logs
from ps_worker.restarts import Restarts
from ps_worker.transport.grpc import GrpcTransport

log = logging.getLogger("rowstead")

SERVERS_MAX = 256
MAX_RESTARTS = 3
POLL_S = 0.2  # how soon the end of a process is noticed
START_POLL_S = 0.02
STOP_GRACE_S = 5.0
STATE_FILE = "coordinator.sqlite3"
OWN_VARIABLES = ("ROWSTEAD_SERVER_", "ROWSTEAD_COORDINATOR_")


class LocalCluster:
    """A coordinator and servers that live as long as this object is started; see `local_cluster`.

    `address`  the coordinator's host:port, for `connect`.     `pids`  {"coordinator": pid, "server-0": pid, ...}, of those that run now.
    The processes end with the `with` block or `stop()`, and also when this process is killed.

    `flags` go to every process, `server_flags` and `coordinator_flags` to those. start() calls `while_waiting` again and again; what that
    raises ends it.
    Once it is started, tend() starts again what has ended, each process at most `max_restarts` times, and tells `say` of it; the
    coordinator listens where it did, so nobody has to look for it, and goes on from its state, which it keeps in the folder `state`, or in
    one that goes with the cluster. Where it `tends_itself`, a thread of its own does that.
    """

    def __init__(
        self,
        servers: int,
        timeout_s: float,
        logs: Logs,
        flags: Sequence[str],
        server_flags: Sequence[str] = (),
        coordinator_flags: Sequence[str] = (),
        *,
        host: str = "127.0.0.1",
        state: Path | None = None,
        max_restarts: int = 0,
        tends_itself: bool = False,
        say: Callable[[str], None] = log.warning,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        if isinstance(servers, bool) or not isinstance(servers, int) or not 1 <= servers <= SERVERS_MAX:
            raise InvalidRequest("servers", repr(servers), f"a whole number from 1 to {SERVERS_MAX}")
        if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
            raise InvalidRequest("max_restarts", repr(max_restarts), "a whole number from 0 on")
        self._servers = servers
        self._timeout_s = timeout_s
        self._logs = logs
        self._host = host
        self._flags = [f"--host={host}", *flags]
        self._server_flags = server_flags
        self._coordinator_flags = coordinator_flags
        self._max_restarts = max_restarts
        self._say = say
        self._while_waiting = while_waiting
        self._posts: list[Post] = []
        self._state = state
        self._folder: Path | None = None  # where the coordinator writes its address and, without `state`, its state
        self._held: HeldPort | None = None
        self._address = ""
        self._tends_itself = tends_itself
        self._tender: threading.Thread | None = None
        self._is_stopping = threading.Event()
        self._owner = os.getpid()

    @property
    def address(self) -> str:
        if not self._address:
            raise ClusterFailed("The local cluster", "is not running: use it inside its with block, or after start()", "")
        return self._address

    @property
    def pids(self) -> dict[str, int]:
        return {post.name: post.child.pid for post in self._posts}

    def start(self) -> Self:
        """Start all processes and wait until the rows are shared out among the servers.

        Raises ClusterFailed for a process that ends meanwhile or is not ready in time; none is left behind.
        """
        if self._posts:
            return self
        deadline_s = time.monotonic() + self._timeout_s
        try:
            address = self._start_coordinator(deadline_s)
            for number in range(self._servers):
                name = f"server-{number}"
                self._start(name, "ps_server", [f"--coordinator={address}", f"--name={name}", *self._server_flags])
            self._wait_for_map(address, deadline_s)
        except BaseException:
            self.stop()
            raise
        self._address = address
        if self._tends_itself:
            self._is_stopping.clear()
            self._tender = threading.Thread(target=self._tend_until_stopped, name="rowstead-tend", daemon=True)
            self._tender.start()
        return self

    def stop(self) -> None:
        """End all processes; those that do not end within a few seconds are killed. Does nothing in a forked child, nor a second time."""
        if os.getpid() != self._owner:
            return
        self._address = ""
        self._is_stopping.set()
        if self._tender is not None:
            self._tender.join()
            self._tender = None
        for post in self._posts:
            post.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_GRACE_S
        for post in self._posts:
            post.wait_or_kill(max(0.0, deadline_s - time.monotonic()))
        self._posts = []
        if self._held is not None:
            self._held.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self._logs.close()

    def tend(self) -> None:
        """Start again what has ended; to be called again and again, by one thread. Raises ProcessEnded for what has ended too often."""
        for post in self._posts:
            post.tend(time.monotonic())

    def kill(self) -> None:
        """Kill all processes, without waiting: a signal handler may call this, also while stop() waits, which is then quick."""
        for post in self._posts:
            post.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _tend_until_stopped(self) -> None:
        posts = list(self._posts)
        while not self._is_stopping.wait(POLL_S):
            for post in posts:
                try:
                    post.tend(time.monotonic())
                except ClusterFailed as error:
                    self._say(f"{error}\nIt is not started again.")
                    posts = [other for other in posts if other is not post]

    def _start_coordinator(self, deadline_s: float) -> str:
        """Return its address, which it writes to a file once it listens."""
        self._folder = Path(tempfile.mkdtemp(prefix="rowstead-"))
        announced = self._folder / "coordinator.address"
        state = self._state if self._state is not None else self._folder
        for old in state.glob(f"{STATE_FILE}*"):  # of a cluster that was: this one begins anew
            old.unlink()
        flags = [f"--servers={self._servers}", f"--port={self._hold_port()}", f"--state={state}", f"--announce={announced}"]
        post = self._start("coordinator", "ps_server.coordinator", [*flags, *self._coordinator_flags])
        while not announced.exists():
            self._while_waiting()
            post.child.check()
            if time.monotonic() > deadline_s:
                raise post.child.failed(f"did not listen within {self._timeout_s:g} s")
            time.sleep(START_POLL_S)
        return announced.read_text().strip()

    def _hold_port(self) -> int:
        try:
            self._held = HeldPort(self._host)
        except OSError:  # the coordinator says it better
            return 0
        return self._held.port

    def _start(self, name: str, module: str, flags: Sequence[str]) -> Post:
        """Start `python -m MODULE FLAGS`, which ends when this process does.

        It is told what it is by its flags alone: our own environment variables are kept from it.
        """
        command = [sys.executable, "-m", module, *flags, *self._flags, f"--exit-with-parent={os.getpid()}"]
        process_log = self._logs.of(name)

        def start() -> Child:
            environment = {variable: value for variable, value in os.environ.items() if not variable.startswith(OWN_VARIABLES)}
            return Child(name, command, environment, process_log)

        post = Post(name, start, Restarts(self._max_restarts), self._say)
        post.fill()
        self._posts.append(post)
        return post

    def _wait_for_map(self, address: str, deadline_s: float) -> None:
        with closing(GrpcTransport()) as transport:
            while not _has_map(transport, address):
                self._while_waiting()
                for post in self._posts:
                    post.child.check()
                if time.monotonic() > deadline_s:
                    raise ClusterFailed(
                        "The cluster", f"was not ready within {self._timeout_s:g} s", self._posts[-1].child.failed("").last_lines
                    )


def _has_map(transport: GrpcTransport, address: str) -> bool:
    try:
        cluster = transport.call(address, GetCluster(wait_s=POLL_S), timeout_s=10 * POLL_S)
    except ParameterServerError:  # not yet, or the coordinator ended, which its parent notices better
        time.sleep(POLL_S / 4)
        return False
    assert isinstance(cluster, Cluster)
    return cluster.shard_map is not None


def local_cluster(
    servers: int = 2,
    *,
    timeout_s: float = 120.0,
    log_dir: str | Path | None = None,
    log_level: str = "info",
    rows_max: int | None = None,
    max_request_bytes: int | None = None,
    plugins: Sequence[str] = (),
    max_restarts: int = MAX_RESTARTS,
    lease_s: float | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every_steps: int | None = None,
    checkpoint_every_s: float | None = None,
    checkpoint_keep: int | None = None,
    checkpoint_full_every: int | None = None,
    checkpoint_options: Sequence[str] = (),
    restore: str | Path | None = None,
) -> LocalCluster:
    """Return a cluster of a coordinator and `servers` servers on this machine, for a `with` block or its start() and stop().

    `timeout_s`  how long start() may take: the first one ever compiles the kernels.     `log_dir`  where the processes' logs and the
    coordinator's state are kept; by default they go when the cluster stops.     `rows_max`, `max_request_bytes`  limits of each server, as
    `ps-server` has them.
    `plugins`  modules with optimizers and initializers of your own, which coordinator and servers import.     `max_restarts`  how often
    each process is started again that ends while it should run: with a server, all go back to the last checkpoint, and workers are told
    RolledBack.     `lease_s`  after how many seconds a worker that is not heard of counts as lost.     `checkpoints`  a folder or URL for
    them, `checkpoint_every_steps` and `checkpoint_every_s` when they are taken unasked, `checkpoint_keep` how many stay,
    `checkpoint_full_every` how many of them have all rows, `checkpoint_options` of an object store, as "aws_region=eu-west-1", and
    `restore` the one to begin with: docs/checkpoints.md.     Raises InvalidRequest.

    >>> with ps.local_cluster(servers=2) as cluster:     # doctest: +SKIP
    ...     client = ps.connect(cluster.address)
    """
    server_flags = _given({"rows-max": rows_max, "max-request-bytes": max_request_bytes})
    coordinator_flags = _given(
        {
            "lease-s": lease_s,
            "checkpoints": checkpoints,
            "checkpoint-every-steps": checkpoint_every_steps,
            "checkpoint-every-s": checkpoint_every_s,
            "checkpoint-keep": checkpoint_keep,
            "checkpoint-full-every": checkpoint_full_every,
            "restore": restore,
        }
    )
    if isinstance(checkpoint_options, str):
        raise InvalidRequest("checkpoint_options", repr(checkpoint_options), "a list of options, such as ['aws_region=eu-west-1']")
    store_flags = _given({"checkpoint-options": ",".join(checkpoint_options) or None})
    flags = [f"--log-level={log_level}", f"--plugins={join_names('plugins', plugins)}", *store_flags]
    folder = Path(log_dir) if log_dir is not None else None
    return LocalCluster(
        servers,
        timeout_s,
        FileLogs(folder),
        flags,
        server_flags,
        coordinator_flags,
        state=state_in(folder),
        max_restarts=max_restarts,
        tends_itself=max_restarts != 0,
    )


def _given(flags: Mapping[str, object]) -> list[str]:
    return [f"--{flag}={value}" for flag, value in flags.items() if value is not None]


def state_in(log_dir: Path | None) -> Path | None:
    """Return where the coordinator's state is kept beside the logs in `log_dir`."""
    return log_dir / "state" if log_dir is not None else None

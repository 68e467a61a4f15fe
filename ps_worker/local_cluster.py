"""A cluster of one's own on this machine: a coordinator and servers as subprocesses on loopback."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from ps_proto.errors import ClusterFailed, InvalidRequest, ParameterServerError
from ps_proto.plugins import join_names
from ps_proto.requests import Cluster, GetCluster
from ps_worker.child import Child
from ps_worker.process_log import FileLogs, Logs
from ps_worker.transport.grpc import GrpcTransport

SERVERS_MAX = 256
POLL_S = 0.2  # how soon the end of a starting process is noticed
STOP_GRACE_S = 5.0
OWN_VARIABLES = ("ROWSTEAD_SERVER_", "ROWSTEAD_COORDINATOR_")


class LocalCluster:
    """A coordinator and servers that live as long as this object is started; see `local_cluster`.

    `address`  the coordinator's host:port, for `connect`.     `pids`  {"coordinator": pid, "server-0": pid, ...}.
    The processes end with the `with` block or `stop()`, and also when this process is killed.

    `flags` go to every process, `server_flags` to the servers. start() calls `while_waiting` again and again; what that raises ends it.
    """

    def __init__(
        self,
        servers: int,
        timeout_s: float,
        logs: Logs,
        flags: Sequence[str],
        server_flags: Sequence[str] = (),
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        if isinstance(servers, bool) or not isinstance(servers, int) or not 1 <= servers <= SERVERS_MAX:
            raise InvalidRequest("servers", repr(servers), f"a whole number from 1 to {SERVERS_MAX}")
        self._servers = servers
        self._timeout_s = timeout_s
        self._logs = logs
        self._flags = flags
        self._server_flags = server_flags
        self._while_waiting = while_waiting
        self._children: list[Child] = []
        self._address = ""
        self._owner = os.getpid()

    @property
    def address(self) -> str:
        if not self._address:
            raise ClusterFailed("The local cluster", "is not running: use it inside its with block, or after start()", "")
        return self._address

    @property
    def pids(self) -> dict[str, int]:
        return {child.name: child.pid for child in self._children}

    def start(self) -> Self:
        """Start all processes and wait until the rows are shared out among the servers.

        Raises ClusterFailed for a process that ends meanwhile or is not ready in time; none is left behind.
        """
        if self._children:
            return self
        deadline_s = time.monotonic() + self._timeout_s
        try:
            address = self._start_coordinator(deadline_s)
            for number in range(self._servers):
                self._start(f"server-{number}", "ps_server", [f"--coordinator={address}", f"--name=server-{number}", *self._server_flags])
            self._wait_for_map(address, deadline_s)
        except BaseException:
            self.stop()
            raise
        self._address = address
        return self

    def stop(self) -> None:
        """End all processes; those that do not end within a few seconds are killed. Does nothing in a forked child, nor a second time."""
        if os.getpid() != self._owner:
            return
        self._address = ""
        for child in self._children:
            child.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_GRACE_S
        for child in self._children:
            child.wait_or_kill(max(0.0, deadline_s - time.monotonic()))
        self._children = []
        self._logs.close()

    def check(self) -> None:
        """Raise ClusterFailed if one of the processes has ended."""
        for child in self._children:
            child.check()

    def kill(self) -> None:
        """Kill all processes, without waiting: a signal handler may call this, also while stop() waits, which is then quick."""
        for child in self._children:
            child.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _start_coordinator(self, deadline_s: float) -> str:
        """Return its address, which it writes into a pipe once it listens."""
        reader, writer = os.pipe()
        with open(reader, "rb", buffering=0) as pipe:
            try:
                flags = [f"--servers={self._servers}", f"--announce={writer}"]
                coordinator = self._start("coordinator", "ps_server.coordinator", flags, pass_fds=[writer])
            finally:
                os.close(writer)
            while not select.select([pipe], [], [], POLL_S)[0]:
                self._while_waiting()
                coordinator.check()
                if time.monotonic() > deadline_s:
                    raise coordinator.failed(f"did not listen within {self._timeout_s:g} s")
            address = pipe.readline().decode().strip()
        if not address:  # the pipe was closed by its end
            coordinator.wait_or_kill(STOP_GRACE_S)
            coordinator.check()
        return address

    def _start(self, name: str, module: str, flags: Sequence[str], pass_fds: Sequence[int] = ()) -> Child:
        """Start `python -m MODULE FLAGS`, which ends when this process does.

        It is told what it is by its flags alone: our own environment variables are kept from it.
        """
        command = [sys.executable, "-m", module, *flags, *self._flags, f"--exit-with-parent={os.getpid()}"]
        environment = {variable: value for variable, value in os.environ.items() if not variable.startswith(OWN_VARIABLES)}
        child = Child(name, command, environment, self._logs.of(name), pass_fds)
        self._children.append(child)
        return child

    def _wait_for_map(self, address: str, deadline_s: float) -> None:
        with closing(GrpcTransport()) as transport:
            while not _has_map(transport, address):
                self._while_waiting()
                self.check()
                if time.monotonic() > deadline_s:
                    raise ClusterFailed(
                        "The cluster", f"was not ready within {self._timeout_s:g} s", self._children[-1].failed("").last_lines
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
) -> LocalCluster:
    """Return a cluster of a coordinator and `servers` servers on this machine, for a `with` block or its start() and stop().

    `timeout_s`  how long start() may take: the first one ever compiles the kernels.     `log_dir`  where the processes' logs are kept; by
    default they go when the cluster stops.     `rows_max`, `max_request_bytes`  limits of each server, as `ps-server` has them.
    `plugins`  modules with optimizers and initializers of your own, which coordinator and servers import.     Raises InvalidRequest.

    >>> with ps.local_cluster(servers=2) as cluster:     # doctest: +SKIP
    ...     client = ps.connect(cluster.address)
    """
    limits = {"--rows-max": rows_max, "--max-request-bytes": max_request_bytes}
    server_flags = [f"{flag}={limit}" for flag, limit in limits.items() if limit is not None]
    flags = [f"--log-level={log_level}", f"--plugins={join_names('plugins', plugins)}"]
    logs = FileLogs(Path(log_dir) if log_dir is not None else None)
    return LocalCluster(servers, timeout_s, logs, flags, server_flags)

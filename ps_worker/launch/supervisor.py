"""A job of one machine: a cluster and workers that begin together, are watched together and end together."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ps_proto.errors import ClusterFailed, InvalidRequest
from ps_proto.plugins import VARIABLE as PLUGINS
from ps_worker.child import SIGNALLED, Child, ProcessEnded
from ps_worker.launch import tethered
from ps_worker.launch.console import STDOUT, Console
from ps_worker.launch.job_end import JobEnd
from ps_worker.launch.last_checkpoint import LastCheckpoint
from ps_worker.launch.launched_worker import LaunchedWorker, name_of
from ps_worker.launch.piped_log import PipedLogs
from ps_worker.launch.rendezvous import Rendezvous
from ps_worker.launch.stop_signals import Stopped, StopSignals
from ps_worker.launch.timeline import TimelineWatch
from ps_worker.local_cluster import LocalCluster, state_in
from ps_worker.place import JOB, Place
from ps_worker.process_log import ProcessLog
from ps_worker.profiling.at_close import ON
from ps_worker.profiling.at_close import VARIABLE as PROFILE
from ps_worker.transport.choice import AUTO
from ps_worker.transport.choice import VARIABLE as TRANSPORT

POLL_S = 0.05
START_TIMEOUT_S = 120.0  # the first start ever compiles the kernels
WORKER_GRACE_S = 5.0
WRONG_USAGE = 2  # the exit code


@dataclass(frozen=True)
class Plan:
    """What to run.

    command  a worker's, as its script and the script's arguments      host     where coordinator and servers listen
    plugins  modules that all processes import, with commas between them     transport  how the workers' rows travel
    profile  whether each worker prints where its time went      max_restarts  how often each process is started again
    coordinator_flags  what the coordinator is told besides     has_checkpoints  whether it takes them
    store_options  what every process is told of the store they lie in
    """

    servers: int
    workers: int
    command: tuple[str, ...]
    host: str
    log_dir: Path | None
    log_level: str
    plugins: str = ""
    transport: str = AUTO
    profile: bool = False
    max_restarts: int = 0
    coordinator_flags: tuple[str, ...] = ()
    has_checkpoints: bool = False
    store_options: tuple[str, ...] = ()


class Supervisor:
    """Runs one job; from the main thread, since `tethered.py` ties the workers' lives to the thread that starts them."""

    def __init__(self, plan: Plan, console: Console, signals: StopSignals) -> None:
        self._plan = plan
        self._console = console
        self._signals = signals
        self._logs = PipedLogs(console, plan.log_dir)
        self._cluster = LocalCluster(
            plan.servers,
            START_TIMEOUT_S,
            self._logs,
            [f"--log-level={plan.log_level}", f"--plugins={plan.plugins}", *plan.store_options],
            coordinator_flags=plan.coordinator_flags,
            host=plan.host,
            state=state_in(plan.log_dir),
            max_restarts=plan.max_restarts,
            say=console.say,
            while_waiting=signals.check,
        )
        self._workers: list[LaunchedWorker] = []
        self._job_end: JobEnd | None = None

    def run(self) -> int:
        """Run the job to its end and return the exit code.

        0 when all workers ended with 0; that of the process that failed more often than it may, or 128 and the signal's number where a
        signal ended it; 130 after Ctrl-C, 143 after SIGTERM; 2 where a log file cannot be opened. Nothing that was started is left. A
        signal that comes while all is being ended kills the rest.
        """
        self._signals.hurry = self._console.hurry  # before the first line: where nobody reads, this thread waits in it
        self._signals.act = self._kill
        code, end_signal = 0, signal.SIGTERM
        try:
            self._signals.check()
            self._cluster.start()
            with Rendezvous() as rendezvous, TimelineWatch(self._cluster.address) as watch:
                self._start_workers(rendezvous.variables(os.environ), watch)
                self._wait(watch)
        except Stopped as stopped:
            code, end_signal = SIGNALLED + stopped.number, stopped.number
            self._console.say(f"{stopped.number.name}: stopping.")
        except ClusterFailed as error:
            code = (isinstance(error, ProcessEnded) and error.exit_code) or 1
            self._console.say(str(error))
        except InvalidRequest as error:
            code = WRONG_USAGE
            self._console.say(str(error))
        finally:
            self._end(end_signal)
        if code == 0 and self._signals.received is not None:
            code = SIGNALLED + self._signals.received
        return code

    def _start_workers(self, rendezvous: Mapping[str, str], watch: TimelineWatch) -> None:
        for rank in range(self._plan.workers):
            start = partial(self._start_worker, rank, rendezvous, self._logs.of(name_of(rank)))
            worker = LaunchedWorker(rank, start, self._plan.max_restarts, watch, self._console.say)
            self._workers.append(worker)
            worker.post.fill()
        pids = self._cluster.pids | {worker.post.name: worker.post.child.pid for worker in self._workers}
        processes = ", ".join(f"{name} {pid}" for name, pid in pids.items())
        self._console.say(f"The coordinator listens at {self._cluster.address}. Process ids: {processes}.")

    def _start_worker(self, rank: int, rendezvous: Mapping[str, str], log: ProcessLog, job: int) -> Child:
        environment = worker_environment(self._plan, self._cluster.address, rank, {**os.environ, **rendezvous}, job)
        if os.isatty(STDOUT):
            environment["ROWSTEAD_TERMINAL"] = "1"  # a bar of \r-updates is drawn in place
        command = [sys.executable, "-I", "-S", tethered.__file__, str(os.getpid()), sys.executable, *self._plan.command]
        return Child(name_of(rank), command, environment, log)

    def _wait(self, watch: TimelineWatch) -> None:
        """Return when all workers have ended with 0; raise Stopped, or ProcessEnded for a process that failed more often than it may."""
        ask = partial(LastCheckpoint, self._cluster.address) if self._plan.has_checkpoints else None
        self._job_end = end = JobEnd(self._workers, watch, ask)
        has_ended = False
        while not has_ended:
            self._signals.check()
            self._cluster.tend()
            has_ended = end.has_come(time.monotonic())
            time.sleep(POLL_S)
        if end.said:
            self._console.say(end.said)
        for worker in self._workers:
            if worker.post.child.poll() is None:
                self._console.say(f"{worker.post.name} still runs, and its job has ended without it: it is killed.")
                worker.post.kill()  # it may be stopped, and hear no request
            else:
                worker.check()

    def _end(self, number: signal.Signals) -> None:
        """End the workers, asking them with the signal `number` first, then the cluster."""
        self._signals.acts_at_first = True
        self._console.hurry()
        if self._job_end is not None:
            self._job_end.close()
        for worker in self._workers:
            worker.post.signal(number)
        deadline_s = time.monotonic() + WORKER_GRACE_S
        for worker in self._workers:
            worker.post.wait_or_kill(max(0.0, deadline_s - time.monotonic()))
        self._cluster.stop()
        self._logs.close()

    def _kill(self) -> None:
        for worker in self._workers:
            worker.post.kill()
        self._cluster.kill()


def worker_environment(plan: Plan, address: str, rank: int, environment: Mapping[str, str], job: int = 0) -> dict[str, str]:
    """Return the environment of the worker `rank`: ours, with its place, under torchrun's names where that has one; `job`: as in JoinJob.

    What it prints comes at once, and its threads leave room for the other workers', unless `environment` says otherwise.
    """
    # Not by the number of servers: threads cut torch's sums, and the bits must not depend on how many servers there are.
    threads = max(1, len(os.sched_getaffinity(0)) // plan.workers)
    plugins = {PLUGINS: f"{plan.plugins},{environment.get(PLUGINS, '')}"} if plan.plugins else {}
    profile = {PROFILE: ON} if plan.profile else {}
    return {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        **environment,
        **plugins,
        **profile,
        TRANSPORT: plan.transport,
        **Place(address, rank, plan.workers).variables(),
        JOB: str(job) if job else "",  # ours may be another cluster's
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(plan.workers),
    }

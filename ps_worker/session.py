"""The session of a training script: its place in the job, its client, and how both end.

There is one in a process. `init` begins it, `current_session` finds it, so that modules of a model need not be handed a client.

    with the block        it ends as its client does: normally by finishing the step and leaving the job, after an exception by neither
    with the interpreter  an unclosed one the same: it is closed, but within EXIT_WAIT_S, unless the script ends in an exception that nobody
                          caught. Then half a step may have been pushed, and to finish it or to leave would let the others go on as if all
                          were well. A sys.exit() is an end that the script chose, so it counts as a normal one; in the block only
                          with code 0: at exit nobody can see the code any more.
    by a signal           nothing is sent: the servers see a worker that is gone

A worker that is started again goes on where it was: `init` takes what the one before it left with its last finished step, and the script
runs from its top up to the resume point. See resume/ and docs/resuming.md.
"""

import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, TypedDict, Unpack

from ps_proto.errors import ClientClosed, InvalidRequest, ParameterServerError
from ps_proto.requests import CheckpointTaken
from ps_proto.values import Mode, Sync
from ps_worker.client import Client
from ps_worker.connecting import connect
from ps_worker.local_cluster import LocalCluster, local_cluster
from ps_worker.place import find_job, find_place
from ps_worker.resume.registry import Resumable
from ps_worker.resume.resumption import Resumption
from ps_worker.uncaught import shorten_rollbacks

log = logging.getLogger("rowstead")

EXIT_WAIT_S = 30.0  # for the other ranks, where the script ended without close()
LAST_LOOK_S = 2.0  # at a cluster that is about to end

_Change = tuple[str, str, float, float]  # server, table, rows held, rows pushed

_current: "Session | None" = None


class ConnectOptions(TypedDict, total=False):
    """What `init` hands on to `connect`."""

    rpc_timeout_s: float
    retry_timeout_s: float
    wait_timeout_s: float
    part_size_bytes: int
    transport: str | None
    on_lost_worker: Literal["wait", "continue"] | None


def init(
    mode: Mode | None = None,
    *,
    address: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    servers: int = 1,
    plugins: Sequence[str] = (),
    resume: bool = True,
    **options: Unpack[ConnectOptions],
) -> "Session":
    """Take this script's place in its job and return the session.

    The place is what the arguments say, else the environment: ROWSTEAD_COORDINATOR, RANK and WORLD_SIZE, as `rowstead launch` and
    `ps-worker` set them, the last two also torchrun. Where nobody names a coordinator, the script is alone: it gets an embedded cluster
    with this many `servers`, which import the `plugins`, and which ends with the session. `mode` is ps.Sync() unless said; `options` are
    those of `connect`. A rank that did not leave the job goes on where it was; with `resume` False, on every rank, it begins anew.

    Raises InvalidRequest for a place that makes no sense, for a second session, and in a child that multiprocessing or os.fork made, unless
    address, rank and world_size are all arguments: a child inherits its parent's environment, and would take over its parent's rank.
    Raises what `connect` and `local_cluster` raise.
    """
    global _current
    is_told_all = None not in (address, rank, world_size)
    if not is_told_all:
        _check_is_no_child()
    if _current is not None and _current.is_open:
        raise InvalidRequest("ps.init()", "called a second time", "called once: use ps.session(), or close the first session")
    place = find_place(address, rank, world_size, os.environ)
    mode = Sync() if mode is None else mode
    if place.address is not None:
        shorten_rollbacks()
        job = (
            find_job(os.environ) if _current is None and not is_told_all else 0
        )  # a script that goes on behind its first job begins others
        client = connect(place.address, rank=place.rank, world_size=place.world_size, mode=mode, resume=resume, job=job, **options)
        try:
            _current = Session(client, None)
        except BaseException:  # such as what the worker before this one left, in another version's format
            client.disconnect()
            raise
        return _current
    cluster = local_cluster(servers, plugins=plugins, max_restarts=0).start()  # of what it held, nothing outlives the script
    try:
        _current = Session(connect(cluster.address, rank=0, world_size=1, mode=mode, **options), cluster)
    except BaseException:
        cluster.stop()
        raise
    return _current


def current_session() -> "Session":
    """Return this process's open session; InvalidRequest where there is none. It is also `ps.session()`."""
    if _current is not None:
        _current.check_owner()
    if _current is None or not _current.is_open:
        raise InvalidRequest("The session of this process", "missing", "begun first: call ps.init()")
    return _current


def captured_client(client: Client | None) -> Client | None:
    """Return the session's client, if it is this one or none is given, and if what its script resumes from is captured."""
    if _current is None or not _current.is_open or not _current.is_captured or client not in (None, _current.client):
        return None
    return _current.client


class Session:
    """A worker's place in the job, as `init` made it; for one thread at a time. `with` closes it."""

    def __init__(self, client: Client, cluster: LocalCluster | None) -> None:
        self._client = client
        self._cluster = cluster
        self._owner = os.getpid()
        self._is_open = True
        self._saved: set[_Change] = set()
        self._resumption = Resumption(client)
        if self.is_captured:
            client.provide_resume(self._resumption.capture)

    @property
    def is_open(self) -> bool:
        """Whether this process may use it."""
        return self._is_open and not self.is_forked

    @property
    def is_forked(self) -> bool:
        """Whether it belongs to a process that this one is a fork of."""
        return os.getpid() != self._owner

    @property
    def client(self) -> Client:
        """The client that has this worker's rank."""
        self.check_owner()
        if not self._is_open:
            raise ClientClosed("be used")
        return self._client

    @property
    def rank(self) -> int:
        rank = self._client.rank
        assert rank is not None, "init connects with a rank"
        return rank

    @property
    def world_size(self) -> int:
        return self._client.world_size

    @property
    def is_captured(self) -> bool:
        """Whether it says at each step what it resumes from: not with an embedded cluster, which ends with it."""
        return self._cluster is None

    @property
    def is_resumed(self) -> bool:
        """Whether this script was started again, and goes on behind a step that it finished before."""
        return self._client.is_resumed

    @property
    def is_replaying(self) -> bool:
        """Whether it is still on its way to the place where it was."""
        return not self._resumption.replay.is_over

    @property
    def registered(self) -> Mapping[str, Resumable]:
        """What `register` was given, by name."""
        return self._resumption.registry.objects

    def barrier(self) -> None:
        """Wait until every rank that has not left is at its barrier; BarrierTimeout names those that are not.

        One that this rank passed before it was started again is passed at once.
        """
        self.client.barrier()

    def checkpoint(self, path: str | os.PathLike[str] | None = None, *, full: bool = False) -> CheckpointTaken:
        """Have a checkpoint written that has every step which this worker has finished: see `Client.checkpoint`."""
        return self.client.checkpoint(path, full=full)

    def register(self, name: str, obj: Resumable) -> None:
        """Keep `obj` under `name` as part of what this worker goes on from after a restart; before the training begins.

        It must have state_dict(), which gives plain data, and load_state_dict(). After a restart its state is loaded here, and again where
        the training goes on. Registered anyway: the random generators of Python, numpy and torch, the place in the passes of ps.prefetch
        and in the loops over `steps`, each ServerOptimizer's param_groups and its model's buffers. All of it is at most 64 KiB: it
        travels with each step. Raises InvalidRequest.
        """
        self._resumption.registry.register(name, obj)

    def register_ours(self, name: str, obj: Resumable) -> None:
        """Do the same for a part of Rowstead; the newest of a name counts, as long as somebody else holds it."""
        self._resumption.registry.register_ours(name, obj)

    def steps(self, count: int) -> Iterator[int]:
        """Return the numbers of `count` steps, each of which the loop's body makes: 0, 1, ...; after a restart from where it was.

            for step in session.steps(1000):
                ids, gradients = ...                       # a function of `step`, the rows, and the random generators
                session.client.push("user", ids, gradients); session.client.end_step()

        Raises InvalidRequest where the body ends no step.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidRequest("count", repr(count), "a whole number from 0: how many steps to make")
        self.check_owner()
        return self._resumption.steps(count)

    def mark_saved(self) -> None:
        """Note that all rows are saved as they are now: an embedded cluster that ends with later changes says so."""
        self._saved = self._changes()

    def close(self) -> None:
        """Finish a step that has pushes, leave the job and wait for the last fold; then end an embedded cluster. Again: does nothing."""
        self._end(self._client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        is_normal = error is None or (isinstance(error, SystemExit) and not error.code)
        self._end(self._client.close if is_normal else self._client.disconnect)

    def check_owner(self) -> None:
        """Raise InvalidRequest in a fork of the process that called init."""
        if self.is_forked:
            raise InvalidRequest(
                "This process",
                f"a fork of process {self._owner}, which has the session",
                "that process itself",
            )

    def _end(self, leave: Callable[[], None]) -> None:
        if not self.is_open:
            return
        try:
            leave()
        finally:
            self._is_open = False
            self._end_cluster()

    def _end_cluster(self) -> None:
        """Stop an embedded cluster; log one line where it had changes that nobody saved."""
        if self._cluster is None:
            return
        try:
            changed = sorted({table for _, table, *_ in self._changes() - self._saved})
            if changed:
                log.warning("The embedded cluster ends unsaved: what changed in %s is gone. Keep it with ps.save().", ", ".join(changed))
        except ParameterServerError:
            pass  # its servers do not answer: the script has had an error that says more
        finally:
            self._cluster.stop()

    def _changes(self) -> "set[_Change]":
        """Return what an embedded cluster's tables hold and were sent, of those that do."""
        if self._cluster is None:
            return set()
        with connect(self._cluster.address, rpc_timeout_s=LAST_LOOK_S, retry_timeout_s=LAST_LOOK_S, wait_timeout_s=LAST_LOOK_S) as observer:
            return {
                (server, table, numbers["rows"], numbers["rows_pushed"])
                for server, stats in observer.stats().items()
                for table, numbers in stats.tables.items()
                if numbers["rows"] or numbers["rows_pushed"]
            }


def _check_is_no_child() -> None:
    if multiprocessing.parent_process() is not None or (_current is not None and _current.is_forked):
        raise InvalidRequest(
            "This process",
            "a child of the training script",
            'the script itself: call ps.init() under `if __name__ == "__main__":`, or give a child that shall be a worker of its own '
            "address, rank and world_size",
        )


def _close_at_exit() -> None:
    """End a session that the script left open."""
    session = _current
    if session is None or not session.is_open:
        return
    uncaught = getattr(sys, "last_value", None)  # set by the interpreter for an exception that it has just printed
    if uncaught is not None:
        session.__exit__(type(uncaught), uncaught, None)
        return
    closing = threading.Thread(target=_close_quietly, args=(session,), daemon=True)
    closing.start()
    with suppress(KeyboardInterrupt):  # it would keep what else ends with the interpreter from ending
        closing.join(EXIT_WAIT_S)
    if closing.is_alive():
        log.warning("The script ended without session.close(), and the other ranks are not done with its last step: it does not wait on.")
        session.client.disconnect()
        closing.join(EXIT_WAIT_S)


def _close_quietly(session: Session) -> None:
    try:
        session.close()
    except ClientClosed:
        pass  # waited for in vain, and said so
    except ParameterServerError as error:
        log.warning("The script ended without session.close(), and closing it failed: %s", error)


# Not atexit: by then the threads that a client's calls run in are over. Registered later than theirs, it runs before theirs.
threading._register_atexit(_close_at_exit)  # type: ignore[attr-defined]  # private, but Python's own executors end in the same way

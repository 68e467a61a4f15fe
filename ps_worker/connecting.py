"""Connecting to a cluster: the one way in which a user gets a client."""

import math
import os
from typing import Literal

from ps_proto.address import check_address
from ps_proto.errors import InvalidRequest
from ps_proto.parts import PART_SIZE_BYTES
from ps_proto.plugins import load_plugins
from ps_proto.values import Mode
from ps_worker.asking import Patience
from ps_worker.client import Client
from ps_worker.inputs import as_whole
from ps_worker.profiling.at_close import is_profile_wanted, profile_until_closed
from ps_worker.transport.choice import find_transport
from ps_worker.transport.negotiated import NegotiatedTransport


def connect(
    address: str,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    mode: Mode | None = None,
    resume: bool = False,
    join: str | None = None,
    on_lost_worker: Literal["wait", "continue"] | None = None,
    job: int = 0,
    rpc_timeout_s: float = 10.0,
    retry_timeout_s: float = 60.0,
    wait_timeout_s: float = 600.0,
    part_size_bytes: int = PART_SIZE_BYTES,
    transport: str | None = None,
) -> Client:
    """Connect to the cluster whose coordinator listens at `address`, "host:port".

    With a rank (0 to world_size - 1), this is a worker of the job: the first to connect fixes world_size and mode, a later one that differs
    gets JobMismatch; connecting again with a rank replaces the worker that had it. Without a rank it is an observer: it reads, exports
    and watches, and takes no part in clocks.

    resume: go on where the rank was, at the step behind the last one that it finished: `client.clock` is that step, `client.is_resumed`
    says whether there was one, and `client.resume` is what was handed in with it. Push in a step that is done again what was pushed in it
    before: where that has arrived already, it counts once. Without `resume` the rank begins anew, above every step that is known of it.
    Where the cluster has to go back to a checkpoint, every call raises RolledBack: start the worker again then, with `resume`.

    join: be one more worker of the job that runs, from a step on which `client.clock` says; the mean of a synchronous step is over one more
    rank from there. It is a name of the worker's own, such as its host's: the coordinator chooses a rank, and whoever joins again under
    that name gets the rank back, until it has left; with `resume`, it goes on where the rank was. Where the cluster goes back to a
    checkpoint of before it joined, it joins anew. A worker leaves by closing its client.

    on_lost_worker: what the job does about a rank whose process ends and is not started again. "wait", the default: the others wait for it,
    up to wait_timeout_s. "continue": once its lease has run out it is out of the job, and from then on the bits are those of the smaller
    one. The first to connect fixes it, as it does the mode.

    job: the number of the only job to take part in, as `rowstead launch` knows it for a worker that it starts again: where that is over,
    JobEnded is raised, and no other job begins.

    rpc_timeout_s for one call's answer, retry_timeout_s for a peer that does not answer at all, wait_timeout_s for other ranks;
    part_size_bytes is the most array bytes in one message of gRPC. `transport` says how rows travel: "arena", "unix", "tcp" or "grpc", or
    "auto", the first of them that can be had with each server; without it, ROWSTEAD_TRANSPORT says so.

    With ROWSTEAD_PROFILE=1 in the environment, a worker prints where its time went when it closes: docs/performance.md.

    Plugins, as ps_proto/plugins.py finds them, are imported first. Raises Unreachable, Recovering (servers are missing), JobMismatch,
    JobEnded, PluginFailed, InvalidRequest.
    """
    for name, value in (("rpc_timeout_s", rpc_timeout_s), ("retry_timeout_s", retry_timeout_s), ("wait_timeout_s", wait_timeout_s)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InvalidRequest(name, repr(value), "a finite number of seconds above 0")
    check_address("address", address)
    rank, world_size = as_whole("rank", rank), as_whole("world_size", world_size)
    if mode is not None and not isinstance(mode, Mode):
        raise InvalidRequest("mode", repr(mode), "a mode such as ps.Sync()")
    if (rank is None) != (world_size is None):
        missing = "world_size" if world_size is None else "rank"
        raise InvalidRequest(missing, "missing", "given together: rank and world_size for a worker, neither for an observer")
    if join is not None and (not isinstance(join, str) or not join):
        raise InvalidRequest("join", repr(join), "a name that no other worker has: whoever joins again under it gets the same rank")
    if join is not None and rank is not None:
        raise InvalidRequest("join", repr(join), "given without rank and world_size: the coordinator chooses the rank")
    if on_lost_worker not in (None, "wait", "continue"):
        raise InvalidRequest("on_lost_worker", repr(on_lost_worker), "'wait' or 'continue'")
    if on_lost_worker is not None and rank is None:
        raise InvalidRequest("on_lost_worker", repr(on_lost_worker), "given with a rank and world_size, by a worker that may begin the job")
    if resume and rank is None and join is None:
        raise InvalidRequest("resume", "True", "given with a rank and world_size, or with join: an observer has no step to go on with")
    choice = find_transport(transport, os.environ)
    is_profiled = is_profile_wanted(os.environ)
    load_plugins(os.environ)
    patience = Patience(rpc_timeout_s, retry_timeout_s, wait_timeout_s)
    carries = NegotiatedTransport(choice, part_size_bytes)
    client = Client(
        address, carries, patience, rank, world_size, mode, resume=resume, on_lost_worker=on_lost_worker or "", join=join or "", job=job
    )
    if is_profiled and client.rank is not None:
        try:
            profile_until_closed(client)
        except BaseException:  # such as a Ctrl-C while the servers are asked
            client.disconnect()
            raise
    return client

"""`rowstead checkpoint`: write a checkpoint of a running cluster."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from ps_proto.address import check_address
from ps_proto.errors import InvalidRequest, ParameterServerError
from ps_proto.requests import CheckpointTaken, TakeCheckpoint
from ps_worker.roots import absolute_root

FAILED, WRONG_USAGE = 1, 2  # the exit codes
ANSWER_S = 10.0  # for the coordinator's answer, beside what it waits for


def checkpoint(
    coordinator: Annotated[str, Parameter(env_var="ROWSTEAD_COORDINATOR", help="The coordinator's host:port.")],
    *,
    path: Annotated[str | None, Parameter(help="A folder or URL that all servers reach; by default the cluster's --checkpoints.")] = None,
    full: Annotated[bool, Parameter(negative=(), help="Write every row, not only what changed since the checkpoint before.")] = False,
    as_json: Annotated[bool, Parameter("--json", negative=(), help="Print JSON instead of a sentence.")] = False,
    timeout_s: Annotated[float, Parameter(help="How long the servers may take, in seconds.")] = 600.0,
) -> int:
    """Write a checkpoint of a running cluster; training goes on meanwhile."""
    try:
        check_address("the coordinator's address", coordinator)
        if not 0 < timeout_s < float("inf"):
            raise InvalidRequest("--timeout-s", repr(timeout_s), "a finite number of seconds above 0")
        root = absolute_root(path)
    except InvalidRequest as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE
    from ps_worker.transport.grpc import GrpcTransport  # gRPC takes a while to import: not for --help

    print(f"Writing a checkpoint to {root or 'where the cluster keeps its own'} ...", file=sys.stderr)
    transport = GrpcTransport()
    try:
        asked = TakeCheckpoint(root, full, at_least=-1, wait_s=timeout_s)
        taken: CheckpointTaken = transport.call(coordinator, asked, timeout_s + ANSWER_S, "The coordinator")
    except ParameterServerError as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE if isinstance(error, InvalidRequest) else FAILED
    finally:
        transport.close()
    print(json.dumps(asdict(taken), indent=2) if as_json else render(taken))
    return 0


def render(taken: CheckpointTaken) -> str:
    """Return a sentence for people."""
    return (
        f"Checkpoint {taken.number} of step {taken.step} is in {taken.path}: {taken.rows:,} rows, {taken.nbytes / 1e6:,.1f} MB "
        f"in {taken.took_s:.1f} s. No server stood still for more than {taken.stall_s * 1e3:.1f} ms."
    )

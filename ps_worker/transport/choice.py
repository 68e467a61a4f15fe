"""Which way a worker's rows travel, as a user chooses it: by an argument, or by ROWSTEAD_TRANSPORT.

auto    the best that can be had, for each server: the first of those below
arena   shared memory, with a unix socket that says what lies where; on the server's host only
unix    frames over a unix socket; on the server's host only
tcp     frames over TCP
grpc    what carries everything else anyway
"""

from collections.abc import Mapping

from ps_proto.errors import InvalidRequest

VARIABLE = "ROWSTEAD_TRANSPORT"
AUTO, ARENA, UNIX, TCP, GRPC = "auto", "arena", "unix", "tcp", "grpc"
TRANSPORTS = (AUTO, ARENA, UNIX, TCP, GRPC)
LANES = (ARENA, UNIX, TCP)  # the best first


def find_transport(given: object, environment: Mapping[str, str]) -> str:
    """Return what the argument says or, where it is None, the variable, which counts as not set where it is empty; else "auto".

    Raises InvalidRequest, which names the argument or the variable.
    """
    name, value = ("transport", given) if given is not None else (VARIABLE, environment.get(VARIABLE) or AUTO)
    if not isinstance(value, str) or value not in TRANSPORTS:
        raise InvalidRequest(name, repr(value), f"one of {', '.join(TRANSPORTS)}")
    return value

"""What rank 0 does for all ranks of a job, while the others wait."""

from collections.abc import Callable
from contextlib import suppress

from ps_proto.errors import InvalidRequest, ParameterServerError
from ps_worker.client import Client
from ps_worker.session import current_session

FAILED, DONE, NOT_MINE = 0, 1, 2  # what rank 0 says, and what the others do: all that is heard where it died instead


def as_rank_0(client: Client, work: Callable[[], None]) -> bool:
    """Once every rank is here and its finished steps are in the rows, do the work on rank 0; return on every rank whether it was done.

    What the work raises, rank 0 raises. Nobody trains in the meantime, so that it is one instant of all tables, whatever their modes.
    """
    client.flush()
    client.barrier()
    if client.rank != 0:
        return client.agree_async(NOT_MINE).result() == DONE
    try:
        work()
    except Exception:
        with suppress(ParameterServerError):  # the first error says more
            client.agree_async(FAILED).result()
        raise
    client.agree_async(DONE).result()
    return True


def was_done(client: Client, what: str) -> bool:
    """Return whether the worker before this one has done what all ranks do together, such as ps.save, and it is not to be done again."""
    if not client.replay.leaves_out(what):
        return False
    client.barrier()  # the one that it begins with: passed, too
    return True


def mark_saved(client: Client) -> None:
    """Tell the session, where there is one, that its rows are on disk."""
    try:
        session = current_session()
    except InvalidRequest:
        return  # a client of its own
    if session.client is client:
        session.mark_saved()

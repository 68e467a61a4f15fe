"""Measuring a model that several ranks train: all stand still while rank 0 looks."""

from collections.abc import Iterator
from contextlib import contextmanager

import ps_worker as ps


@contextmanager
def standstill(session: ps.Session) -> Iterator[bool]:
    """Wait until every rank is here and all its pushes are in the rows; yield whether this is rank 0, which may then measure.

    The others wait at the end of the block, so that in every mode what rank 0 reads is what all have trained together.
    """
    session.client.flush()
    session.barrier()
    yield session.rank == 0
    session.barrier()

"""Where a worker stands: the coordinator's address, its rank, the number of ranks. From arguments first, then from the environment.

RANK and WORLD_SIZE are torchrun's names, so that its workers are ours without a flag. `rowstead launch` and `ps-worker` set all three.
A worker that `rowstead launch` starts again is told in ROWSTEAD_JOB in which job it is to go on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ps_proto.address import check_address
from ps_proto.errors import InvalidRequest

COORDINATOR = "ROWSTEAD_COORDINATOR"
RANK = "RANK"
WORLD_SIZE = "WORLD_SIZE"
JOB = "ROWSTEAD_JOB"


@dataclass(frozen=True)
class Place:
    """One worker's place in a job. `address`: the coordinator's host:port; None where nobody named one, and then it is rank 0 of 1."""

    address: str | None
    rank: int
    world_size: int

    def variables(self) -> dict[str, str]:
        """Return the environment that says this place."""
        named = {COORDINATOR: self.address} if self.address is not None else {}
        return {**named, RANK: str(self.rank), WORLD_SIZE: str(self.world_size)}


def find_place(address: str | None, rank: int | None, world_size: int | None, environment: Mapping[str, str]) -> Place:
    """Return the place that arguments and environment make together; an empty variable counts as not set.

    Raises InvalidRequest, which names the argument or the variable.
    """
    address = check_address("the coordinator's address", address) if address is not None else _address_of(environment)
    rank_name, rank = ("rank", rank) if rank is not None else (RANK, _number_of(RANK, environment))
    size_name, world_size = ("world_size", world_size) if world_size is not None else (WORLD_SIZE, _number_of(WORLD_SIZE, environment))
    if rank is None and world_size is None and address is None:
        return Place(None, 0, 1)
    if rank is None:
        raise InvalidRequest(RANK, "missing", f"this worker's number from 0 on, set together with {COORDINATOR} and {WORLD_SIZE}")
    if world_size is None:
        raise InvalidRequest(WORLD_SIZE, "missing", f"the number of workers, set together with {RANK}")
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise InvalidRequest(size_name, repr(world_size), "a whole number from 1 on")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
        raise InvalidRequest(rank_name, repr(rank), f"a whole number from 0 to {world_size - 1}, below {WORLD_SIZE}")
    if address is None and world_size > 1:
        raise InvalidRequest(
            COORDINATOR,
            "missing",
            f"the host:port of the coordinator that all {world_size} workers share. Start one with `rowstead coordinator`, "
            f"or all of them at once with `rowstead launch --workers {world_size}`",
        )
    return Place(address, rank, world_size)


def find_job(environment: Mapping[str, str]) -> int:
    """Return the number of the job in which a worker that was started again is to go on; 0: in whichever runs, or a new one."""
    return _number_of(JOB, environment) or 0


def _address_of(environment: Mapping[str, str]) -> str | None:
    address = environment.get(COORDINATOR)
    return check_address(COORDINATOR, address) if address else None


def _number_of(variable: str, environment: Mapping[str, str]) -> int | None:
    value = environment.get(variable)
    if not value:
        return None
    if not (value.isascii() and value.isdigit()):
        raise InvalidRequest(variable, repr(value), "a whole number")
    return int(value)

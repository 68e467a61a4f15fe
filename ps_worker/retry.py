"""When to ask again, and when to stop: pure, the randomness is handed in."""

from collections.abc import Callable
from dataclasses import dataclass

from ps_proto.errors import (
    BarrierTimeout,
    InvalidRequest,
    MapBehind,
    Overloaded,
    ParameterServerError,
    Recovering,
    RequestTooLarge,
    RowsUnset,
    StalenessTimeout,
    TableFull,
    UnknownTable,
    Unreachable,
)

Uniform = Callable[[], float]  # a random number in [0, 1)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `first_s` to `longest_s`, each taken at random between half and all of it, so that workers spread out.

    The jitter is AWS's "equal jitter" (Brooker, "Exponential Backoff and Jitter", 2015).
    """

    first_s: float = 0.02
    longest_s: float = 1.0

    def pause_s(self, attempt: int, uniform: Uniform) -> float:
        """Return how long to wait before attempt `attempt` + 1; attempts count from 0."""
        full_s = min(self.longest_s, self.first_s * 2.0 ** min(attempt, 30))
        return full_s * (0.5 + 0.5 * uniform())


def is_passing(error: ParameterServerError) -> bool:
    """Return whether the same call, under the same name, may succeed a little later."""
    return isinstance(error, Unreachable | Recovering | Overloaded | MapBehind)


def is_waiting(error: ParameterServerError) -> bool:
    """Return whether a server's answer only says that what was waited for has not come within one slice of the wait."""
    return isinstance(error, StalenessTimeout | RowsUnset | BarrierTimeout)


def is_refusal(error: ParameterServerError) -> bool:
    """Return whether the peer has taken nothing of the request, neither now nor under the same name before."""
    return isinstance(error, InvalidRequest | UnknownTable | TableFull | RequestTooLarge)

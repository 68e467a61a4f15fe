"""The flags that every numba kernel of ours is compiled with, written once."""

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numpy as np
from numba import config, njit

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Kernel(Protocol[P, R_co]):
    """A compiled function: called as the plain one is; `signatures` has one entry for each set of argument types compiled so far."""

    __name__: str
    signatures: list[tuple[Any, ...]]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def kernel(function: Callable[P, R_co]) -> Kernel[P, R_co]:
    """Compile `function` on its first call; the result lies beside its source, in `__pycache__`, for the next process.

    It runs without the GIL and divides as IEEE says, without an exception. Never `parallel` (numba's workqueue aborts a process with
    threads) and never `fastmath` (it may reorder sums, and so change bits).

    Each set of argument types is compiled anew, for a second or so. A read-only array is a type of its own: a kernel that is
    handed both kinds has two signatures for it, which is meant; a non-contiguous or unaligned array would be one more, so callers pass
    C-contiguous ones.

    With NUMBA_DISABLE_JIT=1 the kernel runs as plain Python, for coverage and bounds checks, and has no `signatures`.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]  # numba sets it from the environment
        # numpy warns where a uint64 scalar wraps around; hashes are made of that.
        return cast("Kernel[P, R_co]", np.errstate(over="ignore")(function))
    # Trap: numba's cache looks at the date of the kernel's own file only. After a change to a kernel that those of other files call,
    # remove their __pycache__.
    return cast("Kernel[P, R_co]", njit(nogil=True, cache=True, error_model="numpy")(function))

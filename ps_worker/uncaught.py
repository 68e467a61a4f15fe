"""What a script prints that ends in an exception which nobody caught."""

import gc
import sys
from types import TracebackType

from ps_proto.errors import RolledBack


def shorten_rollbacks() -> None:
    """Let a script that ends because the cluster went back say so in its sentence alone: where it was says nothing, and all workers end so.

    Whatever else ends it is printed as ever, by the hook that was there.
    """
    before = sys.excepthook
    if getattr(before, "shortens_rollbacks", False):
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, RolledBack):
            print(f"{kind.__name__}: {error}", file=sys.stderr)
            gc.freeze()  # the interpreter's end would look through all of torch, for most of a second, while all wait for this worker
        else:
            before(kind, error, trace)

    show.shortens_rollbacks = True  # type: ignore[attr-defined]  # so that a second session adds no second one
    sys.excepthook = show

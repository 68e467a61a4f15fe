"""When a table may be read: its mode, the step the server is at and the clocks say so. A predicate that never waits (R5, R10)."""

from ps_proto.errors import InvalidRequest, StalenessTimeout, StepPassed
from ps_proto.requests import OBSERVER, Fence
from ps_proto.values import BoundedStaleness, Mode, Sync
from ps_server.shard.steps import Steps


class Gate:
    """See the module's text."""

    def __init__(self, server: str, steps: Steps) -> None:
        self._server = server
        self._steps = steps

    def may_read(self, mode: Mode, fence: Fence, at_step: int) -> bool:
        """Return whether a table of this mode can be read now; a synchronous step that is over raises StepPassed.

        With backup workers a rank may be late: it reads whatever is there, and the answer's step tells it so (R9).
        """
        if isinstance(mode, Sync):
            step, want = self._steps.step, fence.clock if fence.rank != OBSERVER else at_step
            if want == -1:
                return True
            if want < step and self._steps.decider.backup_workers and fence.rank != OBSERVER:
                return True
            if want < step:
                raise StepPassed(self._server, want, step)
            if want > step and self._steps.job == 0:
                raise InvalidRequest("at_step", str(want), f"at most {step}: no job has begun, so nobody finishes a step")
            return want == step
        if fence.rank != OBSERVER and isinstance(mode, BoundedStaleness):
            return self._steps.clocks.within_bound(fence.clock, mode.bound)
        return True

    def timeout(self, mode: Mode, fence: Fence, at_step: int, after_s: float) -> StalenessTimeout:
        """Return the error of one that waited for this in vain."""
        clock = fence.clock if fence.rank != OBSERVER else at_step
        return self._steps.timeout(clock, mode.bound if isinstance(mode, BoundedStaleness) else 0, after_s)

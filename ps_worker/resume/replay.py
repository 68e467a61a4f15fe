"""The way of a restarted script from its top to the point where the worker before it was: the resume point.

On it nothing is done twice. What ps.save, ps.load, assign, restore and clear once did is in the servers' rows, which were trained on since;
barriers were passed with the others. The resume point is

    the pass over data, or the loop over session.steps(), that was open       where it goes on
    where none was open                                                       the end of the last one
    in a script without any                                                   the end of its first step
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ps_worker.resume.position import OVER, Loop, Pass, Passes, Position

log = logging.getLogger("rowstead")


class Replay:
    """What has been done, in this run and before it. `state`: what `state()` returned in the worker before this one.

    is_over   whether the script is beyond its resume point; at once where it did not start again.
    arrive    called at the resume point, to set what the script's top may have changed.
    end_turn  called when the training loop asks for what comes next.     end_loop   when it is over.
    """

    def __init__(
        self,
        clock: Callable[[], int] = lambda: 0,
        is_resumed: bool = False,
        state: Mapping[str, Any] | None = None,
        arrive: Callable[[], None] = lambda: None,
        end_turn: Callable[[], None] = lambda: None,
        end_loop: Callable[[], None] = lambda: None,
    ) -> None:
        state = state or {}
        self.is_over = not is_resumed
        self._clock = clock
        self._arrive = arrive
        self._end_turn, self._end_loop = end_turn, end_loop
        self._passes = Passes(clock, state.get("passes"))
        self._left_out: set[str] = set()  # what it was said of
        self._has_stepped = is_resumed
        self._barriers = 0
        self._barriers_first: int = state.get("barriers", 0)  # before the script's first step
        self._is_by_place = self._passes.is_behind

    def state(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"passes": self._passes.state(), "barriers": self._barriers_first}

    # --- passes and loops --------------------------------------------------------------------------------------------------------

    def begin_pass(self, it: Pass) -> Position | Literal["over"] | None:
        """Begin a pass over data: OVER where it was made already, its position where it goes on, None where it is made in full.

        Where it goes on, the caller brings it to its position, and then says `arrive_now`.
        """
        begun = self._passes.begin(it)
        if begun == OVER:
            self._arrive_behind()
        return begun

    def end_turn(self, it: Pass) -> None:
        """The script asks a pass or a loop for what comes next; one that is inside another is not what makes its turns."""
        if self._passes.is_outermost(it):
            self._end_turn()

    def end_pass(self, it: Pass) -> None:
        """End a pass, or do nothing where it has ended."""
        is_outermost = self._passes.is_outermost(it)
        self._passes.end(it)
        if is_outermost:
            self._end_loop()
        self._arrive_behind()

    def begin_loop(self) -> Loop | None:
        """Begin a loop over steps, whose `first` is the clock of the first of them; None where the loop is over already."""
        loop = Loop(self._clock)
        begun = self.begin_pass(loop)
        if begun == OVER:
            return None
        if begun is not None:
            loop.first = begun["first"]
            self.arrive_now()
        return loop

    def _arrive_behind(self) -> None:
        """Arrive where all is over that the worker before this one had begun."""
        if self._is_by_place and not self._passes.is_behind:
            self.arrive_now()

    def arrive_now(self) -> None:
        """The script is at its resume point: nothing is left out any more."""
        if not self.is_over:
            self.is_over = True
            self._arrive()

    @property
    def is_behind_step(self) -> bool:
        """Whether the script is in the turn of a loop whose step is made: started again, it begins with the next turn."""
        return self._passes.is_used

    # --- what the script does on its way -----------------------------------------------------------------------------------------

    def passes_barrier(self) -> bool:
        """Count a barrier of the script; return whether it was passed before."""
        self._barriers += 1
        if not self._has_stepped:
            self._barriers_first = self._barriers
        return not self.is_over and (self._is_by_place or self._barriers <= self._barriers_first)

    def leaves_out(self, what: str) -> bool:
        """Return whether the effect of a call is in the servers' rows already, and say once that what is called so is not done again."""
        if self.is_over:
            return False
        if what not in self._left_out:
            self._left_out.add(what)
            log.warning("%s is left out: this script resumes at step %d, and the servers' rows have it already.", what, self._clock())
        return True

    def end_step(self) -> None:
        """The script makes steps now, wherever it is."""
        self._has_stepped = True
        if not self.is_over:
            if self._is_by_place:
                log.warning(
                    "Step %d is made before the place where this script was is reached again: make all steps inside ps.prefetch or "
                    "session.steps().",
                    self._clock(),
                )
            self.is_over = True

"""Where a script stands in its passes over data and its loops over steps: which are over, and how far the open ones are.

A script that is started again runs from its top, so its passes begin in the same order. A loop counts as one of them. The outermost ones
are known by their number:

    over, and steps were made in it    not made again
    over, without a step               made again: an evaluation
    open                               goes on where it was

A pass that begins inside another one, as zip(ps.prefetch(a), ps.prefetch(b)) has it, goes on too if the outer one does; unless steps were
made since it began, it is an evaluation beside the training, and no part of the position. Those inside a loop over steps that are over are
not begun again, since the loop goes on behind them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal, Protocol

Position = Mapping[str, Any]

OVER: Final = "over"


class Pass(Protocol):
    """A pass that is open.

    is_at_end  it has nothing more to give, and asks nobody whether that is so.     is_used  a step was made with what it gave last.
    """

    @property
    def is_at_end(self) -> bool: ...

    @property
    def is_used(self) -> bool: ...

    def position(self) -> Position:
        """Return, as plain data, what another worker needs to go on with it."""
        ...


class Loop:
    """A loop over steps. first: the clock when it began.     turn: the clock when it gave its last number, None before it comes back."""

    is_at_end = False

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.first = clock()
        self.turn: int | None = None

    @property
    def is_used(self) -> bool:
        return self.turn not in (None, self._clock())

    def position(self) -> Position:
        return {"first": self.first}


@dataclass(frozen=True)
class _Open:
    """it      the pass.     clock   of the client when it began.     is_resumed   it goes on with one of the worker before this one."""

    it: Pass
    clock: int
    is_resumed: bool


class Passes:
    """The passes of one script. `clock`: the client's; `state`: what `state()` returned in the worker before this one."""

    def __init__(self, clock: Callable[[], int], state: Mapping[str, Any] | None = None) -> None:
        self._clock = clock
        self._over: list[bool] = []  # of each outermost pass that is over: whether steps were made in it
        self._open: list[_Open] = []  # each inside the one before it
        self._known = [was_training for was_training, count in (state or {}).get("over", ()) for _ in range(count)]
        self._to_resume: list[Mapping[str, Any]] = list((state or {}).get("open", ()))

    @property
    def is_behind(self) -> bool:
        """Whether there are passes that the worker before this one had begun, and this one has not come to."""
        return len(self._over) < len(self._known) or bool(self._to_resume and not self._open)

    @property
    def is_used(self) -> bool:
        """Whether the script is in a turn of its outermost loop whose step is made: started again, it begins with the next turn."""
        return bool(self._open) and self._open[0].it.is_used

    def is_outermost(self, it: Pass) -> bool:
        """Whether it is open, and inside no other."""
        return bool(self._open) and self._open[0].it is it

    def begin(self, it: Pass) -> Position | Literal["over"] | None:
        """Begin a pass: OVER where it was made already, its position where it goes on, None where it is made from its beginning."""
        number = len(self._over)
        if not self._open and number < len(self._known):
            if self._known[number]:
                self._over.append(True)
                return OVER
            self._enter(it, self._clock(), False)
            return None
        if self._to_resume and all(outer.is_resumed for outer in self._open):
            record = self._to_resume.pop(0)
            self._enter(it, record["clock"], True)
            position: Position = record["position"]
            return position
        self._enter(it, self._clock(), False)
        return None

    def _enter(self, it: Pass, clock: int, is_resumed: bool) -> None:
        self._open.append(_Open(it, clock, is_resumed))

    def end(self, it: Pass) -> None:
        """End a pass, and what began inside it; one that has ended with an outer one does nothing."""
        depth = next((depth for depth, one in enumerate(self._open) if one.it is it), None)
        if depth is None:
            return
        if depth == 0:
            self._over.append(self._is_training(self._open[0]))
            if self._open[0].is_resumed:
                self._to_resume.clear()
        del self._open[depth:]

    def _is_training(self, one: _Open) -> bool:
        return self._clock() != one.clock

    def state(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "over": [(was_training, len(list(run))) for was_training, run in groupby(self._over)],
            "open": [{"clock": one.clock, "position": dict(one.it.position())} for one in self._open_in_state()],
        }

    def _open_in_state(self) -> Iterator[_Open]:
        outer: Pass | None = None
        for one in self._open:
            if isinstance(outer, Loop) and one.it.is_at_end:
                return
            if outer is None or self._is_training(one):
                yield one
            outer = one.it

"""Drive a worker's operations by hand: the answers come from a function, and time passes only where it says so."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ps_proto.errors import ParameterServerError, Unreachable
from ps_worker.asking import Call, Exchange, Operation, World
from ps_worker.rooms import Lend, lends_nothing

T = TypeVar("T")
LIMIT_S = 100_000.0


@dataclass(frozen=True)
class After:
    """An outcome that takes a while."""

    seconds: float
    outcome: Any


def silence(call: Call) -> After:
    """What becomes of a call that nobody answers."""
    return After(call.timeout_s, Unreachable(call.peer, call.address, call.timeout_s, "timed out"))


class Scripted:
    """Runs operations. `answer(call)` returns the outcome of each call, a reply or an error, at once or `After` a while.

    calls   every call made, in order.     pauses  every pause, in seconds.     told  what `on_wait` heard.
    `lend`: memory for what is pushed.
    """

    def __init__(self, answer: Callable[[Call], Any], uniform: float = 1.0, lend: Lend = lends_nothing) -> None:
        self.answer = answer
        self.now_s = 0.0
        self.calls: list[Call] = []
        self.pauses: list[float] = []
        self.told: list[ParameterServerError] = []
        self.world = World(lambda: self.now_s, lambda: uniform, self.told.append, lend=lend)

    def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end; return its result or raise its error."""
        outcome: Any = None
        while True:
            assert self.now_s < LIMIT_S, f"hangs; the last calls were {self.calls[-3:]}"
            try:
                effect = operation.send(outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if isinstance(effect, Exchange):
                outcome = self._exchange(effect)
            else:
                self.pauses.append(effect.seconds)
                self.now_s += effect.seconds
                outcome = None

    def _exchange(self, effect: Exchange) -> list[Any]:
        outcomes = []
        longest_s = 0.0
        for call in effect.calls:
            self.calls.append(call)
            outcome = self.answer(call)
            if isinstance(outcome, After):
                longest_s = max(longest_s, outcome.seconds)
                outcome = outcome.outcome
            outcomes.append(outcome)
        self.now_s += longest_s
        return outcomes

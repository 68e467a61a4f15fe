"""What became of a step's time: from spans to seconds, which add up to the step.

whole_s = own_s of every span in the training's thread + what is left, which is the user's own code
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ps_worker.profiling.stopwatch import Carried, Ended
from ps_worker.profiling.taps import AWAIT, BESIDE, CALLS, PAUSE

Seconds = dict[str, float]


@dataclass(frozen=True)
class StepTimes:
    """One step of one worker, in seconds.

    within   the training's thread, by span; calls and what was awaited apart by kind, as "calls pull".
    beside   operations in threads of the client's that ended in this step, by kind; `calls_beside`: of them, the calls and the pauses
             before a peer was asked again.
    """

    whole_s: float
    within: Seconds
    beside: Seconds
    calls_beside: Seconds
    sent_bytes: int
    received_bytes: int

    @classmethod
    def of(cls, begin_s: float, end_s: float, ended: Iterable[Ended], carried: Sequence[Carried], thread: int) -> "StepTimes":
        """Sum what ended between the end of the step before, `begin_s`, and its own; `thread`: that of the training."""
        within: defaultdict[str, float] = defaultdict(float)
        beside: defaultdict[str, float] = defaultdict(float)
        calls_beside: defaultdict[str, float] = defaultdict(float)
        for span in ended:
            if span.thread == thread:
                within[named(span.name, span.kind)] += span.own_s
            elif span.name == BESIDE:
                beside[span.kind] += span.end_s - span.begin_s
            elif span.name in (CALLS, PAUSE):
                calls_beside[span.kind] += span.end_s - span.begin_s
        sent, received = sum([call.sent_bytes for call in carried]), sum([call.received_bytes for call in carried])
        return cls(end_s - begin_s, dict(within), dict(beside), dict(calls_beside), sent, received)

    @property
    def user_s(self) -> float:
        """What is left of the step: the user's own code, and whatever it calls that is not ours."""
        return self.whole_s - sum(self.within.values())


def named(span: str, kind: str) -> str:
    """Return under which name a span's seconds are counted."""
    return f"{span} {kind}" if span in (CALLS, PAUSE, AWAIT) else span

"""What was agreed upon at barriers, of a job that may pass very many of them."""

from collections.abc import Sequence
from dataclasses import replace

from ps_server.tasks import BarrierRun

RUNS_KEPT = 64  # an evaluation that asks before each batch whether all have one is one run, and its end another


class Minima:
    """The least value brought to each barrier, in runs of barriers in a row with the same one and the same turns; the last RUNS_KEPT."""

    def __init__(self, runs: Sequence[BarrierRun] = ()) -> None:
        """`runs`: as `runs` gives them."""
        self._runs = list(runs)

    @property
    def runs(self) -> tuple[BarrierRun, ...]:
        """All of it, ascending, as it is stored."""
        return tuple(self._runs)

    @property
    def forgotten_before(self) -> int:
        """The first barrier that is known still, where there may have been others before it; else 0."""
        return self._runs[0].generation if len(self._runs) == RUNS_KEPT else 0

    def get(self, generation: int) -> BarrierRun | None:
        """Return the run that a barrier is in; None where it has not opened, or long ago."""
        return next((run for run in reversed(self._runs) if run.generation <= generation < _end(run)), None)

    def until(self, end: int) -> tuple[BarrierRun, ...]:
        """Return the runs of barriers before this one."""
        return tuple([replace(run, count=min(run.count, end - run.generation)) for run in self._runs if run.generation < end])

    def put(self, run: BarrierRun) -> None:
        """Note what was agreed upon at some barriers; what was noted of them before is forgotten."""
        kept = [part for old in self._runs for part in _without(old, run)]
        self._runs = []
        for each in sorted([*kept, run], key=lambda one: one.generation):
            last = self._runs[-1] if self._runs else None
            if last is not None and _end(last) == each.generation and (last.minimum, last.turns) == (each.minimum, each.turns):
                self._runs[-1] = replace(last, count=last.count + each.count)
            else:
                self._runs.append(each)
        del self._runs[:-RUNS_KEPT]


def _end(run: BarrierRun) -> int:
    """Return the first barrier behind a run."""
    return run.generation + run.count


def _without(old: BarrierRun, new: BarrierRun) -> list[BarrierRun]:
    """Return what a run has before and behind another one."""
    before = min(_end(old), new.generation) - old.generation
    behind = _end(old) - max(old.generation, _end(new))
    return [
        replace(old, generation=first, count=count)
        for first, count in ((old.generation, before), (_end(old) - behind, behind))
        if count > 0
    ]

"""How long a core's turns take, and how long a request is parked between them, by the rank that asked: for `client.stats()`.

    asked ──turn──┬─ parked ─┬──turn── answered        another rank's request came in between, and let this one go on
                  └──────────┘

A turn that answers several requests counts for each of them: these are the seconds that each asker spent waiting for it.

The longest turn while a part of a checkpoint is saved is its stall: from the turn that takes it to the one that hears that it is written.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ps_proto.requests import OBSERVER, Finish, GetStats, Pull, Push, Stats
from ps_server.events import Asked, Core, Dropped, Effect, Event, Refuse, Reply, Work, Worked
from ps_server.tasks import ReadStall, SavePart, Stall

KINDS: dict[type[Any], str] = {Pull: "pull", Push: "push", Finish: "finish"}


class Spent:
    """What one rank's requests of one kind took."""

    __slots__ = ("count", "parked_s", "turn_s")

    def __init__(self) -> None:
        self.count = 0
        self.turn_s = 0.0
        self.parked_s = 0.0


class _Parked(NamedTuple):
    spent: Spent
    since_s: float


class TimedCore:
    """A core, with a stopwatch beside it. `now_s`: the monotonic time that turns are handed; `cpu_s`: the process's processor time."""

    def __init__(self, core: Core, now_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time) -> None:
        self._core = core
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._turns_s = 0.0
        self._spent: dict[tuple[int, type[Any]], Spent] = {}
        self._parked: dict[int, _Parked] = {}
        self._saves: set[int] = set()  # the numbers of the tasks that save a part
        self._stall_s = 0.0  # the longest turn of these, or of the last one

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one turn, which begins at `now_s`."""
        effects = self._core.handle(event, now_s)
        end_s = self._now_s()
        turn_s = end_s - now_s
        self._turns_s += turn_s
        self._note_saves(event, effects, turn_s)
        own: Reply | Refuse | None = None
        request = event.request if isinstance(event, Asked) else None
        for effect in effects:
            if not isinstance(effect, Reply | Refuse):
                continue
            if effect.request == request:
                own = effect
            else:
                self._leave(effect.request, now_s, turn_s)
        if isinstance(event, Asked):
            self._count(event, own, turn_s, end_s)
            if isinstance(own, Reply) and isinstance(event.body, GetStats | ReadStall):
                body = self._completed(own.body) if isinstance(event.body, GetStats) else Stall(self._stall_s)
                return [replace(own, body=body) if effect is own else effect for effect in effects]
        elif isinstance(event, Dropped):
            self._parked.pop(event.request, None)
        return effects

    def deadline_s(self) -> float | None:
        """Return the core's."""
        return self._core.deadline_s()

    def _note_saves(self, event: Event, effects: list[Effect], turn_s: float) -> None:
        begun = [effect.number for effect in effects if isinstance(effect, Work) and isinstance(effect.task, SavePart)]
        if begun and not self._saves:
            self._stall_s = 0.0
        self._saves.update(begun)
        if self._saves:
            self._stall_s = max(self._stall_s, turn_s)
        if isinstance(event, Worked):
            self._saves.discard(event.number)

    def _count(self, asked: Asked, answer: Reply | Refuse | None, turn_s: float, end_s: float) -> None:
        """Count the turn in which a request came; one that is refused at once may have any rank, and is not counted."""
        kind = type(asked.body)
        if kind not in KINDS or isinstance(answer, Refuse):
            return
        rank = asked.body.fence.rank  # type: ignore[attr-defined]  # each of these kinds has a fence
        if rank == OBSERVER:
            return
        spent = self._spent.get((rank, kind))
        if spent is None:
            spent = self._spent[rank, kind] = Spent()
        spent.count += 1
        spent.turn_s += turn_s
        if answer is None:
            self._parked[asked.request] = _Parked(spent, end_s)

    def _leave(self, request: int, begin_s: float, turn_s: float) -> None:
        """Count the turn that answers a request which was parked until it began."""
        parked = self._parked.pop(request, None)
        if parked is not None:
            parked.spent.parked_s += begin_s - parked.since_s
            parked.spent.turn_s += turn_s

    def _completed(self, stats: Any) -> Stats:
        """Return the core's numbers with those of the time beside them."""
        ranks: dict[int, dict[str, float]] = {}
        for (rank, kind), spent in self._spent.items():
            name = KINDS[kind]
            numbers = {f"{name}_count": float(spent.count), f"{name}_turn_s": spent.turn_s, f"{name}_parked_s": spent.parked_s}
            ranks.setdefault(rank, {}).update(numbers)
        of_time = {"turns_s": self._turns_s, "cpu_s": self._cpu_s(), "checkpoint_stall_s": self._stall_s}
        return Stats({**stats.server, **of_time}, stats.tables, ranks)

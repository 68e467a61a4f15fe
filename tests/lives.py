"""Scripts that are started again, without a cluster: what a session captures at each step, and what it does with it afterwards.

`lived(script)` runs a script to its end; `Life.states[k]` is what it said after step k, and `lived(script, k, states[k])` is the run of a
worker that was started again after it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

from ps_worker.driver import Handle
from ps_worker.protocol import BarriersAsked
from ps_worker.resume.replay import Replay
from ps_worker.session import Session

session_module = import_module("ps_worker.session")


@dataclass
class Alone:
    """Plays the client of a job whose other ranks agree to all: it counts steps and barriers, and keeps the states by their clock."""

    clock: int = 0
    resume: bytes = b""
    next_barrier: int = 0
    rank: int = 0
    world_size: int = 1
    states: dict[int, bytes] = field(default_factory=dict)
    asked: list[tuple[int, int]] = field(default_factory=list)
    """The barriers that were asked for: number and value."""
    replay: Replay = field(default_factory=Replay)
    shortest: int | None = None
    """What the other ranks bring to every barrier, if anything."""

    @property
    def is_resumed(self) -> bool:
        return self.clock > 0

    @property
    def turn(self) -> int:
        return self.clock

    def provide_resume(self, provider: Callable[[], bytes]) -> None:
        self._provide = provider

    def follow(self, replay: Replay, barriers: BarriersAsked | None) -> None:
        self.replay = replay
        self.next_barrier = barriers.next_one if barriers else 0

    @property
    def barriers(self) -> BarriersAsked:
        return BarriersAsked(self.next_barrier, self.next_barrier)

    def mark(self) -> None:
        if self.clock not in self.states and self.clock > self._begun:
            self.states[self.clock] = self._provide()

    def mark_again(self) -> None:
        if self.clock > self._begun:
            self.states[self.clock] = self._provide()

    mark_later = mark_again

    def end_step(self) -> None:
        self.mark()
        self.replay.end_step()
        self.clock += 1

    def barrier(self) -> None:
        self.mark()
        if not self.replay.passes_barrier():
            self.agree_async(0)

    def agree_async(self, value: int, number: int | None = None) -> Handle[int]:
        self.mark()
        if number is None:
            number, self.next_barrier = self.next_barrier, self.next_barrier + 1
        self.asked.append((number, value))
        handle: Handle[int] = Handle(Future())
        handle.run(lambda: value if self.shortest is None else min(value, self.shortest))
        return handle

    def close(self) -> None:
        self.mark()

    disconnect = close

    def __post_init__(self) -> None:
        self._begun = self.clock


Script = Callable[[Session, Callable[..., None]], None]


@dataclass
class Life:
    """log: what the script said, as (clock, ...).     client: what it had."""

    log: list[Any]
    client: Alone

    @property
    def states(self) -> dict[int, bytes]:
        return self.client.states


@contextmanager
def session_of(client: Any) -> Any:
    """The process's session, with this client."""
    with pytest.MonkeyPatch.context() as patch:
        session = Session(client, None)
        patch.setattr(session_module, "_current", session)
        with session:
            yield session


def lived(script: Script, clock: int = 0, state: bytes = b"", **options: Any) -> Life:
    """Run the script from this step on, in the state that another life had there."""
    client, log = Alone(clock, state, **options), []
    with session_of(client) as session:
        script(session, lambda *said: log.append((client.clock, *said)))
    return Life(log, client)


def assert_lives_again(script: Script, after: Callable[[list[int]], list[int]] = lambda steps: steps, **options: Any) -> Life:
    """Assert that the script, started again after any of these steps, says what it said when nothing happened; return that life."""
    whole = lived(script, **options)
    steps = sorted(whole.states)
    assert steps == list(range(1, whole.client.clock + 1))
    for step in after(steps):
        again = lived(script, step, whole.states[step], **options)
        assert again.log == [said for said in whole.log if said[0] >= step], f"after step {step}"
        assert {clock: again.states[clock] for clock in again.states} == {clock: whole.states[clock] for clock in steps if clock > step}
    return whole

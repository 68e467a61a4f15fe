"""A network in virtual time that loses, doubles, delays, reorders and cuts, at random from a seed or exactly where a test says.

It carries messages between named nodes: `deliver(target, message)` is called when one arrives. Latency is random, so messages overtake one
another; a random fault hits any message with the probabilities of `Chances`, a directed one hits the next message that fits it.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Message(NamedTuple):
    """A question ("ask") or its answer. `call` pairs them. `address`: where the target must listen; "": wherever it does."""

    source: str
    target: str
    kind: str
    call: int
    body: Any
    address: str = ""

    def answered(self, body: Any) -> "Message":
        """Return the answer to this question."""
        return Message(self.target, self.source, "answer", self.call, body)


def fits(message: Message, source: str | None, target: str | None, body: type | None) -> bool:
    """Return whether it goes from source to target and its body is a `body`; None fits any."""
    return source in (None, message.source) and target in (None, message.target) and (body is None or isinstance(message.body, body))


class VirtualTime:
    """Seconds that pass only by taking the next event; ties go in the order in which they were set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events_count = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action` at `when_s`, or at once where that has passed."""
        self.events_count += 1
        heapq.heappush(self._events, (max(when_s, self.now_s), self.events_count, action, arguments))

    def advance(self) -> bool:
        """Take the next event; return False where there is none."""
        if not self._events:
            return False
        self.now_s, _, action, arguments = heapq.heappop(self._events)
        action(*arguments)
        return True


@dataclass(frozen=True)
class Chances:
    """Probability of each random fault per message; `late_s` is how long a delayed one takes at most."""

    drop: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    late_s: float = 3.0


@dataclass
class Fault:
    """A directed fault: it hits the next `count` messages that fit, and says how many it hit."""

    effect: str  # drop, double or delay
    fits: Callable[[Message], bool]
    count: int = 1
    by_s: float = 0.0
    hits: list[Message] = field(default_factory=list)

    @property
    def fired(self) -> bool:
        return len(self.hits) == self.count


@dataclass
class Network:
    """See the module's text. `hop_s`: least and most time a message takes where nothing is wrong."""

    time: VirtualTime
    rng: random.Random
    deliver: Callable[[Message], None]
    chances: Chances = field(default_factory=Chances)
    hop_s: tuple[float, float] = (0.0005, 0.003)
    faults: list[Fault] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: {"sent": 0, "dropped": 0, "doubled": 0, "delayed": 0, "cut": 0})
    _cut: set[frozenset[str]] = field(default_factory=set)
    _isolated: set[str] = field(default_factory=set)

    # --- directed faults -----------------------------------------------------------------------------------------------------

    def drop_next(self, source: str | None = None, target: str | None = None, body: type | None = None, count: int = 1) -> Fault:
        """Lose the next messages from source to target whose body is a `body`; None fits any."""
        return self._plan("drop", source, target, body, count)

    def double_next(self, source: str | None = None, target: str | None = None, body: type | None = None, count: int = 1) -> Fault:
        """Deliver them twice, the second time on its own way."""
        return self._plan("double", source, target, body, count)

    def delay_next(
        self, by_s: float, source: str | None = None, target: str | None = None, body: type | None = None, count: int = 1
    ) -> Fault:
        """Deliver them `by_s` later, so that what follows overtakes them."""
        return self._plan("delay", source, target, body, count, by_s)

    def _plan(self, effect: str, source: str | None, target: str | None, body: type | None, count: int, by_s: float = 0.0) -> Fault:
        fault = Fault(effect, lambda message: fits(message, source, target, body), count, by_s)
        self.faults.append(fault)
        return fault

    def cut(self, one: str, other: str) -> None:
        """Lose everything between two nodes until healed."""
        self._cut.add(frozenset((one, other)))

    def isolate(self, node: str) -> None:
        """Lose everything from and to a node until healed."""
        self._isolated.add(node)

    def heal(self) -> None:
        """Undo cuts and isolations."""
        self._cut.clear()
        self._isolated.clear()

    # --- sending ---------------------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Take a message to deliver, or not, or twice, later."""
        self.counts["sent"] += 1
        if (self._isolated or self._cut) and self._is_cut(message):
            self.counts["cut"] += 1
            return
        effect, by_s = self._directed(message) if self.faults else ("", 0.0)
        chances = self.chances
        if effect == "drop" or (chances.drop and self.rng.random() < chances.drop):
            self.counts["dropped"] += 1
            return
        if effect == "double" or (chances.double and self.rng.random() < chances.double):
            self.counts["doubled"] += 1
            self._carry(message, self.rng.random() * chances.late_s)
        if effect == "delay":
            self.counts["delayed"] += 1
        elif chances.delay and self.rng.random() < chances.delay:
            self.counts["delayed"] += 1
            by_s = self.rng.random() * chances.late_s
        self._carry(message, by_s)

    def _is_cut(self, message: Message) -> bool:
        ends = (message.source, message.target)
        return not self._isolated.isdisjoint(ends) or frozenset(ends) in self._cut

    def _directed(self, message: Message) -> tuple[str, float]:
        for fault in self.faults:
            if not fault.fired and fault.fits(message):
                fault.hits.append(message)
                return fault.effect, fault.by_s
        return "", 0.0

    def _carry(self, message: Message, late_s: float) -> None:
        least_s, most_s = self.hop_s
        self.time.at(self.time.now_s + late_s + least_s + (most_s - least_s) * self.rng.random(), self.deliver, message)

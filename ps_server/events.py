"""What goes into a server-side core and what comes out: `effects = core.handle(event, now_s)`.

The shard and the coordinator are both such cores. The edge (or the simulator) turns messages into `Asked`, carries the effects out in their
order, and calls back with `Ticked` once `core.deadline_s()` has come. `now_s` is a monotonic time that is handed in, in seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ps_proto.errors import ParameterServerError
from sharding.arrays import empty_aligned
from sharding.wire_format import WireRows

Body = object  # one of ps_proto.requests or ps_proto.orders
MakeRows = Callable[[tuple[int, int], np.dtype[Any]], WireRows]  # (shape, dtype) -> rows for a reply, at a multiple of 64 bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """A request arrived; the core answers under `request` with exactly one Reply or Refuse, now or later.

    `make_rows`: where the rows of a reply are to lie. `is_borrowed`: they, and the rows of the request, lie in memory that the asker
    changes once it has its answer: what the core keeps of them it copies. Ids are always the core's own.
    """

    request: int
    body: Body
    make_rows: MakeRows = empty_aligned
    is_borrowed: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """Whoever asked `request` has gone; it needs no answer any more."""

    request: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A server's answer to the order `order`: a reply, or the error that stands for it."""

    order: int
    outcome: Body | ParameterServerError


@dataclass(frozen=True, slots=True)
class Worked:
    """The task `number` has ended: with a value, or with the error that stands for it."""

    number: int
    outcome: object | ParameterServerError


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; something may be due."""


Event = Asked | Dropped | Answered | Worked | Ticked


@dataclass(frozen=True, slots=True)
class Reply:
    request: int
    body: Body


@dataclass(frozen=True, slots=True)
class Refuse:
    request: int
    error: ParameterServerError


@dataclass(frozen=True, slots=True)
class Tell:
    """Send an order to a server (by name, at its address); the answer comes back as Answered."""

    order: int
    server: str
    address: str
    body: Body


@dataclass(frozen=True, slots=True)
class Work:
    """Do `task`, one of ps_server.tasks, aside, which may take long; its end comes back as Worked. A core numbers its own tasks."""

    number: int
    task: object


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this durable, as one, before anything after it is carried out (R13); always the first effect of its turn."""

    puts: Mapping[str, bytes]
    deletes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Note:
    """Tell the operator a sentence, in the log; a warning where something is to be done about it, or was lost."""

    sentence: str
    is_warning: bool = True


Effect = Reply | Refuse | Tell | Work | Persist | Note


class Core(Protocol):
    """A state machine without a world."""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one turn."""
        ...

    def deadline_s(self) -> float | None:
        """Return when a Ticked is due at the latest, or None."""
        ...

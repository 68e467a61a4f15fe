"""Calls as values, and asking until there is an answer: backoff, budgets, and the patience to wait for others.

An operation is a generator that yields effects, `Exchange` (calls to make at once) or `Pause`, and is sent what came of them: for an
Exchange one outcome per call, a reply or the error that stands for it.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ps_proto.errors import (
    BarrierTimeout,
    MapBehind,
    NotOwner,
    ParameterServerError,
    RowsUnset,
    StalenessTimeout,
    UnknownKeyList,
    Unreachable,
)
from ps_worker.retry import Backoff, is_passing, is_refusal, is_waiting
from ps_worker.rooms import Lend, lends_nothing

BYTES_PER_S_MIN = 10e6  # the slowest link we are patient with: large requests get more time
LOOK_AFTER_S = 0.5  # a peer that cannot be reached for as long may have been replaced

T = TypeVar("T")


class Call(NamedTuple):
    """One request to one peer. `timeout_s`: when to give the answer up."""

    peer: str
    address: str
    body: Any
    timeout_s: float


class Exchange(NamedTuple):
    """Make these calls at once; send back one outcome per call, in their order."""

    calls: tuple[Call, ...]


class Pause(NamedTuple):
    """Do nothing for a while."""

    seconds: float


Effect = Exchange | Pause
Operation = Generator[Effect, Any, T]


@dataclass(frozen=True)
class Patience:
    """How long things may take, in seconds.

    rpc_timeout_s    for one call's answer, beside what it waits for and what its bytes need
    retry_timeout_s  for a peer that does not answer, over all attempts
    wait_timeout_s   for other ranks
    """

    rpc_timeout_s: float = 10.0
    retry_timeout_s: float = 60.0
    wait_timeout_s: float = 600.0
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True)
class World:
    """What is handed in: a monotonic time in seconds, a random number in [0, 1), and whom to tell about a long wait.

    exclusive   held while one operation looks at what all share and acts on it: a lock where operations run in several threads
    lend        memory from which what is pushed is sent without one more copy, as far as there is some
    """

    now_s: Callable[[], float]
    uniform: Callable[[], float]
    on_wait: Callable[[ParameterServerError], None]
    exclusive: AbstractContextManager[object] = field(default_factory=nullcontext)
    lend: Lend = lends_nothing


class Question(NamedTuple):
    """A body for a peer. `nbytes`: what it and its answer carry. `hand_on`: what to tell a peer whose shard map is behind (R1).

    `in_full`: makes what a peer is asked instead that does not know a key list which the body names (R19).
    """

    address: str
    body: Any
    nbytes: int = 0
    hand_on: Any = None
    in_full: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Asker:
    """Asks peers until they have answered. `check` is called before each is asked again: what it raises ends that."""

    world: World
    patience: Patience
    check: Callable[[], None] = lambda: None

    def ask(
        self,
        questions: Mapping[str, Question],
        on_refused: Callable[[], None] | None = None,
        look: Callable[[], Operation[None]] | None = None,
    ) -> Operation[dict[str, Any]]:
        """Ask each peer, again with backoff while it does not answer, until all have; return the replies by peer.

        What is no passing trouble is raised at once. A peer that stays silent for retry_timeout_s raises Unreachable, a wait that
        lasts wait_timeout_s its own error; both name whom. `on_refused` is called before the raise where every peer has refused, so that
        nothing took effect anywhere. `look` is run before a peer is asked again that cannot be reached for a while: somebody else may
        know what became of it. What it raises ends that, too.
        """
        pending, replies = dict(questions), {}
        started_s, attempt = self.world.now_s(), 0
        silent_since_s: dict[str, float] = {}
        while pending:
            asked_s = self.world.now_s()
            outcomes = yield Exchange(tuple([self._call(peer, question) for peer, question in pending.items()]))
            now_s = self.world.now_s()
            errors = {}
            for peer, outcome in zip(list(pending), outcomes, strict=True):
                if isinstance(outcome, ParameterServerError):
                    errors[peer] = outcome
                else:
                    replies[peer] = outcome
                    del pending[peer]
                    silent_since_s.pop(peer, None)
            for peer in [peer for peer, error in errors.items() if isinstance(error, UnknownKeyList)]:
                in_full = pending[peer].in_full
                if in_full is not None:
                    pending[peer] = pending[peer]._replace(body=in_full(), in_full=None)
                    silent_since_s.pop(peer, None)
                    del errors[peer]
            if not errors:
                continue
            worst = _worst(errors)
            if worst is not None:
                if on_refused is not None and len(errors) == len(questions) and all([is_refusal(error) for error in errors.values()]):
                    on_refused()
                raise worst
            self.check()
            for peer, error in errors.items():
                if is_waiting(error):
                    silent_since_s.pop(peer, None)  # it has answered: there is something else it waits for
                    self._still_waiting(error, now_s - started_s)
                elif now_s - silent_since_s.setdefault(peer, asked_s) >= self.patience.retry_timeout_s:
                    raise _given_up(peer, pending[peer], error, now_s - silent_since_s[peer])
            if look is not None and any([_is_long(error, now_s - silent_since_s.get(peer, now_s)) for peer, error in errors.items()]):
                yield from look()
            behind = [peer for peer, error in errors.items() if isinstance(error, MapBehind)]
            if behind:
                yield Exchange(tuple([self._call(peer, pending[peer]._replace(body=pending[peer].hand_on)) for peer in behind]))
            elif any([is_passing(error) for error in errors.values()]):
                yield Pause(self.patience.backoff.pause_s(attempt, self.world.uniform))
                attempt += 1
        return replies

    def ask_once(self, questions: Mapping[str, Question]) -> Operation[dict[str, Any]]:
        """Ask each peer once; return by peer what came of it, a reply or the error that stands for its lack."""
        outcomes = yield Exchange(tuple([self._call(peer, question) for peer, question in questions.items()]))
        return dict(zip(questions, outcomes, strict=True))

    def _call(self, peer: str, question: Question) -> Call:
        waits_s = float(getattr(question.body, "wait_s", 0.0))
        return Call(peer, question.address, question.body, self.patience.rpc_timeout_s + waits_s + question.nbytes / BYTES_PER_S_MIN)

    def _still_waiting(self, error: ParameterServerError, waited_s: float) -> None:
        assert isinstance(error, StalenessTimeout | RowsUnset | BarrierTimeout)
        total = replace(error, after_s=waited_s)
        if waited_s >= self.patience.wait_timeout_s:
            raise total
        self.world.on_wait(total)


def _worst(errors: Mapping[str, ParameterServerError]) -> ParameterServerError | None:
    """Return what no retry mends; NotOwner only where there is nothing worse, since splitting again mends it."""
    lasting = [error for error in errors.values() if not (is_passing(error) or is_waiting(error))]
    return min(lasting, key=lambda error: isinstance(error, NotOwner), default=None)


def _is_long(error: ParameterServerError, silent_s: float) -> bool:
    """Return whether a peer cannot be reached, and not only for a moment."""
    return isinstance(error, Unreachable) and silent_s >= LOOK_AFTER_S


def _given_up(peer: str, question: Question, last: ParameterServerError, after_s: float) -> ParameterServerError:
    """Say how long it was; what a peer says of a third one that it cannot reach stays as it is, with that one's name."""
    if isinstance(last, Unreachable) and last.peer == peer:
        return Unreachable(peer, question.address, after_s, last.cause)
    return last

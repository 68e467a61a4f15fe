"""A coordinator's core driven turn by turn: its servers answer when the test says, and the time is what the test sets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ps_proto.errors import ParameterServerError, Unreachable
from ps_proto.orders import AskProcess, FenceRank, ProcessNamed, RankFenced
from ps_proto.requests import NEVER, Done, JobJoined, JoinJob, LeaveJob, RegisterServer
from ps_proto.values import Adagrad, Sync, TableSpec
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.stored import Stored
from ps_server.events import Answered, Asked, Event, Note, Persist, Refuse, Reply, Tell, Ticked, Work, Worked
from stored import store

SYNC = Sync()
SETTINGS = CoreSettings(2)
SPEC = TableSpec("user", 4, Adagrad(0.1))
REFUSED = Unreachable("server-1", "host-1", 0.0, "connection refused")
UNREACHED = str(Unreachable("server-1", "host-1", 5.0, "connection refused"))  # what one who asked with wait_s=5 is told


@dataclass
class Driver:
    """A coordinator with its servers. `told`: the orders that no server has answered yet; `at_work`: the tasks that have not ended.

    `stored`: what it made durable; `notes`: of what it warned the operator; `mentions`: what it told besides.
    """

    core: CoordinatorCore
    now_s: float = 0.0
    told: list[Tell] = field(default_factory=list)
    log: list[Tell] = field(default_factory=list)
    at_work: list[Work] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    mentions: list[str] = field(default_factory=list)
    outcomes: dict[int, Any] = field(default_factory=dict)
    follow: Callable[[Tell], Any] = lambda tell: None  # what a server answers to an order, where not as usual
    fenced: Callable[[str, FenceRank], RankFenced] = lambda server, order: RankFenced(None, NEVER, NEVER)
    _requests: int = 0

    def turn(self, event: Event) -> None:
        for position, effect in enumerate(self.core.handle(event, self.now_s)):
            match effect:
                case Reply(request, outcome) | Refuse(request, outcome):
                    assert request not in self.outcomes, "one answer to a request"
                    self.outcomes[request] = outcome
                case Tell():
                    self.told.append(effect)
                    self.log.append(effect)
                case Work():
                    self.at_work.append(effect)
                case Persist():
                    assert position == 0, "what must be durable is stored before anything is told (R13)"
                    store(self.stored, effect)
                case Note(sentence, is_warning):
                    (self.notes if is_warning else self.mentions).append(sentence)

    def ask(self, body: Any) -> int:
        """Ask, without answering any order; return the request's number."""
        self._requests += 1
        self.turn(Asked(self._requests, body))
        return self._requests

    def answer(self, tell: Tell, outcome: Any = None) -> None:
        """Answer one order, as a server would unless an outcome is given."""
        self.told.remove(tell)
        outcome = outcome if outcome is not None else self.follow(tell)
        if outcome is None:
            outcome = self.fenced(tell.server, tell.body) if isinstance(tell.body, FenceRank) else Done()
        self.turn(Answered(tell.order, outcome))

    def end(self, work: Work, outcome: Any) -> None:
        """Let a task end."""
        self.at_work.remove(work)
        self.turn(Worked(work.number, outcome))

    def settle(self) -> None:
        """Let the servers answer until nothing is open."""
        while self.told:
            self.answer(self.told[0])

    def get(self, body: Any) -> Any:
        """Ask, let the servers answer, return the reply or raise the refusal."""
        request = self.ask(body)
        self.settle()
        outcome = self.outcomes[request]
        if isinstance(outcome, ParameterServerError):
            raise outcome
        return outcome

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.turn(Ticked())

    def wait(self, seconds: float, look_s: float = 2.0) -> None:
        """Let time pass with a turn every now and then, as a coordinator has them that is there all the time."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.tick(min(look_s, until_s - self.now_s))

    def bodies(self, kind: type) -> list[tuple[str, Any]]:
        """The orders of a kind given so far: to whom, and what."""
        return [(tell.server, tell.body) for tell in self.log if isinstance(tell.body, kind)]


def register(driver: Driver, index: int) -> Any:
    return driver.outcomes[driver.ask(RegisterServer(f"server-{index}", f"host-{index}", nonce=index))]


def restart(driver: Driver, index: int, address: str, nonce: int) -> int:
    """Let a server that was started again register, whose old process is gone; return the request's number."""
    request = driver.ask(RegisterServer(f"server-{index}", address, nonce=nonce))
    for question in [tell for tell in driver.told if isinstance(tell.body, AskProcess)]:
        is_its_own = question.address == address
        driver.answer(question, ProcessNamed(nonce) if is_its_own else Unreachable(question.server, question.address, 0.1, "timed out"))
    return request


def driven(settings: CoreSettings = SETTINGS) -> Driver:
    """Return a coordinator whose two servers have registered and hold the map."""
    driver = Driver(CoordinatorCore(settings))
    register(driver, 0)
    register(driver, 1)
    driver.settle()
    return driver


def restarted(driver: Driver, settings: CoreSettings = SETTINGS, now_s: float = 0.0) -> Driver:
    """Return the coordinator that is started after this one has died, at `now_s` of its own clock."""
    again = Driver(CoordinatorCore(settings, Stored.of(driver.stored)), now_s, stored=driver.stored, fenced=driver.fenced)
    again._requests = driver._requests + 1000
    again.turn(Ticked())
    return again


def join(driver: Driver, rank: int, world_size: int = 2, mode: Any = SYNC, nonce: int | None = None) -> JobJoined:
    nonce = nonce if nonce is not None else 1000 + driver._requests
    joined: JobJoined = driver.get(JoinJob(rank, world_size, mode, nonce))
    return joined


def leave(driver: Driver, joined: JobJoined, rank: int) -> None:
    assert driver.get(LeaveJob(rank, joined.incarnation)) == Done()

"""A coordinator that dies at any instant and at once is started again from what it stored, with two servers that are real."""

from collections.abc import Callable, Generator
from typing import Any

from ps_proto.errors import ParameterServerError, Recovering
from ps_proto.orders import AdmitRank, FenceRank, InstallMap, InstallTable, ResolveRank, StartJob
from ps_proto.requests import Fence, Finish, Finished, JobJoined, StepOrder
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.plans import ORDER_AGAIN_S
from ps_server.coordinator.stored import Stored
from ps_server.events import Answered, Asked, Effect, Event, Persist, Refuse, Reply, Tell, Ticked
from ps_server.shard.shard import Shard
from stored import store

SETTINGS = CoreSettings(2, cluster=77, lease_s=4.0)
Script = Generator[list[Any], list[Any], None]  # yields what is asked at once, goes on with what came of it


class Died(Exception):
    """The coordinator's end."""


class World:
    """A coordinator that dies ahead of the effect numbered `death` and at once is started again, and two servers.

    Effects are numbered from 1 in the order in which they are carried out, over all turns.
    """

    def __init__(self, death: int | None) -> None:
        self.stored: dict[str, bytes] = {}
        self.shards = {name: Shard(name) for name in ("server-0", "server-1")}
        self.terms: list[set[int]] = []  # that servers were told, by life
        self.deaths = 0
        self.carried = 0
        self.meanwhile: Callable[[], None] = lambda: None  # called again and again while somebody waits
        self.given: dict[tuple[int, int], set[int]] = {}  # (rank, incarnation) -> the nonces of the tries to join that became it
        self._death = death
        self._now_s = 0.0
        self._requests = 0
        self._open: dict[int, Any] = {}  # request -> its body
        self._outcomes: dict[int, Any] = {}
        self._events: list[Event] = []
        self._start()

    def _start(self) -> None:
        self.core = CoordinatorCore(SETTINGS, Stored.of(self.stored))
        self.terms.append(set())
        self._events = [Ticked(), *[Asked(request, body) for request, body in self._open.items()]]

    def ask(self, bodies: list[Any]) -> list[Any]:
        """Ask all of these at once; return what came of them. Who gets no answer, or is told to wait, asks again."""
        outcomes: list[Any] = [None] * len(bodies)
        while None in outcomes:
            requests = {}
            for place, body in enumerate(bodies):
                if outcomes[place] is None:
                    self._requests += 1
                    requests[self._requests] = place
                    self._open[self._requests] = body
                    self._events.append(Asked(self._requests, body))
            self._run()
            self.meanwhile()
            for request, place in requests.items():
                self._open.pop(request, None)
                outcome = self._outcomes.pop(request, None)
                outcomes[place] = None if isinstance(outcome, Recovering) else outcome
            self._now_s += ORDER_AGAIN_S
            assert self._now_s < 100.0, f"still waiting: {bodies}"
            self._events.append(Ticked())
        return outcomes

    def tell(self, body: Any) -> Any:
        """Ask once, of one who asks again later anyway; return what came of it, None where nothing did."""
        self._requests += 1
        self._events.append(Asked(self._requests, body))
        self._run()
        return self._outcomes.pop(self._requests, None)

    def joined(self, outcome: Any, nonce: int) -> JobJoined:
        """Note what a try to join became."""
        assert isinstance(outcome, JobJoined), outcome
        self.given.setdefault((outcome.rank, outcome.incarnation), set()).add(nonce)
        return outcome

    def _run(self) -> None:
        while self._events:
            event = self._events.pop(0)
            try:
                self._carry_out(self.core.handle(event, self._now_s))
            except Died:
                self.deaths += 1
                self._start()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.carried += 1
            if self.carried == self._death:
                raise Died
            match effect:
                case Persist():
                    store(self.stored, effect)
                case Reply(request, outcome) | Refuse(request, outcome):
                    self._open.pop(request, None)
                    self._outcomes[request] = outcome
                case Tell(order, server, _, body):
                    if not isinstance(body, InstallMap):
                        assert isinstance(body, InstallTable | StartJob | FenceRank | ResolveRank | AdmitRank)
                        assert body.cluster == 77
                        self.terms[-1].add(body.term)
                    self._events.append(Answered(order, answer_of(self.shards[server], body)))


def answer_of(shard: Shard, body: Any) -> Any:
    ((effect),) = [effect for effect in shard.handle(Asked(1, body), 0.0) if isinstance(effect, Reply | Refuse)]
    return effect.body if isinstance(effect, Reply) else effect.error


def finish(
    world: World, joined: JobJoined, clock: int, leave: bool = False, orders: tuple[StepOrder, ...] = (), resume: bytes = b""
) -> None:
    """Let a worker tell every server that it finished a step."""
    fence = Fence(joined.shard_map.version, joined.rank, joined.incarnation, clock + 1)
    for shard in world.shards.values():
        outcome = answer_of(shard, Finish(fence, Finished(clock, (), resume, orders), leave))
        assert not isinstance(outcome, ParameterServerError), outcome


def lived(death: int | None, life: Callable[[World], Script]) -> World:
    """Return the world after a whole life with a death ahead of that effect."""
    world = World(death)
    script = life(world)
    wanted = next(script)
    while True:
        try:
            wanted = script.send(world.ask(wanted))
        except StopIteration:
            break
    assert all(len(nonces) == 1 for nonces in world.given.values()), world.given
    told = [terms for terms in world.terms if terms]
    assert told in ([{1}], [{2}], [{1}, {2}]), "each life has a term of its own, but for one that stored nothing and told nothing"
    return world

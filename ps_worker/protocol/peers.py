"""Asking the coordinator and the servers as a worker knows them, and again under a newer map where a server is not the owner."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ps_proto.errors import NotOwner, ParameterServerError, Recovering, RolledBack, StaleIncarnation, StaleTimeline
from ps_proto.orders import InstallMap
from ps_proto.requests import Assign, Cluster, Finish, GetCluster, Pull, Push
from ps_worker.asking import Asker, Call, Exchange, Operation, Patience, Pause, Question, World
from ps_worker.protocol.view import View
from sharding.shard_map import ShardMap

COORDINATOR = "the coordinator"
WAIT_SLICE_S = 10.0  # a server parks a pull this long; then the worker says whom it waits for, and asks again
LOOK_TIMEOUT_S = 1.0  # for the coordinator's answer to what may have become of a server

_NONE: Mapping[str, Callable[[], Any]] = {}

T = TypeVar("T")


class Peers:
    """Those whom a worker asks; the servers are those of the view's map."""

    def __init__(self, coordinator: str, view: View, world: World, patience: Patience) -> None:
        self._coordinator = coordinator
        self._view = view
        # Another operation may learn meanwhile that it is in vain: a lease's does.
        self._asker = Asker(world, patience, view.check_not_over)
        self.wait_timeout_s = patience.wait_timeout_s
        self.wait_s = min(WAIT_SLICE_S, patience.wait_timeout_s)  # how long one request may be parked

    def now_s(self) -> float:
        return self._asker.world.now_s()

    def has_waited_enough(self, started_s: float) -> bool:
        """Return whether as long has passed since `started_s` as this worker would wait for other ranks."""
        return self.now_s() - started_s >= self.wait_timeout_s

    def ask_coordinator(self, body: Any) -> Operation[Any]:
        """Ask the coordinator; return its reply."""
        return (yield from self._ask({COORDINATOR: Question(self._coordinator, body)}))[COORDINATOR]

    def ask(
        self, bodies: Mapping[str, Any], on_refused: Callable[[], None] | None = None, in_full: Mapping[str, Callable[[], Any]] = _NONE
    ) -> Operation[dict[str, Any]]:
        """Ask some servers one request each; return the replies by server.

        `on_refused` is `Asker.ask`'s, `in_full` a `Question`'s, by server.
        """
        hand_on = InstallMap(self._view.map)
        addresses = {server.name: server.address for server in self._view.map.servers}
        questions = {peer: Question(addresses[peer], body, self._nbytes(body), hand_on, in_full.get(peer)) for peer, body in bodies.items()}
        return self._ask(questions, on_refused, look=self.find_rollback)

    def _ask(
        self,
        questions: Mapping[str, Question],
        on_refused: Callable[[], None] | None = None,
        look: Callable[[], Operation[None]] | None = None,
    ) -> Operation[dict[str, Any]]:
        """Ask as `Asker.ask` does, unless this worker's part is over, and note where that turns out."""
        self._view.check_not_over()
        try:
            return (yield from self._asker.ask(questions, on_refused, look))
        except (RolledBack, StaleIncarnation) as error:
            self._view.over = replace(error)  # without the frames that it came through
            raise

    def ask_recovered_coordinator(self, body: Any) -> Operation[Any]:
        """Ask the coordinator, as patiently as one waits for other ranks while the cluster goes back to a checkpoint."""
        started_s = self.now_s()
        while True:
            try:
                return (yield from self.ask_coordinator(body))
            except Recovering as error:
                if self.has_waited_enough(started_s):
                    raise
                self._asker.world.on_wait(error)

    def try_coordinator(self, body: Any, timeout_s: float) -> Operation[Any]:
        """Ask the coordinator once, for `timeout_s`; return its reply or raise the error that stands for its lack."""
        self._view.check_not_over()
        (outcome,) = yield Exchange((Call(COORDINATOR, self._coordinator, body, timeout_s),))
        if isinstance(outcome, ParameterServerError):
            self._note_over([outcome])
            raise outcome
        return outcome

    def find_rollback(self) -> Operation[None]:
        """Look once whether the cluster went back to a checkpoint: raise what then holds for this worker, RolledBack or StaleTimeline.

        Nothing where it did not, where no server has heard of it yet, and where the coordinator is away. The servers are asked
        where they are now, since the one that was started again has another address.
        """
        look = Call(COORDINATOR, self._coordinator, GetCluster(), LOOK_TIMEOUT_S)
        (cluster,) = yield Exchange((look,))
        if not isinstance(cluster, Cluster) or cluster.shard_map is None or cluster.timeline <= self._view.timeline:
            return
        if self._view.is_observer:
            raise StaleTimeline(cluster.timeline, self._view.timeline)
        says_nothing = Finish(self._view.fence())  # to which servers that went back answer with the clock to which they did
        servers = {server.name: Question(server.address, says_nothing) for server in cluster.shard_map.servers}
        outcomes = yield from self._asker.ask_once(servers)
        self._note_over([outcome for outcome in outcomes.values() if isinstance(outcome, ParameterServerError)])

    def _note_over(self, errors: Sequence[ParameterServerError]) -> None:
        """Raise the one that ends this worker's part, if there is one, and note it."""
        for error in errors:
            if isinstance(error, RolledBack | StaleIncarnation):
                self._view.over = replace(error)  # without the frames that it came through
                raise error

    def ask_all(self, body: Any) -> Operation[dict[str, Any]]:
        """Ask every server of the map the same."""
        return self.ask(dict.fromkeys(self.servers(), body))

    def servers(self) -> list[str]:
        """Return the names of the map's servers, in its order."""
        return [server.name for server in self._view.map.servers]

    def _nbytes(self, body: Any) -> int:
        if isinstance(body, Push | Assign):
            return sum([part.ids.nbytes + part.rows.nbytes for part in body.tables])
        if isinstance(body, Pull):
            return sum([part.ids.size * (8 + 4 * self._view.tables[part.table].dim) for part in body.tables])
        return 0

    def under_newest_map(self, ask: Callable[[], Operation[T]]) -> Operation[T]:
        """Run `ask()`, and run it again under a newer map for as long as a server says NotOwner.

        An observer's, also where the cluster has gone back to a checkpoint; a rank's rows are gone with that.
        """
        while True:
            shard_map = self._view.map
            try:
                return (yield from ask())
            except NotOwner:
                yield from self._learn_newer_map(shard_map)
            except StaleTimeline as error:
                if not self._view.is_observer:
                    raise
                yield from self._learn_newer_timeline(error)

    def _learn_newer_map(self, after: ShardMap) -> Operation[None]:
        """Fetch a map newer than `after`, of which some server knows, unless another operation has."""
        if self._view.map.version > after.version:
            return

        def learn(cluster: Cluster) -> NotOwner | None:
            self._view.take_map(cluster.shard_map)
            return None if self._view.map.version > after.version else NotOwner(COORDINATOR, self._view.map.version)

        yield from self._learn(learn)

    def _learn_newer_timeline(self, stale: StaleTimeline) -> Operation[None]:
        """Follow the cluster to a timeline that some server is on."""

        def learn(cluster: Cluster) -> StaleTimeline | None:
            self._view.take_timeline(cluster)
            return None if self._view.timeline > stale.got else stale

        yield from self._learn(learn)

    def _learn(self, learn: Callable[[Cluster], ParameterServerError | None]) -> Operation[None]:
        """Look at the cluster until `learn` has found there what it wants; raise what it returns where that takes too long."""
        started_s, attempt = self.now_s(), 0
        while (missing := learn((yield from self.ask_coordinator(GetCluster())))) is not None:
            if self.now_s() - started_s >= self._asker.patience.retry_timeout_s:
                raise missing
            yield Pause(self._asker.patience.backoff.pause_s(attempt, self._asker.world.uniform))
            attempt += 1

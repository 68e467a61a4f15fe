"""Talk with one shard: ask, look at what it answers, let time pass. No socket, no sleep.

talk = Conversation(Sync(), world_size=2)            # a table "user" of dim 1, rows 0 at first, SGD with lr 1: a row is minus its gradients
talk.push(0, 0, {7: 6.0})                            # rank 0, step 0
question = talk.pull(0, 1, 7, finished=Finished(0))  # waits
talk.finish(1, 0)
assert question.rows == [-3.0]
"""

from dataclasses import dataclass

import numpy as np

from ps_proto.errors import ParameterServerError
from ps_proto.orders import InstallMap, InstallTable, ResolveRank, StartJob
from ps_proto.requests import (
    OBSERVER,
    Assign,
    Done,
    Fence,
    Finish,
    Finished,
    GetStats,
    Hyperparameters,
    Pull,
    Pulled,
    Push,
    Stats,
    TableIds,
    TableRows,
)
from ps_proto.values import SGD, Mode, TableSpec
from ps_server.events import Answered, Asked, Body, Dropped, Event, Persist, Refuse, Reply, Tell, Ticked, Work, Worked
from ps_server.shard.shard import Shard
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap

USER = TableSpec("user", 1, SGD(lr=1.0))
ITEM = TableSpec("item", 1, SGD(lr=1.0))
WAIT_S = 10.0


def map_of(version: int, *names: str, all_to: str | None = None) -> ShardMap:
    """Return a map that deals the buckets out in turn, or gives `all_to` one server."""
    servers = tuple(Server(name, name) for name in names)
    owners = np.arange(NUM_BUCKETS, dtype=np.int32) % len(names) if all_to is None else np.full(NUM_BUCKETS, names.index(all_to), np.int32)
    return ShardMap(version, servers, owners)


def ids(table: str, *wanted: int) -> TableIds:
    return TableIds(table, np.array(wanted, np.uint64))


def rows(table: str, values: dict[int, float]) -> TableRows:
    """Return a row of dim 1 for each id."""
    return TableRows(table, np.array(list(values), np.uint64), np.array(list(values.values()), np.float32).reshape(-1, 1))


def settled(rank: int, incarnation: int, finished: int) -> ResolveRank:
    """Return the order that lets a rank's incarnation begin after the step that it finished; NEVER: with its first."""
    return ResolveRank(1, rank, incarnation, Finished(finished) if finished >= 0 else None, finished + 1)


def wants(table: str, lr: float) -> Hyperparameters:
    """Return what a rank says that wants SGD with this learning rate."""
    return Hyperparameters(table, SGD(lr=lr).parameters())


@dataclass
class Question:
    """A request and, once there is one, its answer."""

    request: int
    outcome: Body | ParameterServerError | None = None

    @property
    def is_waiting(self) -> bool:
        return self.outcome is None

    @property
    def answer(self) -> Body:
        """The reply; a refusal is raised."""
        if isinstance(self.outcome, ParameterServerError):
            raise self.outcome
        assert self.outcome is not None, "still waiting"
        return self.outcome

    @property
    def rows(self) -> list[float]:
        """The rows of a pull's tables of dim 1, one table after another."""
        assert isinstance(self.answer, Pulled)
        return [value for table in self.answer.rows for value in table[:, 0].tolist()]


class Conversation:
    """One shard that owns everything under map 1, with a job that has begun unless `mode` is None.

    `awaits_registration`: as in Shard; then it has none of these.
    """

    def __init__(
        self,
        mode: Mode | None,
        world_size: int = 2,
        tables: tuple[TableSpec, ...] = (USER,),
        first_clock: int = 0,
        rows_max: int | None = None,
        server: str = "server-0",
        shard_map: ShardMap | None = None,
        awaits_registration: bool = False,
    ) -> None:
        self.shard = Shard(server, rows_max, awaits_registration=awaits_registration)
        self.now_s = 0.0
        self.told: list[Tell] = []  # orders to other servers that nobody has answered
        self.at_work: list[Work] = []  # tasks that have not ended
        self._questions: dict[int, Question] = {}
        self._map_version = 1 if shard_map is None else shard_map.version
        self.timeline = 0  # of which workers speak
        if awaits_registration:
            return
        self.get(InstallMap(shard_map or map_of(1, server)))
        for spec in tables:
            self.get(InstallTable(1, spec))
        if mode is not None:
            self.get(StartJob(1, 1, world_size, mode, first_clock))

    def ask(self, body: Body) -> Question:
        """Ask; the question may be answered now or later."""
        question = Question(len(self._questions) + 1)
        self._questions[question.request] = question
        self._turn(Asked(question.request, body))
        return question

    def get(self, body: Body) -> Body:
        """Ask what must be answered at once; a refusal is raised."""
        return self.ask(body).answer

    def tick(self, after_s: float) -> None:
        """Let time pass, and tell the shard."""
        self.now_s += after_s
        self._turn(Ticked())

    def drop(self, question: Question) -> None:
        """Tell the shard that whoever asked has gone."""
        self._turn(Dropped(question.request))

    def answer(self, tell: Tell, outcome: Body | ParameterServerError) -> None:
        """Answer an order as the other server."""
        self.told.remove(tell)
        self._turn(Answered(tell.order, outcome))

    def end(self, work: Work, outcome: object) -> None:
        """Let a task of the shard end."""
        self.at_work.remove(work)
        self._turn(Worked(work.number, outcome))

    def _turn(self, event: Event) -> None:
        for effect in self.shard.handle(event, self.now_s):
            match effect:
                case Tell():
                    self.told.append(effect)
                case Work():
                    self.at_work.append(effect)
                case Reply(request, outcome) | Refuse(request, outcome):
                    question = self._questions[request]
                    assert question.is_waiting, f"request {request} is answered twice"
                    question.outcome = outcome
                case Persist():
                    raise AssertionError("a server stores nothing: its checkpoints are tasks")

    # --- what workers and observers say, in short ------------------------------------------------------------------------------

    def fence(self, rank: int = OBSERVER, clock: int = 0, incarnation: int = 0) -> Fence:
        return Fence(self._map_version, rank, incarnation, clock, self.timeline)

    def follow(self, shard_map: ShardMap, timeline: int) -> None:
        """Speak under this map and timeline from now on, as those do who join after a rollback."""
        self._map_version, self.timeline = shard_map.version, timeline

    def take_map(self, shard_map: ShardMap) -> None:
        """Give the shard a map, and speak under it from now on."""
        self.get(InstallMap(shard_map))
        self._map_version = shard_map.version

    def pull(
        self, rank: int, clock: int, *wanted: int, table: str = "user", finished: Finished | None = None, wait_s: float = WAIT_S
    ) -> Question:
        return self.ask(Pull(self.fence(rank, clock), (ids(table, *wanted),), finished, wait_s))

    def push(self, rank: int, clock: int, values: dict[int, float], seq: int = 1, table: str = "user") -> Body:
        return self.get(Push(self.fence(rank, clock), seq, (rows(table, values),)))

    def assign(self, rank: int, clock: int, values: dict[int, float], seq: int = 1, table: str = "user", only_absent: bool = False) -> Body:
        return self.get(Assign(self.fence(rank, clock), seq, (rows(table, values),), only_absent))

    def finish(self, rank: int, clock: int, *hyperparameters: Hyperparameters, resume: bytes = b"", leave: bool = False) -> Body:
        """Say that a step is finished."""
        return self.get(Finish(self.fence(rank, clock + 1), Finished(clock, hyperparameters, resume), leave))

    def read(self, *wanted: int, table: str = "user") -> list[float]:
        """Return rows as an observer sees them now."""
        return self.pull(OBSERVER, 0, *wanted, table=table).rows

    def step(self) -> int:
        """Return the synchronous step that the shard is at."""
        assert self.shard.membership.shard_map is not None
        done = self.get(InstallMap(self.shard.membership.shard_map))  # it has that one, and says where it is
        assert isinstance(done, Done)
        return done.step

    def stats(self) -> Stats:
        stats = self.get(GetStats(self.fence()))
        assert isinstance(stats, Stats)
        return stats

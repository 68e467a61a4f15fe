"""Who is in the cluster and in the job: members, the shard map, the table registry, ranks, barriers. Never on the data path.

The coordinator answers a request only once every server it concerns has acknowledged its orders, so a client that got its answer finds
every server ready. Orders are idempotent; one that fails is given again until the request's `wait_s` is over, and the refusal then names
the server.
Each request that needs servers is a *plan*: a generator that yields a round of orders and goes on with all their answers. Plans
run one after another, so that two ranks that join at once see each other's result; a request that is asked again while its plan
waits or runs joins that plan, so that retries never pile up.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from typing import Any

from ps_proto.errors import (
    BarrierTimeout,
    InvalidRequest,
    JobMismatch,
    ParameterServerError,
    Recovering,
    StaleIncarnation,
    TableMismatch,
    Unreachable,
)
from ps_proto.requests import (
    Barrier,
    BarrierPassed,
    Cluster,
    CreateTable,
    Done,
    Fence,
    FenceRank,
    GetCluster,
    GetStats,
    InstallMap,
    InstallTable,
    JobJoined,
    JoinJob,
    LeaveJob,
    RankFenced,
    RegisterServer,
    ResolveRank,
    ServerRegistered,
    StartJob,
    TableCreated,
)
from ps_proto.values import Mode, TableSpec
from ps_server.events import Answered, Asked, Body, Dropped, Effect, Event, Refuse, Reply, Tell, Ticked
from sharding.rebalance import plan
from sharding.shard_map import Server, ShardMap

ORDER_AGAIN_S = 0.25  # an order is small and its server near: this is a pause, not a deadline
ORDERS_S_MIN = 1.0  # a request may take this long whatever its wait_s: servers that are well need a moment, too
WORLD_SIZE_MAX = 1 << 20

Plan = Generator[Body, list[Any], Body]


@dataclass
class Job:
    """One run of `world_size` workers, from the first to join until the last has left."""

    number: int
    world_size: int
    mode: Mode
    first_clock: int = 0
    ranks: dict[int, int] = field(default_factory=dict)  # rank -> incarnation, of those that joined and have not left
    left: set[int] = field(default_factory=set)
    barrier: int = 0  # the generation that ranks wait for next
    at_barrier: dict[int, int] = field(default_factory=dict)  # rank -> the value it brought
    minimum: int = 0  # of the barrier before: one of its ranks may ask again

    @property
    def is_over(self) -> bool:
        return len(self.left) == self.world_size


@dataclass(frozen=True, slots=True)
class _Asking:
    """One who waits for a plan."""

    since_s: float
    until_s: float


@dataclass
class _Work:
    """A plan, who asked for it, and the round of orders that it waits for."""

    key: Hashable  # the same for a request that is asked again
    plan: Plan
    requests: dict[int, _Asking] = field(default_factory=dict)
    until_s: float = math.inf  # when it is given up at the latest; never where nobody asked
    order: Body | None = None
    answers: dict[str, Body | None] = field(default_factory=dict)  # server -> its answer, None until it came
    causes: dict[str, str] = field(default_factory=dict)  # server -> why it has not followed the order yet, where that is known

    @property
    def is_for_all(self) -> bool:
        return self.until_s == math.inf


@dataclass
class _Waiting:
    """A request that waits for a state of the cluster, not for an order."""

    attempt: Callable[[], Body | None]
    give_up: Callable[[float], ParameterServerError]
    since_s: float
    deadline_s: float


@dataclass
class _Contender:
    """A server that asks for the name that `rival` has; it replaces that one if it is gone."""

    body: RegisterServer
    server: Server
    rival: Server
    requests: list[int]
    question: int | None = None  # the number under which the rival was asked whether it lives


class CoordinatorCore:
    """The coordinator's state machine; see the module's text for how requests become orders."""

    def __init__(self, servers_expected: int, term: int = 1) -> None:
        self.servers_expected = servers_expected
        self.term = term
        self.servers: dict[str, Server] = {}
        self._processes: dict[str, int] = {}  # server -> the nonce of its process
        self._contenders: list[_Contender] = []
        self._last_map: ShardMap | None = None  # some server may hold it, although not all do
        self.shard_map: ShardMap | None = None  # set once every server holds it
        self.tables: dict[str, TableSpec] = {}
        self.job: Job | None = None
        self._last_job = 0
        self._incarnations: dict[int, int] = {}
        self._joined: dict[int, JobJoined] = {}  # rank -> the answer that it got last: a repeated message gets it again
        self._nonces: dict[int, dict[int, int]] = {}  # rank -> nonce -> the incarnation it became; two numbers a join, so all are kept
        self._installed: set[str] = set()  # tables that every server has acknowledged
        self._queue: deque[_Work] = deque()
        self._running: _Work | None = None
        self._orders: dict[int, tuple[Body, str]] = {}  # order number -> what was ordered, of which server
        self._next_order = 1
        self._again_s: dict[str, float] = {}  # server -> when its order is given again
        self._waiting: dict[int, _Waiting] = {}
        self._turns: dict[type[Any], Callable[[int, Any, float], Body | None]] = {
            RegisterServer: self._register_server,
            CreateTable: self._create_table,
            JoinJob: self._join_job,
            LeaveJob: self._leave_job,
            GetCluster: self._get_cluster,
            Barrier: self._barrier,
        }

    # --- turns -----------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one turn; return what to send."""
        effects: list[Effect] = []
        match event:
            case Asked(request, body):
                try:
                    reply = self._turns[type(body)](request, body, now_s)
                except ParameterServerError as error:
                    effects.append(Refuse(request, error))
                else:
                    if reply is not None:
                        effects.append(Reply(request, reply))
            case Answered(order, outcome):
                self._on_answer(order, outcome, now_s, effects)
            case Dropped(request):
                self._forget(request)
            case Ticked():
                pass
        self._question_rivals(effects)
        self._advance(effects)
        self._expire(now_s, effects)
        self._give_orders_again(now_s, effects)
        self._advance(effects)
        self._wake(now_s, effects)
        return effects

    def _forget(self, request: int) -> None:
        self._waiting.pop(request, None)
        for contender in self._contenders:
            if request in contender.requests:
                contender.requests.remove(request)
        for work in self._works():
            work.requests.pop(request, None)  # the plan goes on all the same: others may count on what it did

    def _works(self) -> list[_Work]:
        return [*([self._running] if self._running is not None else []), *self._queue]

    def deadline_s(self) -> float | None:
        """Return when a Ticked is due: a request that gives up, or an order to be given again."""
        due = [waiting.deadline_s for waiting in self._waiting.values()] + list(self._again_s.values())
        for work in self._works():
            due += [asking.until_s for asking in work.requests.values()]
            if not work.is_for_all:
                due.append(work.until_s)
        return min(due, default=None)

    # --- plans and their orders --------------------------------------------------------------------------------------------

    def _enqueue(self, key: Hashable, request: int, wait_s: float, now_s: float, make_plan: Callable[[], Plan]) -> None:
        """Queue a plan for a request, or let the request share the one of the same key that is queued or at work."""
        asking = _Asking(now_s, now_s + max(wait_s, ORDERS_S_MIN))
        for work in self._works():
            if work.key == key:
                work.requests[request] = asking
                work.until_s = max(work.until_s, asking.until_s)
                return
        self._queue.append(_Work(key, make_plan(), {request: asking}, asking.until_s))

    def _expire(self, now_s: float, effects: list[Effect]) -> None:
        """Refuse the requests whose time is up, and give up plans that nobody waits for any more."""
        for work in reversed(self._works()):  # the one at work last: all of them wait for its servers
            late = {request: asking for request, asking in work.requests.items() if asking.until_s <= now_s}
            effects += [Refuse(request, self._silent_server(now_s - asking.since_s)) for request, asking in late.items()]
            work.requests = {request: asking for request, asking in work.requests.items() if request not in late}
            if not work.requests and work.until_s <= now_s:
                if work is self._running:
                    self._give_up()
                else:
                    self._queue.remove(work)

    def _silent_server(self, after_s: float) -> ParameterServerError:
        """Return the error that names the server that all plans wait for."""
        assert self._running is not None, "whoever waits for a plan waits for the one that runs"
        server = next(server for server, answer in self._running.answers.items() if answer is None)
        return Unreachable(server, self.servers[server].address, after_s, self._running.causes.get(server, "no answer to the coordinator"))

    def _give_up(self) -> None:
        assert self._running is not None
        self._running.plan.close()
        self._running = None
        self._again_s.clear()

    def _advance(self, effects: list[Effect]) -> None:
        """Start the next plan where none runs, and go on with one whose round is answered."""
        while True:
            if self._running is None:
                if not self._queue:
                    return
                self._running = self._queue.popleft()
            elif any(answer is None for answer in self._running.answers.values()):
                return
            work = self._running
            try:
                work.order = next(work.plan) if work.order is None else work.plan.send(list(work.answers.values()))
            except StopIteration as stop:
                effects += [Reply(request, stop.value) for request in work.requests]
                self._running = None
            except ParameterServerError as error:
                effects += [Refuse(request, error) for request in work.requests]
                self._running = None
            else:
                work.answers, work.causes = dict.fromkeys(sorted(self.servers)), {}
                for server in work.answers:
                    self._tell(server, effects)

    def _tell(self, server: str, effects: list[Effect]) -> None:
        assert self._running is not None
        number = self._number()
        self._orders[number] = (self._running.order, server)
        effects.append(Tell(number, server, self.servers[server].address, self._running.order))

    def _number(self) -> int:
        number, self._next_order = self._next_order, self._next_order + 1
        return number

    def _on_answer(self, number: int, outcome: Body | ParameterServerError, now_s: float, effects: list[Effect]) -> None:
        contender = next((contender for contender in self._contenders if contender.question == number), None)
        if contender is not None:
            self._on_rival(contender, outcome, now_s, effects)
            return
        order, server = self._orders.pop(number)
        work = self._running
        if work is None or order is not work.order or work.answers[server] is not None:
            return  # of a plan that was given up
        if not isinstance(outcome, ParameterServerError):
            work.answers[server] = outcome
        elif work.is_for_all or isinstance(outcome, Unreachable | Recovering):
            work.causes[server] = outcome.cause if isinstance(outcome, Unreachable) else str(outcome)
            self._again_s[server] = now_s + ORDER_AGAIN_S
        else:
            effects += [Refuse(request, outcome) for request in work.requests]
            self._give_up()

    def _give_orders_again(self, now_s: float, effects: list[Effect]) -> None:
        for server in [server for server, due_s in self._again_s.items() if due_s <= now_s]:
            del self._again_s[server]
            self._tell(server, effects)

    def _wake(self, now_s: float, effects: list[Effect]) -> None:
        for request, waiting in list(self._waiting.items()):
            try:
                reply = waiting.attempt()
                if reply is None and now_s >= waiting.deadline_s:
                    raise waiting.give_up(now_s - waiting.since_s)
            except ParameterServerError as error:
                effects.append(Refuse(request, error))
            else:
                if reply is None:
                    continue
                effects.append(Reply(request, reply))
            del self._waiting[request]

    # --- servers and the map -----------------------------------------------------------------------------------------------

    def _register_server(self, request: int, body: RegisterServer, now_s: float) -> Body | None:
        known = self.servers.get(body.server)
        if known is not None and (known.address, self._processes[known.name]) == (body.address, body.nonce):
            return ServerRegistered(body.server, known.incarnation)
        if known is not None and self.shard_map is not None:
            want = "a name that is not in use: the rows of a server that ended are gone, and this cluster must be started anew"
            raise InvalidRequest("server name", f"{body.server!r}, which the shard map has at {known.address}", want)
        if known is None and len(self.servers) == self.servers_expected:
            want = f"one of the {self.servers_expected} servers that this cluster was started for: {', '.join(sorted(self.servers))}"
            raise InvalidRequest("server name", repr(body.server), want)
        try:
            server = Server(body.server, body.address, known.incarnation + 1 if known is not None else 1, body.weight)
        except ValueError as error:
            raise InvalidRequest(
                "server", f"{body.server!r} with weight {body.weight}", f"named, with a weight above 0 ({error})"
            ) from None
        if known is not None and known.address != server.address:
            self._contend(request, body, server, known)
            return None
        return self._admit(server, body.nonce)

    def _admit(self, server: Server, nonce: int) -> ServerRegistered:
        self.servers[server.name], self._processes[server.name] = server, nonce
        if self._map_is_planned():
            if self._running is not None:
                self._give_up()  # the map with the server that this one replaces: nothing else runs before there is a map
            self._queue.append(_Work("map", self._publish_map()))
        return ServerRegistered(server.name, server.incarnation)

    def _contend(self, request: int, body: RegisterServer, server: Server, rival: Server) -> None:
        """Let the rival be asked whether it lives: one that crashed before there was a map has lost nothing, and is replaced."""
        for contender in self._contenders:
            if (contender.body, contender.rival) == (body, rival):
                contender.requests.append(request)
                return
        self._contenders.append(_Contender(body, server, rival, [request]))

    def _question_rivals(self, effects: list[Effect]) -> None:
        for contender in self._contenders:
            if contender.question is None:
                contender.question = self._number()
                effects.append(Tell(contender.question, contender.rival.name, contender.rival.address, GetStats(Fence(0))))

    def _on_rival(self, contender: _Contender, outcome: Body | ParameterServerError, now_s: float, effects: list[Effect]) -> None:
        """Admit the contender where the rival is gone, also if nobody waits any more: it asks again, and must not find all as it was."""
        self._contenders.remove(contender)
        rival = contender.rival
        is_open = self.shard_map is None and self.servers[rival.name] == rival
        if is_open and isinstance(outcome, Unreachable):
            self._admit(contender.server, contender.body.nonce)
        for request in contender.requests:
            try:
                if is_open and not isinstance(outcome, Unreachable):
                    have = f"{rival.name!r}, which the server at {rival.address} has"
                    raise InvalidRequest("server name", have, "a name of its own: give this server another --name, or stop the other one")
                reply = self._register_server(request, contender.body, now_s)
            except ParameterServerError as error:
                effects.append(Refuse(request, error))
            else:
                if reply is not None:
                    effects.append(Reply(request, reply))

    def _map_is_planned(self) -> bool:
        return len(self.servers) == self.servers_expected

    def _publish_map(self) -> Plan:
        self._last_map = first = plan(self._last_map, [self.servers[name] for name in sorted(self.servers)])
        yield InstallMap(first)
        self.shard_map = first
        return Done()

    def _get_cluster(self, request: int, body: GetCluster, now_s: float) -> Body | None:
        if self.shard_map is not None or body.wait_s <= 0:
            return self._cluster()

        def attempt() -> Body | None:
            return self._cluster() if self.shard_map is not None else None

        self._wait(request, body.wait_s, now_s, attempt, lambda _: self._servers_missing())
        return None

    def _cluster(self) -> Cluster:
        running = self.job if self.job is not None and not self.job.is_over else None
        return Cluster(
            self.servers_expected,
            self.shard_map,
            self._tables_ready(),
            world_size=running.world_size if running else 0,
            mode=running.mode if running else None,
            ranks=dict(running.ranks) if running else {},
            servers={name: server.address for name, server in sorted(self.servers.items())},
        )

    def _servers_missing(self) -> ParameterServerError:
        if self._map_is_planned():
            return Recovering("The coordinator", "not every server has taken the shard map yet")
        return Recovering("The coordinator", f"{len(self.servers)} of {self.servers_expected} servers have registered")

    def _wait(
        self,
        request: int,
        wait_s: float,
        now_s: float,
        attempt: Callable[[], Body | None],
        give_up: Callable[[float], ParameterServerError],
    ) -> None:
        self._waiting[request] = _Waiting(attempt, give_up, now_s, now_s + wait_s)

    # --- tables ------------------------------------------------------------------------------------------------------------

    def _create_table(self, request: int, body: CreateTable, now_s: float) -> Body | None:
        if self.shard_map is None:
            raise self._servers_missing()
        self._enqueue(body.spec, request, body.wait_s, now_s, lambda: self._create(body.spec))
        return None

    def _create(self, spec: TableSpec) -> Plan:
        have = self.tables.get(spec.name)
        if have is None:
            have = self.tables[spec.name] = spec  # stored before told (R13)
        field_name = have.difference(spec)
        if field_name is not None:
            raise TableMismatch(spec.name, field_name, _shown(have, field_name), _shown(spec, field_name))
        if spec.name not in self._installed:
            yield InstallTable(self.term, have)
            self._installed.add(spec.name)
        return TableCreated(have)

    def _tables_ready(self) -> tuple[TableSpec, ...]:
        """Return the tables that every server has: one that is on its way would be unknown to some."""
        return tuple([self.tables[name] for name in sorted(self._installed)])

    # --- the job and its ranks -----------------------------------------------------------------------------------------------

    def _join_job(self, request: int, body: JoinJob, now_s: float) -> Body | None:
        if not 1 <= body.world_size <= WORLD_SIZE_MAX:
            raise InvalidRequest("world_size", str(body.world_size), f"from 1 to {WORLD_SIZE_MAX}")
        if not 0 <= body.rank < body.world_size:
            raise InvalidRequest("rank", str(body.rank), f"from 0 to {body.world_size - 1}, less than world_size")
        if self.shard_map is None:
            raise self._servers_missing()
        self._enqueue((body.rank, body.nonce), request, body.wait_s, now_s, lambda: self._join(body))
        return None

    def _join(self, body: JoinJob) -> Plan:
        """Give the rank to a new incarnation (R7): fence the old one, learn how far it came, settle that on every server."""
        became = self._nonces.get(body.rank, {}).get(body.nonce)
        if became is not None:
            if became < self._incarnations[body.rank]:
                raise StaleIncarnation(body.rank, self._incarnations[body.rank], became)
            return self._joined[body.rank]
        job = self._job_for(body)
        incarnation = self._incarnations[body.rank] = self._incarnations.get(body.rank, 0) + 1
        fenced: list[RankFenced] = yield FenceRank(self.term, body.rank, incarnation)
        if job is not self.job:
            start = job.first_clock = max(answer.clock_max for answer in fenced) + 1
            yield StartJob(self.term, job.number, job.world_size, job.mode, start)
            self.job = job
            yield ResolveRank(self.term, body.rank, incarnation, None, start)
        else:
            fact = max([answer.fact for answer in fenced if answer.fact is not None], key=lambda fact: fact.clock, default=None)
            known = [job.first_clock - 1, *(answer.applied for answer in fenced), *([fact.clock] if fact is not None else [])]
            start = max(known) + 1
            has_left = any([answer.has_left for answer in fenced])
            yield ResolveRank(self.term, body.rank, incarnation, fact, start, has_left)
            if has_left:  # it said so to some server; now all know, and the rank is for the next job
                self._take_leave(job, body.rank)
                return (yield from self._join(body))
        if body.rank in job.left:
            raise Recovering("The coordinator", f"rank {body.rank} was leaving the job while it was joined anew")
        job.ranks[body.rank] = incarnation
        job.at_barrier.pop(body.rank, None)  # the one that stood there was another incarnation
        assert self.shard_map is not None
        joined = JobJoined(incarnation, start, job.barrier, job.world_size, job.mode, 0, self.shard_map, self._tables_ready())
        self._joined[body.rank] = joined
        self._nonces.setdefault(body.rank, {})[body.nonce] = incarnation
        return joined

    def _job_for(self, body: JoinJob) -> Job:
        """Return the running job, checked against what the worker asks for, or a new one."""
        job = self.job
        if job is None or job.is_over:
            if body.mode is None:
                raise InvalidRequest("mode", "None", "given by the first worker of a job, such as mode=ps.Sync()")
            self._last_job += 1  # never the same twice: a start that was given up may have reached some server
            return Job(self._last_job, body.world_size, body.mode)
        if body.world_size != job.world_size:
            raise JobMismatch("world_size", str(job.world_size), str(body.world_size))
        if body.mode is not None and body.mode != job.mode:
            raise JobMismatch("mode", str(job.mode), str(body.mode))
        if body.rank in job.left:
            still = ", ".join(str(rank) for rank in sorted(set(range(job.world_size)) - job.left))
            raise JobMismatch("roster", f"{still}: rank {body.rank} has left it", f"rank {body.rank}")
        return job

    def _leave_job(self, request: int, body: LeaveJob, now_s: float) -> Body:
        if self.job is not None and self.job.ranks.get(body.rank) == body.incarnation:
            self._take_leave(self.job, body.rank)
        return Done()

    @staticmethod
    def _take_leave(job: Job, rank: int) -> None:
        job.ranks.pop(rank, None)
        job.left.add(rank)
        job.at_barrier.pop(rank, None)

    # --- barriers ------------------------------------------------------------------------------------------------------------

    def _barrier(self, request: int, body: Barrier, now_s: float) -> Body | None:
        job = self._job_of(body)
        if body.generation == job.barrier:
            job.at_barrier[body.rank] = body.value

        def attempt() -> Body | None:
            if body.generation == job.barrier and len(job.at_barrier) + len(job.left) == job.world_size:
                job.barrier, job.minimum, job.at_barrier = job.barrier + 1, min(job.at_barrier.values(), default=0), {}
            if body.generation < job.barrier:
                return BarrierPassed(job.minimum)
            self._job_of(body)
            return None

        def give_up(after_s: float) -> ParameterServerError:
            missing = sorted(set(range(job.world_size)) - job.at_barrier.keys() - job.left)
            return BarrierTimeout(body.generation, ", ".join(map(str, missing)), after_s)

        self._wait(request, body.wait_s, now_s, attempt, give_up)
        return None

    def _job_of(self, body: Barrier) -> Job:
        if self.job is not None and self.job.ranks.get(body.rank) == body.incarnation:
            return self.job
        have = self._incarnations.get(body.rank, 0)
        if body.incarnation < have:
            raise StaleIncarnation(body.rank, have, body.incarnation)
        want = "a rank that takes part in the running job: connect with rank= and world_size= first"
        raise InvalidRequest("rank", f"{body.rank}, which has not joined or has left", want)


def _shown(spec: TableSpec, field_name: str) -> str:
    return spec.optimizer.kind if field_name == "optimizer" else str(getattr(spec, field_name))

"""Who is in the cluster and in the job: members, the shard map, the table registry, ranks, barriers. Never on the data path.

The coordinator answers a request only once every server it concerns has acknowledged its orders, so a client that got its answer finds
every server ready. Requests that need servers become plans (plans.py), the others are answered at once or wait (waiting.py). Checkpoints
have a lane of plans of their own: workers join while one is taken.
"""

import itertools
from collections.abc import Callable
from typing import Any

from ps_proto.errors import InvalidRequest, ParameterServerError
from ps_proto.requests import Barrier, Cluster, CreateTable, GetCluster, JoinJob, LeaveJob, RegisterServer, RenewLease, TakeCheckpoint
from ps_proto.values import TableSpec
from ps_server.coordinator.admissions import Admissions
from ps_server.coordinator.barriers import Barriers
from ps_server.coordinator.checkpoints import Checkpoints
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.job import Job
from ps_server.coordinator.journal import Journal
from ps_server.coordinator.leases import Leases
from ps_server.coordinator.lineage import Lineage
from ps_server.coordinator.liveness import Liveness
from ps_server.coordinator.members import Members
from ps_server.coordinator.notices import Notices
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.orders import Orders
from ps_server.coordinator.plans import Plans
from ps_server.coordinator.ranks import Ranks
from ps_server.coordinator.rollbacks import Rollbacks
from ps_server.coordinator.stored import Stored
from ps_server.coordinator.tables import TableRegistry
from ps_server.coordinator.taking import Taking
from ps_server.coordinator.waiting import WaitingRoom
from ps_server.events import Answered, Asked, Body, Dropped, Effect, Event, Refuse, Reply, Ticked, Worked
from sharding.shard_map import Server, ShardMap

Turn = Callable[[int, Any, float], Body | None]


class CoordinatorCore:
    """The coordinator's state machine: the rooms that take the turns."""

    def __init__(self, settings: CoreSettings, stored: Stored | None = None) -> None:
        self._journal = Journal()
        self._numbering = Numbering(settings, stored.cluster if stored is not None else None, self._journal)
        self.servers: dict[str, Server] = {}
        numbers = itertools.count(1)
        self._plans = Plans(self.servers, numbers)
        self._checkpoint_plans = Plans(self.servers, numbers)
        self._lanes = (self._plans, self._checkpoint_plans)
        self._waiting = WaitingRoom()
        self.notices = Notices()
        orders = Orders(self._numbering)
        self.members = Members(settings.servers_expected, self.servers, stored, self._plans, self._numbering, self._journal)
        tables_stored = stored.tables if stored is not None else {}
        self._tables = TableRegistry(tables_stored, self.members, self._plans, self._numbering, orders, self._journal)
        leases = Leases(settings.lease_s)
        self.ranks = Ranks(stored, self.members, self._tables, self._plans, leases, self._numbering, orders, self._journal)
        self._admissions = Admissions(
            self.members, self.ranks, self._tables, self._plans, self._waiting, self._numbering, orders, self.notices
        )
        self.liveness = Liveness(leases, self.ranks, self._admissions, self._plans, self._numbering, orders, self.notices)
        self._has_begun = stored is None
        before, origin = (stored.rollback, stored.origin) if stored is not None else (None, None)
        lineage = Lineage(self._numbering.cluster, before.branches if before is not None else (), origin)
        self._taking = Taking(
            settings.schedule,
            self._numbering,
            self.members,
            self._tables,
            self.ranks,
            lineage,
            self._journal,
            self.notices,
            stored.checkpoint if stored is not None else None,
        )
        self._rollbacks = Rollbacks(
            settings.restore,
            settings.schedule.root,
            stored,
            self._numbering,
            self.members,
            self._tables,
            self.ranks,
            self._taking,
            lineage,
            self._plans,
            self._checkpoint_plans,
            self._journal,
            self.notices,
        )
        self._rollbacks.on_end = self.liveness.expect_all
        self._checkpoints = Checkpoints(
            settings.schedule,
            self.members,
            self.ranks,
            self._taking,
            self._rollbacks,
            self._checkpoint_plans,
            begins_with_trial=settings.tries_root and stored is None and settings.restore is None,
        )
        self._turns: dict[type[Any], Turn] = {
            RegisterServer: self.members.register,
            CreateTable: self._tables.create,
            JoinJob: self._admissions.join,
            LeaveJob: self.ranks.leave,
            RenewLease: self.liveness.renew,
            GetCluster: self._get_cluster,
            TakeCheckpoint: self._checkpoints.take,
            Barrier: Barriers(self.ranks, self._waiting).wait,
        }

    # --- turns -----------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one turn; return what to store, and then to send."""
        effects: list[Effect] = []
        self.liveness.look(now_s)
        if not self._has_begun:
            self._has_begun = True
            self.members.begin()
            self._rollbacks.begin()
            self.liveness.grant_all()
        match event:
            case Asked(request, body):
                try:
                    reply = self._turn_of(body)(request, body, now_s)
                except ParameterServerError as error:
                    effects.append(Refuse(request, error))
                else:
                    if reply is not None:
                        effects.append(Reply(request, reply))
            case Answered(order, outcome):
                if not self.members.take_answer(order, outcome, now_s, effects):
                    for plans in self._lanes:
                        plans.on_answer(order, outcome, now_s, effects)
            case Worked(number, outcome):
                for plans in self._lanes:
                    plans.on_worked(number, outcome, now_s, effects)
            case Dropped(request):
                for room in (self._waiting, self.members, *self._lanes):
                    room.forget(request)
            case Ticked():
                pass
        self.liveness.remove_lost()
        self._admissions.begin_due(now_s)
        self.members.question_contenders(effects)
        self._go_on(self._plans, now_s, effects)
        for _ in range(2):  # where one of the schedule ends, the next begins
            self._checkpoints.begin_due(now_s)
            self._go_on(self._checkpoint_plans, now_s, effects)
        self._waiting.wake(now_s, effects, everyone=not self._journal.is_empty)  # what a rank is, and in which job, is stored
        persist = self._journal.take()
        return [*([persist] if persist is not None else []), *effects, *self.notices.take()]

    def _go_on(self, plans: Plans, now_s: float, effects: list[Effect]) -> None:
        plans.advance(now_s, effects)
        plans.expire(now_s, effects)
        plans.give_orders_again(now_s, effects)
        plans.advance(now_s, effects)

    def _turn_of(self, body: Body) -> Turn:
        turn = self._turns.get(type(body))
        if turn is None:
            raise InvalidRequest("the request", f"{type(body).__name__}, which the coordinator does not serve", "one that it serves")
        return turn

    def deadline_s(self) -> float | None:
        """Return when a Ticked is due: a request that gives up, an order to be given again, or a checkpoint."""
        due_s = self._waiting.due_s() + self.ranks.leases.due_s() + self._admissions.due_s() + self._checkpoints.due_s()
        return min([*due_s, *[each_s for plans in self._lanes for each_s in plans.due_s()]], default=None)

    # --- looking ---------------------------------------------------------------------------------------------------------

    def _get_cluster(self, request: int, body: GetCluster, now_s: float) -> Body | None:
        if self.shard_map is not None or body.wait_s <= 0:
            return self._cluster()

        def attempt() -> Body | None:
            return self._cluster() if self.shard_map is not None else None

        self._waiting.add(request, body.wait_s, now_s, attempt, lambda _: self.members.missing())
        return None

    def _cluster(self) -> Cluster:
        running, job = self.ranks.running, self.ranks.job
        return Cluster(
            self.members.servers_expected,
            self.shard_map,
            self._tables.ready(),
            timeline=self._numbering.timeline,
            world_size=running.world_size if running else 0,
            mode=running.mode if running else None,
            ranks=dict(running.ranks) if running else {},
            servers={name: server.address for name, server in sorted(self.servers.items())},
            lost=tuple(sorted(self.ranks.leases.lost)),
            checkpoint=self._taking.last.number if self._taking.last is not None else 0,
            notice=self.notices.last,
            left=tuple(sorted((job.left - job.removed) | job.holders.ranks())) if job else (),
            end=self._checkpoints.end,
            job=job.number if job and not job.is_offered else 0,
            missed=tuple(sorted(job.removed)) if job and job.is_over else (),
        )

    @property
    def shard_map(self) -> ShardMap | None:
        """The map that every server holds; None until there is one."""
        return self.members.shard_map

    @property
    def tables(self) -> dict[str, TableSpec]:
        """Every table that was asked for and that no server refused, by name."""
        return self._tables.specs

    @property
    def job(self) -> Job | None:
        """The running job, or the last one."""
        return self.ranks.job

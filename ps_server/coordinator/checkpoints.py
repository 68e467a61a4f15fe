"""Checkpoints: who asks for one, and when one is due by itself. taking.py has the plan."""

import math
from collections.abc import Hashable
from typing import NamedTuple

from ps_proto.errors import CheckpointFailed, InvalidRequest, ParameterServerError
from ps_proto.requests import CheckpointTaken, TakeCheckpoint
from ps_server.coordinator.members import Members
from ps_server.coordinator.plans import Now, Plan, Plans
from ps_server.coordinator.ranks import Ranks
from ps_server.coordinator.rollbacks import Rollbacks
from ps_server.coordinator.schedule import Schedule
from ps_server.coordinator.taking import Taking, Wish

AGAIN_S = 10.0  # after one that failed, until the schedule's next


class _End(NamedTuple):
    """Names the plan of the checkpoint at a job's end; one of the same wish that began before the end is another."""

    job: int


class Checkpoints:
    """The turn of TakeCheckpoint, and the schedule; one is taken at a time, in `plans`, beside all else that the coordinator does."""

    def __init__(
        self,
        schedule: Schedule,
        members: Members,
        ranks: Ranks,
        taking: Taking,
        rollbacks: Rollbacks,
        plans: Plans,
        *,
        begins_with_trial: bool,
    ) -> None:
        """`begins_with_trial`: the schedule's root is tried once the servers share out the rows, and before there are any."""
        self._schedule = schedule
        self._members = members
        self._ranks = ranks
        self._taking = taking
        self._rollbacks = rollbacks
        self._plans = plans
        self._due_s = math.inf  # when the next is due by time, while a job runs
        self._not_before_s = -math.inf
        self._looked_s = -math.inf  # when it was last asked what is due
        self._ended_job = 0  # the job whose end has had its checkpoint, or has it now
        self._end: CheckpointTaken | None = None  # that checkpoint, once it is complete
        self._is_untried = begins_with_trial and bool(schedule.root)

    def take(self, request: int, body: TakeCheckpoint, now_s: float) -> None:
        """Plan to take a checkpoint; answered once it is complete."""
        root = body.path or self._schedule.root
        if not root:
            raise InvalidRequest("path", "missing", "a folder or a URL that all servers see: the coordinator was started without any")
        if "://" not in root and not root.startswith("/"):
            raise InvalidRequest("path", repr(root), "absolute, or a URL: the servers may run in other folders")
        self._members.check_map()
        self._rollbacks.check_over()
        self._make_way()
        wish = Wish(root, body.full, body.at_least, body.wait_s)
        # The same question after the servers have begun is for another one: who asks may have pushed since. Nobody has, behind a job's end.
        key: Hashable = (wish, self._taking.instants)
        if root == self._schedule.root and not body.full and self._plans.has(end := _End(self._ended_job)):
            key = end
        self._plans.add(key, request, math.inf, now_s, lambda: self._taking.plan(wish))

    @property
    def end(self) -> CheckpointTaken | None:
        """The checkpoint that has all of the job that ran last: nothing has changed since."""
        return self._end

    # --- by itself -------------------------------------------------------------------------------------------------------

    def begin_due(self, now_s: float) -> None:
        """Plan what the schedule wants now: while a job runs, and at its end, after which nothing changes."""
        self._looked_s = now_s
        schedule, job = self._schedule, self._ranks.job
        if job is None or not job.is_over or self._rollbacks.why:
            self._end = None  # also where it went back to that: another rollback may find it damaged
        if self._is_untried and self._members.shard_map is not None:
            self._is_untried = False
            self._plans.add_unasked("trial", self._taking.trial())
        if not schedule.root or job is None or self._members.shard_map is None or self._rollbacks.why:
            return
        if job.is_over:
            self._due_s = math.inf
            if self._ended_job != job.number and now_s >= self._not_before_s:
                self._ended_job = job.number
                self._begin(_End(job.number), Wish(schedule.root))
            return
        self._ended_job = 0  # also where it went back behind its end
        if schedule.every_s and self._due_s == math.inf:
            self._due_s = now_s + schedule.every_s
        if now_s >= self._due_s:
            self._due_s = now_s + schedule.every_s
            self._begin("after a time", Wish(schedule.root))
        elif schedule.every_steps and now_s >= self._not_before_s and not self._plans.is_busy:
            self._begin("at a step", Wish(schedule.root, every=schedule.every_steps))

    def due_s(self) -> list[float]:
        """Return the times at which the schedule wants a turn. One that has passed waits for something else, which is a turn itself."""
        return [due_s for due_s in (self._due_s, self._not_before_s) if self._looked_s < due_s < math.inf]

    def _begin(self, key: Hashable, wish: Wish) -> None:
        self._make_way()
        if not self._plans.has(key):
            self._plans.add_unasked(key, self._scheduled(key, wish))

    def _make_way(self) -> None:
        """Give up one that waits for a multiple of steps, and of which no server has taken anything; it is planned again."""
        if self._taking.is_armed:
            self._plans.give_up(CheckpointFailed(self._schedule.root, "the coordinator", "another one came first"))

    def _scheduled(self, key: Hashable, wish: Wish) -> Plan:
        try:
            taken = yield from self._taking.plan(wish)
        except ParameterServerError:
            self._not_before_s = (yield Now()) + AGAIN_S
            if key == _End(self._ended_job):
                self._ended_job = 0
            raise
        assert isinstance(taken, CheckpointTaken)
        if key == _End(self._ended_job):
            self._end = taken
        return taken

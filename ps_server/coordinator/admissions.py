"""Workers that join a running job: under a rank that has left, as the next rank, or anew under one that was removed (R6, R8)."""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from ps_proto.errors import InvalidRequest, ParameterServerError, Recovering, StaleIncarnation
from ps_proto.orders import RankFenced
from ps_proto.requests import NEVER, Done, JoinJob, StepOrder
from ps_server.coordinator.job import Job
from ps_server.coordinator.members import Members
from ps_server.coordinator.notices import Notices
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.orders import Orders
from ps_server.coordinator.plans import ORDERS_S_MIN, Now, Plan, Plans
from ps_server.coordinator.ranks import WORLD_SIZE_MAX, Ranks, last_fact
from ps_server.coordinator.tables import TableRegistry
from ps_server.coordinator.waiting import WaitingRoom
from ps_server.events import Body

ADMIT = "admit"
ANY_RANK = -1
LOOK_AGAIN_S = 0.25  # at servers that have not followed an order yet
FAILED_AGAIN_S = 1.0
NAME_CHARS_MAX = 255


class Admissions:
    """The turn of JoinJob: whoever joins a job that does not count on his rank is admitted first, the others go on to `ranks`.

    An admission is a numbered order, stored before it is given. Where steps are folded, it rides in what one rank says of a step (R8), to
    which RenewLease hands it, or with backup workers in what any rank says (R9); so all servers follow it after the same step, and they are
    asked until all have. Elsewhere it goes to every server by itself, with the first step. It is never taken back: a rank whose worker has
    died meanwhile is in the job all the same, and lost as any other. In which order ranks are admitted is the order of their numbers.
    """

    def __init__(
        self,
        members: Members,
        ranks: Ranks,
        tables: TableRegistry,
        plans: Plans,
        waiting: WaitingRoom,
        numbering: Numbering,
        orders: Orders,
        notices: Notices,
    ) -> None:
        self._members = members
        self._ranks = ranks
        self._tables = tables
        self._plans = plans
        self._waiting = waiting
        self._numbering = numbering
        self._orders = orders
        self._notices = notices
        self._asked: dict[int, bool] = {}  # rank under admission -> whether the worker that asks for it goes on where the rank was
        self._look_s = -math.inf  # when servers are asked next

    def join(self, request: int, body: JoinJob, now_s: float) -> None:
        """Let a worker join, at once or from the end of a step on."""
        job = self._ranks.running
        _check_name(body)
        self._ranks.check_goes_on(body)
        if body.rank == ANY_RANK:
            if job is None:
                raise InvalidRequest("rank", "-1, and no job runs", "a rank: the first workers of a job say who they are")
            rank = self._rank_of(job, body)
            if rank is None:
                self._admit(request, body, job, self._free_rank(job), now_s)
                return
            body = replace(body, rank=rank, world_size=job.world_size)
        is_others = job is not None and job.is_offered and not job.is_as(body)
        if job is not None and not is_others and body.rank in (job.left & job.removed) | _under_way(job):
            self._ranks.check_holder(job, body)
            self._admit(request, body, job, body.rank, now_s)
        else:
            self._ranks.join(request, body, now_s)

    def _rank_of(self, job: Job, body: JoinJob) -> int | None:
        """Return the rank that this very try was given before, or that its name holds; None where it is to get one."""
        rank = self._ranks.incarnations.rank_of(body.nonce)
        if rank is not None:
            return rank
        held = job.holders.ranks_of(body.name)
        return next((rank for rank in held if rank not in job.left - job.removed or rank in _under_way(job)), None)

    def _free_rank(self, job: Job) -> int:
        """Return the lowest rank that has left, but for those that were removed, whose workers may come back; else the next one."""
        under_way = _under_way(job)
        rank = min(job.left - job.removed - under_way, default=max([job.world_size - 1, *under_way]) + 1)
        if rank >= WORLD_SIZE_MAX:
            raise InvalidRequest("rank", "-1", f"given: the job has all of its {WORLD_SIZE_MAX} ranks")
        return rank

    def _admit(self, request: int, body: JoinJob, job: Job, rank: int, now_s: float) -> None:
        """Let the request wait until the rank is in the job, and see that it will be."""
        self._members.check_map()
        self._ranks.check_same(job, body)
        incarnations, timeline = self._ranks.incarnations, self._numbering.timeline
        became, newest = incarnations.became(rank, body.nonce), incarnations.newest(rank)
        if became is not None and became < newest:
            raise StaleIncarnation(rank, newest, became)
        incarnation = became or incarnations.begin(rank, body.nonce)
        if rank not in _under_way(job):
            if body.rank == ANY_RANK:
                job.holders.take(rank, body.name)
            job.orders.append(StepOrder(self._numbering.next_order(), ADMIT, rank, incarnation))
            self._ranks.keep_job()
            self._look_s = -math.inf
        self._asked[rank] = body.resume and rank in job.removed

        def attempt() -> Body | None:
            if timeline != self._numbering.timeline:
                raise Recovering("The coordinator", f"the cluster went back to a checkpoint while rank {rank} joined")
            newest = incarnations.newest(rank)
            if incarnation < newest:
                raise StaleIncarnation(rank, newest, incarnation)
            if job is not self._ranks.running:
                raise InvalidRequest("rank", f"{rank}, and its job is over", "of a job that runs")
            joined = self._ranks.joined.get(rank)
            return joined if joined is not None and joined.incarnation == incarnation else None

        def give_up(after_s: float) -> ParameterServerError:
            return Recovering("The coordinator", f"rank {rank} joins at the end of a step, and none has come for {after_s:.1f} s")

        self._waiting.add(request, max(body.wait_s, ORDERS_S_MIN), now_s, attempt, give_up)

    # --- orders under way ------------------------------------------------------------------------------------------------

    def riding(self, job: Job) -> tuple[StepOrder, ...]:
        """Return the orders for the next step that a rank finishes: all of them, so that none comes before an earlier one."""
        return tuple(job.orders) if self._tables.folds(job.mode) else ()

    def begin_due(self, now_s: float) -> None:
        """Plan to look after the first order, where it is time."""
        job = self._ranks.running
        if job is not None and job.orders and now_s >= self._look_s and not self._plans.has(ADMIT):
            self._plans.add_unasked(ADMIT, self._plan(job, job.orders[0].rank))

    def due_s(self) -> list[float]:
        """Return when that is."""
        job = self._ranks.running
        return [self._look_s] if job is not None and job.orders and not self._plans.has(ADMIT) else []

    def _plan(self, job: Job, rank: int) -> Plan:
        if rank not in _under_way(job):  # the cluster has gone back since: the order is no more
            return Done()
        try:
            is_admitted = yield from self._follow(job, rank)
        except ParameterServerError as error:
            self._notices.say(f"Rank {rank} cannot join the job yet: {error}")
            again_s = FAILED_AGAIN_S
        else:
            again_s = 0.0 if is_admitted else LOOK_AGAIN_S
        self._look_s = (yield Now()) + again_s
        return Done()

    def _follow(self, job: Job, rank: int) -> Generator[Any, Any, bool]:
        """Let every server have the rank in the roster from one step on; return whether all have."""
        incarnation = self._ranks.incarnations.newest(rank)
        fenced: list[RankFenced] = yield self._orders.fence_rank(rank, incarnation)
        since = {answer.since for answer in fenced}
        fact = last_fact(fenced)
        if self._tables.folds(job.mode):
            start = max(since)
            if since != {start} or start == NEVER:
                return False
            yield self._orders.resolve_rank(rank, incarnation, fact, start)
        else:
            # Some servers may have it already, from a coordinator that died: then the others take it from the same step.
            start = max(since) if max(since) != NEVER else _next_step(fenced)
            yield self._orders.admit_rank(rank, incarnation, start)
        if job is not self._ranks.running or incarnation != self._ranks.incarnations.newest(rank):
            return False
        job.admit(rank, start)
        self._ranks.keep_job()
        is_resumed = self._asked.get(rank, False) and fact is not None
        self._ranks.take_in(rank, incarnation, start, fact.resume if is_resumed and fact is not None else b"", is_resumed)
        if self._asked.pop(rank, None) is None:  # it asked a coordinator that has died: where it goes on is found once it asks again
            del self._ranks.joined[rank]
        self._notices.say(f"Rank {rank} joins the job: from step {start} on it has {len(job.still_in)} ranks.")
        return True


def _next_step(fenced: Sequence[RankFenced]) -> int:
    """Return a step that nobody has come to; one that does not follow on the last of who had the rank: each step tells whose it is."""
    return max([answer.clock_max + 1 for answer in fenced] + [answer.finished + 2 for answer in fenced if answer.has_left])


def _check_name(body: JoinJob) -> None:
    if (body.rank == ANY_RANK) != bool(body.name) or len(body.name) > NAME_CHARS_MAX:
        want = (
            f"of 1 to {NAME_CHARS_MAX} characters with rank -1, and empty with another: whoever joins a running job has a name of its own"
        )
        raise InvalidRequest("name", repr(body.name), want)


def _under_way(job: Job) -> set[int]:
    return {order.rank for order in job.orders}

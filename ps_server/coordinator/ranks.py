"""Who takes part in the job under which rank: joining, being replaced (R7), leaving."""

from ps_proto.errors import InvalidRequest, JobMismatch, Recovering, StaleIncarnation
from ps_proto.requests import Done, FenceRank, JobJoined, JoinJob, LeaveJob, RankFenced, ResolveRank, StartJob
from ps_proto.values import Sync
from ps_server.coordinator.job import Job
from ps_server.coordinator.members import Members
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.plans import Plan, Plans
from ps_server.coordinator.tables import TableRegistry

WORLD_SIZE_MAX = 1 << 20


class Ranks:
    """The running job, or the last one, and every incarnation of each rank."""

    def __init__(self, numbering: Numbering, members: Members, tables: TableRegistry, plans: Plans) -> None:
        self.job: Job | None = None
        self.joined: dict[int, JobJoined] = {}  # rank -> the answer that it got last: a repeated message gets it again
        self._incarnations: dict[int, int] = {}
        self._nonces: dict[int, dict[int, int]] = {}  # rank -> nonce -> the incarnation it became; two numbers a join, so all are kept
        self._numbering = numbering
        self._members = members
        self._tables = tables
        self._plans = plans

    @property
    def running(self) -> Job | None:
        """The job that runs; None where there was none, or all have left it."""
        return self.job if self.job is not None and not self.job.is_over else None

    def join(self, request: int, body: JoinJob, now_s: float) -> None:
        """Plan to give a rank to a worker."""
        if not 1 <= body.world_size <= WORLD_SIZE_MAX:
            raise InvalidRequest("world_size", str(body.world_size), f"from 1 to {WORLD_SIZE_MAX}")
        if not 0 <= body.rank < body.world_size:
            raise InvalidRequest("rank", str(body.rank), f"from 0 to {body.world_size - 1}, less than world_size")
        _check_backup_workers(body)
        _check_served(body)
        self._members.check_map()
        self._plans.add((body.rank, body.nonce), request, body.wait_s, now_s, lambda: self.plan_join(body))

    def plan_join(self, body: JoinJob) -> Plan:
        """Give the rank to a new incarnation (R7): fence the old one, learn how far it came, settle that on every server."""
        became = self._nonces.get(body.rank, {}).get(body.nonce)
        if became is not None:
            if became < self._incarnations[body.rank]:
                raise StaleIncarnation(body.rank, self._incarnations[body.rank], became)
            return self.joined[body.rank]
        job, term, cluster = self._job_for(body), self._numbering.term, self._numbering.cluster
        incarnation = self._incarnations[body.rank] = self._incarnations.get(body.rank, 0) + 1
        fenced: list[RankFenced] = yield FenceRank(term, body.rank, incarnation, cluster)
        if job is not self.job:
            start = job.first_clock = max(answer.clock_max for answer in fenced) + 1
            yield StartJob(term, job.number, job.world_size, job.mode, start, cluster)
            self.job, self._tables.job_mode = job, job.mode
            yield ResolveRank(term, body.rank, incarnation, None, start, cluster=cluster)
        else:
            fact = max([answer.fact for answer in fenced if answer.fact is not None], key=lambda fact: fact.clock, default=None)
            known = [job.first_clock - 1, *(answer.applied for answer in fenced), *([fact.clock] if fact is not None else [])]
            start = max(known) + 1
            has_left = any([answer.has_left for answer in fenced])
            yield ResolveRank(term, body.rank, incarnation, fact, start, has_left, cluster)
            if has_left:  # it said so to some server; now all know, and the rank is for the next job
                job.leave(body.rank)
                return (yield from self.plan_join(body))
        if body.rank in job.left:
            raise Recovering("The coordinator", f"rank {body.rank} was leaving the job while it was joined anew")
        job.take(body.rank, incarnation)
        shard_map = self._members.check_map()
        joined = JobJoined(
            incarnation,
            start,
            job.barrier,
            job.world_size,
            job.mode,
            self._numbering.timeline,
            shard_map,
            self._tables.ready(),
            rank=body.rank,
        )
        self.joined[body.rank] = joined
        self._nonces.setdefault(body.rank, {})[body.nonce] = incarnation
        return joined

    def _job_for(self, body: JoinJob) -> Job:
        """Return the running job, checked against what the worker asks for, or a new one."""
        job = self.running
        if job is None:
            if body.mode is None:
                raise InvalidRequest("mode", "None", "given by the first worker of a job, such as mode=ps.Sync()")
            self._tables.check_job(body.mode)
            # Its number is never the same twice: a start that was given up may have reached some server.
            return Job(self._numbering.next_job(), body.world_size, body.mode)
        if body.world_size != job.world_size:
            raise JobMismatch("world_size", str(job.world_size), str(body.world_size))
        if body.mode is not None and body.mode != job.mode:
            raise JobMismatch("mode", str(job.mode), str(body.mode))
        if body.rank in job.left:
            still = ", ".join(map(str, job.still_in))
            raise JobMismatch("roster", f"{still}: rank {body.rank} has left it", f"rank {body.rank}")
        return job

    def leave(self, request: int, body: LeaveJob, now_s: float) -> Done:
        """End the part of a rank that every server has let go; of one that was replaced, nothing."""
        if self.job is not None and self.job.ranks.get(body.rank) == body.incarnation:
            self.job.leave(body.rank)
        return Done()

    def job_of(self, rank: int, incarnation: int) -> Job:
        """Return the job that this incarnation takes part in; StaleIncarnation or InvalidRequest where it takes no part."""
        if self.job is not None and self.job.ranks.get(rank) == incarnation:
            return self.job
        have = self._incarnations.get(rank, 0)
        if incarnation < have:
            raise StaleIncarnation(rank, have, incarnation)
        want = "a rank that takes part in the running job: connect with rank= and world_size= first"
        raise InvalidRequest("rank", f"{rank}, which has not joined or has left", want)


def _check_served(body: JoinJob) -> None:
    if body.resume:
        raise InvalidRequest("resume", "True", "False: this version begins anew, above every step known of the rank")
    if body.on_lost_worker not in ("", "wait"):
        raise InvalidRequest("on_lost_worker", repr(body.on_lost_worker), "'wait': this version waits for a worker that is lost")


def _check_backup_workers(body: JoinJob) -> None:
    if isinstance(body.mode, Sync) and body.mode.backup_workers >= body.world_size:
        want = f"at most {body.world_size - 1}, so that of {body.world_size} ranks one at least makes up a step"
        raise InvalidRequest("backup_workers", str(body.mode.backup_workers), want)

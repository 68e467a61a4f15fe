"""Who takes part in the job under which rank: joining, being replaced, going on where the rank was (R7, R15), leaving."""

from collections.abc import Sequence

from ps_proto.errors import InvalidRequest, JobEnded, JobMismatch, Recovering, RolledBack, StaleIncarnation
from ps_proto.orders import JobState, RankFenced
from ps_proto.requests import NEVER, Done, Finished, JobJoined, JoinJob, LeaveJob
from ps_proto.values import Sync
from ps_server.coordinator.incarnations import Incarnations
from ps_server.coordinator.job import Job
from ps_server.coordinator.journal import Journal
from ps_server.coordinator.leases import Leases
from ps_server.coordinator.members import Members
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.orders import Orders
from ps_server.coordinator.plans import Plan, Plans
from ps_server.coordinator.stored import JOB, Stored
from ps_server.coordinator.tables import TableRegistry
from ps_server.tasks import BarrierRun, FoundCheckpoint

WORLD_SIZE_MAX = 1 << 20


class Ranks:
    """The running job, or the last one, and every incarnation of each rank."""

    def __init__(
        self,
        stored: Stored | None,
        members: Members,
        tables: TableRegistry,
        plans: Plans,
        leases: Leases,
        numbering: Numbering,
        orders: Orders,
        journal: Journal,
    ) -> None:
        self.job: Job | None = None
        self.joined: dict[int, JobJoined] = {}  # rank -> the answer that it got last: a repeated message gets it again
        self._rolled_back: dict[int, int] = {}  # rank that has yet to join after the last rollback -> its step there; NEVER: none
        self.incarnations = Incarnations(stored.ranks if stored is not None else {}, journal)
        self._members = members
        self._tables = tables
        self._plans = plans
        self.leases = leases
        self._numbering = numbering
        self._orders = orders
        self._journal = journal
        if stored is not None and stored.job is not None:
            self.job = Job.of(stored.job, self.incarnations.inside())
            tables.job_mode = self.job.mode

    @property
    def running(self) -> Job | None:
        """The job that runs; None where there was none, or all have left it."""
        return self.job if self.job is not None and not self.job.is_over else None

    def keep_job(self) -> None:
        """Store the job as it is now."""
        assert self.job is not None
        self._journal.put(JOB, self.job.stored())

    # --- joining ---------------------------------------------------------------------------------------------------------

    def join(self, request: int, body: JoinJob, now_s: float) -> None:
        """Plan to give a rank to a worker."""
        if not 1 <= body.world_size <= WORLD_SIZE_MAX:
            raise InvalidRequest("world_size", str(body.world_size), f"from 1 to {WORLD_SIZE_MAX}")
        if not 0 <= body.rank < body.world_size:
            raise InvalidRequest("rank", str(body.rank), f"from 0 to {body.world_size - 1}, less than world_size")
        _check_backup_workers(body)
        _check_on_lost_worker(body)
        self._members.check_map()
        self._plans.add((body.rank, body.nonce), request, body.wait_s, now_s, lambda: self.plan_join(body))

    def plan_join(self, body: JoinJob) -> Plan:
        """Give the rank to an incarnation (R7): a new one for a new try, for a repeated one the same."""
        became = self.incarnations.became(body.rank, body.nonce)
        if became is None:
            return (yield from self._join(body, None))
        newest = self.incarnations.newest(body.rank)
        if became < newest:
            raise StaleIncarnation(body.rank, newest, became)
        if self.incarnations.has_left(body.rank):
            raise InvalidRequest("nonce", f"of a try to join that became rank {body.rank}, which has left", "a new one: connect again")
        joined = self.joined.get(body.rank)
        if joined is not None and joined.incarnation == became:
            return joined
        return (yield from self._join(body, became))

    def _join(self, body: JoinJob, incarnation: int | None) -> Plan:
        """Fence older incarnations, learn how far the rank came, settle that on every server."""
        job = self._job_for(body)
        if incarnation is None or job is not self.job:  # of a job that is over, servers may have settled it, and refuse it now
            incarnation = self.incarnations.begin(body.rank, body.nonce)
        if job is self.job:
            self.leases.renew(body.rank)  # whoever takes the rank lives
        fenced: list[RankFenced] = yield self._orders.fence_rank(body.rank, incarnation)
        if job is not self.job:
            job.first_clock = max(answer.clock_max for answer in fenced) + 1
            yield self._orders.start_job(job)
            self.job, self._tables.job_mode = job, job.mode
            self.leases.clear()
            self.keep_job()
            start, resume = job.first_clock, None
            yield self._orders.resolve_rank(body.rank, incarnation, None, start)
        else:
            fact = last_fact(fenced)
            start = 1 + max(job.first_clock - 1, last_finished(fenced))
            has_left = any([answer.has_left for answer in fenced])
            if not (body.resume or has_left):  # a roster that it has left ends where it said, whatever was applied
                start = max([start, *(answer.applied + 1 for answer in fenced)])
            yield self._orders.resolve_rank(body.rank, incarnation, fact, start, has_left)
            if has_left:  # it said so to some server; now all know
                return (yield from self._after_leaving(job, body))
            # One that was admitted and finished nothing since goes on where it was before.
            since = max(answer.since for answer in fenced)
            if fact is not None and fact.clock < job.holders.since(body.rank):
                fact = None  # of the one who had the rank before
            resume = fact if body.resume and fact is not None and (fact.clock == start - 1 or since == start) else None
        if body.rank in job.left:
            raise Recovering("The coordinator", f"rank {body.rank} was leaving the job while it was joined anew")
        is_resumed = body.resume and start > max(job.first_clock, job.holders.since(body.rank))
        # One that goes on where it was, and had not come further than its first step, runs all of its script, with each barrier of it.
        barrier = 0 if body.resume and not is_resumed and not body.name else None
        return self.take_in(body.rank, incarnation, start, resume.resume if resume is not None else b"", is_resumed, barrier)

    def _after_leaving(self, job: Job, body: JoinJob) -> Plan:
        """End the part of a rank of which some server heard that it left; who asks for the rank now is for the next job.

        But a worker that goes on where the rank was, whose worker died as it left, has nothing to go on with: it would make the steps of
        its whole job once more. One that was removed, and did not leave by its own word, is admitted when it asks again.
        """
        has_nothing_to_do = body.resume and body.rank not in job.removed
        if has_nothing_to_do:
            self.incarnations.join(body.rank)  # and has left at once: so its message, repeated, begins nothing either
        self.end_part(body.rank)
        if has_nothing_to_do:
            still = ", ".join(map(str, job.still_in)) or "nobody"
            raise JobMismatch("roster", f"{still}: rank {body.rank} has left it", f"rank {body.rank}, to go on where it was")
        return (yield from self._join(body, None))

    def take_in(self, rank: int, incarnation: int, start: int, resume: bytes, is_resumed: bool, barrier: int | None = None) -> JobJoined:
        """Let an incarnation take part from step `start` on, for which every server is ready; return what its worker is told.

        `barrier`: its next one, None: that of the others.
        """
        job = self.job
        assert job is not None
        job.take(rank, incarnation)
        if rank in job.removed:  # its removal came to no server
            job.removed.remove(rank)
            self.keep_job()
        self.incarnations.join(rank)
        self._rolled_back.pop(rank, None)
        self.leases.renew(rank)
        self.joined[rank] = JobJoined(
            incarnation,
            start,
            job.barriers.next if barrier is None else barrier,
            job.world_size,
            job.mode,
            self._numbering.timeline,
            self._members.check_map(),
            self._tables.ready(),
            rank,
            resume,
            is_resumed,
            self.leases.lease_s,
        )
        return self.joined[rank]

    def _job_for(self, body: JoinJob) -> Job:
        """Return the running job, checked against what the worker asks for, or a new one."""
        self.check_goes_on(body)
        job = self.running
        if job is not None and job.is_offered and not job.is_as(body):
            job = None
        if job is None:
            if body.name:
                raise InvalidRequest("rank", f"{body.rank}, and its job is over", "of a job that runs")
            if body.mode is None:
                raise InvalidRequest("mode", "None", "given by the first worker of a job, such as mode=ps.Sync()")
            self._tables.check_job(body.mode)
            # Its number is never the same twice: a start that was given up may have reached some server.
            return Job(self._numbering.next_job(), body.world_size, body.mode, on_lost_worker=body.on_lost_worker or "wait")
        if not job.has_had(body.world_size):
            raise JobMismatch("world_size", str(job.world_size), str(body.world_size))
        self.check_same(job, body)
        self.check_holder(job, body)
        if body.rank in job.left & job.removed:  # since it asked: if it asks again, it is admitted
            raise Recovering("The coordinator", f"rank {body.rank} was being removed from the job while it was joined anew")
        if body.rank in job.left:
            still = ", ".join(map(str, job.still_in))
            raise JobMismatch("roster", f"{still}: rank {body.rank} has left it", f"rank {body.rank}")
        return job

    def check_goes_on(self, body: JoinJob) -> None:
        """Raise JobEnded where a worker is to go on in a job that is over: alone, it would begin another one."""
        job = self.job
        if body.job and job is not None and (body.job < job.number or (body.job == job.number and job.is_over)):
            raise JobEnded(body.job, body.rank)

    def check_holder(self, job: Job, body: JoinJob) -> None:
        """Raise where a worker wants a rank that is another's: JobMismatch, or Recovering where it was this one's when it asked."""
        holder = job.holders.name_of(body.rank)
        if body.name not in ("", holder):
            raise Recovering("The coordinator", f"rank {body.rank} was that of {body.name!r} until the cluster went back to a checkpoint")
        if not body.name and holder:
            still = ", ".join(map(str, job.still_in))
            raise JobMismatch("roster", f"{still}: rank {body.rank} is that of {holder!r}, which joined by name", f"rank {body.rank}")

    def check_same(self, job: Job, body: JoinJob) -> None:
        """Raise JobMismatch where a worker wants another mode than its job has, or another end for those that are lost.

        The first one of a job that was taken up again says what becomes of those.
        """
        if job.is_offered and body.on_lost_worker:
            job.on_lost_worker = body.on_lost_worker
            self.keep_job()
        if body.mode is not None and body.mode != job.mode:
            raise JobMismatch("mode", str(job.mode), str(body.mode))
        if body.on_lost_worker not in ("", job.on_lost_worker):
            raise JobMismatch("on_lost_worker", repr(job.on_lost_worker), repr(body.on_lost_worker))

    # --- going back ------------------------------------------------------------------------------------------------------

    def barriers_passed(self, job: JobState | None) -> tuple[BarrierRun, ...]:
        """Return the last barriers that a job has passed, if it is the one that runs."""
        if job is None or self.job is None or self.job.number != job.number:
            return ()
        return self.job.barriers.passed()

    def roll_back(self, found: FoundCheckpoint, is_new: bool) -> JobState | None:
        """Let the job go on as a checkpoint has it, or begin anew where that has none or another; return it as servers take it up.

        Every rank has to join again, also one that has left since. `is_new`: the cluster begins with the checkpoint, and takes its job up.
        """
        state = found.job
        job = self.job
        if state is not None and (job is None or is_new):
            self._numbering.pass_job(state.number)
            job = self.job = Job(state.number, state.world_size, state.mode, state.first_clock)
            self._tables.job_mode = state.mode
        elif job is None:
            return None
        if state is None or state.number != job.number:
            first = max([job.first_clock, *[rank.finished + 1 for rank in (state.ranks if state is not None else ())]])
            state = JobState(job.number, job.world_size_asked, job.mode, first, first, ())
            found = FoundCheckpoint(None, 0, (), state, ())
        for rank in job.go_back(found):
            self.incarnations.forget_tries(rank)
        self.leases.clear()  # nobody can join, and with that renew one, before all have gone back
        self.joined.clear()
        self.incarnations.clear()
        finished = {rank.rank: rank.finished for rank in state.ranks}
        self._rolled_back = dict.fromkeys(self.incarnations.known(), NEVER)  # of those that joined since
        self._rolled_back |= {rank: max(finished.get(rank, NEVER) + 1, state.first_clock) for rank in range(state.world_size)}
        self.keep_job()
        return state

    # --- leaving ---------------------------------------------------------------------------------------------------------

    def leave(self, request: int, body: LeaveJob, now_s: float) -> Done:
        """End the part of a rank that every server has let go; of one that was replaced, nothing."""
        if self.job is not None and self.job.ranks.get(body.rank) == body.incarnation:
            self.end_part(body.rank)
        return Done()

    def end_part(self, rank: int) -> None:
        """Let a rank be out of the job: every server knows."""
        assert self.job is not None
        self.job.leave(rank)
        self.incarnations.leave(rank)
        self.leases.end(rank)
        self.keep_job()

    def job_of(self, rank: int, incarnation: int) -> Job:
        """Return the job that this incarnation takes part in; StaleIncarnation or InvalidRequest where it takes no part."""
        have = self.incarnations.newest(rank)
        if incarnation < have:
            raise StaleIncarnation(rank, have, incarnation)
        if self.job is not None and self.job.ranks.get(rank) == incarnation:
            return self.job
        if incarnation == have and rank in self._rolled_back:
            raise RolledBack(rank, self._rolled_back[rank], self._numbering.timeline)
        want = "a rank that takes part in the running job: connect with rank= and world_size= first"
        raise InvalidRequest("rank", f"{rank}, which has not joined or has left", want)


def last_fact(fenced: Sequence[RankFenced]) -> Finished | None:
    """Return what the rank finished last, as far as any server heard; with its resume state, where one has that."""
    facts = [answer.fact for answer in fenced if answer.fact is not None]
    return max(facts, key=lambda fact: (fact.clock, len(fact.resume)), default=None)


def last_finished(fenced: Sequence[RankFenced]) -> int:
    """Return the last step that counts as finished by the rank anywhere, with a fact or without; NEVER: none."""
    return max(max(answer.finished, answer.fact.clock if answer.fact is not None else NEVER) for answer in fenced)


def _check_on_lost_worker(body: JoinJob) -> None:
    if body.on_lost_worker not in ("", "wait", "continue"):
        raise InvalidRequest("on_lost_worker", repr(body.on_lost_worker), "'wait' or 'continue'")


def _check_backup_workers(body: JoinJob) -> None:
    if isinstance(body.mode, Sync) and body.mode.backup_workers >= body.world_size:
        want = f"at most {body.world_size - 1}, so that of {body.world_size} ranks one at least makes up a step"
        raise InvalidRequest("backup_workers", str(body.mode.backup_workers), want)

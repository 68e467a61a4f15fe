"""Which workers live: the turn of RenewLease, and what follows where a lease runs out."""

from ps_proto.errors import ParameterServerError
from ps_proto.orders import RankFenced
from ps_proto.requests import Done, LeaseRenewed, RenewLease
from ps_proto.values import Sync
from ps_server.coordinator.admissions import Admissions
from ps_server.coordinator.job import Job
from ps_server.coordinator.leases import Leases
from ps_server.coordinator.notices import Notices
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.orders import Orders
from ps_server.coordinator.plans import Plan, Plans, Wait
from ps_server.coordinator.ranks import Ranks, last_fact, last_finished

REMOVE_AGAIN_S = 1.0
COME_BACK = 6  # leases for a worker that has to be started again, where all have to


class Liveness:
    """A job waits for a worker that is lost, or goes on without it, as its first worker said ("wait" or "continue").

    To go on without it is safe at any time: no server can have folded a step beyond the last one that the rank finished, since the rank is
    in its roster, or with backup workers none of which it is a part; and once it is fenced, nobody can hear it finish another. Where all
    ranks are lost nobody would go on, so nobody is removed: it may be the coordinator that was cut off.
    """

    def __init__(
        self,
        leases: Leases,
        ranks: Ranks,
        admissions: Admissions,
        plans: Plans,
        numbering: Numbering,
        orders: Orders,
        notices: Notices,
    ) -> None:
        self._leases = leases
        self._ranks = ranks
        self._admissions = admissions
        self._plans = plans
        self._numbering = numbering
        self._orders = orders
        self._notices = notices

    def grant_all(self) -> None:
        """Grant every rank that is in the running job a full lease: it could not renew it, or may have to start again first."""
        job = self._ranks.running
        for rank in job.still_in if job is not None else []:
            if self._ranks.incarnations.newest(rank) > 0:
                self._leases.renew(rank)

    def expect_all(self) -> None:
        """Grant every rank that is in the running job the time to be started again: the cluster has gone back."""
        job = self._ranks.running
        for rank in job.still_in if job is not None else []:
            if self._ranks.incarnations.newest(rank) > 0:
                self._leases.renew(rank, COME_BACK)

    def renew(self, request: int, body: RenewLease, now_s: float) -> LeaseRenewed:
        """Take the word of a rank's worker that it lives."""
        job = self._ranks.job_of(body.rank, body.incarnation)
        if len(job.ranks) > 1 and self._leases.lost.issuperset(job.ranks):  # it may be the coordinator that was cut off
            self._notices.say(f"Rank {body.rank} is heard of again. The others have as long as a lease for that.")
            self.grant_all()
        elif body.rank in self._leases.lost:
            self._notices.say(f"Rank {body.rank} is heard of again.")
        self._leases.renew(body.rank)
        orders = self._admissions.riding(job) if self._carries(job, body.rank) else ()
        return LeaseRenewed(orders, self._numbering.timeline)

    def _carries(self, job: Job, rank: int) -> bool:
        """Return whether a rank puts orders into what it says of its next step: the lowest one that is heard of does (R8).

        With backup workers each does: nobody waits for that one, so that its step may take long to end.
        """
        if isinstance(job.mode, Sync) and job.mode.backup_workers:
            return True
        return rank == min([rank for rank in job.ranks if rank not in self._leases.lost])

    # --- those that are lost ---------------------------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """Let it be `now_s`, and tell of those whose lease has run out with that."""
        late = self._leases.look(now_s)
        job = self._ranks.running
        if job is None:
            return
        for rank in late:
            what_follows = "It will be removed from its job" if job.on_lost_worker == "continue" else "The others wait for it"
            after_s = self._leases.length_s(rank)
            self._notices.say(f"Rank {rank} has not been heard of for {after_s:.1f} s. {what_follows}, unless it comes back.")

    def remove_lost(self) -> None:
        """Plan to let a job that wants it go on without those that are lost."""
        job = self._ranks.running
        if job is not None and job.on_lost_worker == "continue":
            for rank in sorted(self._leases.lost):
                key = ("remove", rank)
                if self._may_remove(job, rank) and not self._plans.has(key):
                    self._plans.add_unasked(key, self._remove(job, rank))

    def _may_remove(self, job: Job, rank: int) -> bool:
        is_lost = job is self._ranks.running and rank in self._leases.lost and rank in job.still_in
        return is_lost and any([other not in self._leases.lost for other in job.ranks])

    def _remove(self, job: Job, rank: int) -> Plan:
        """Let the job go on without the rank: fence it, learn what it finished last, take it out of the roster after that (R6, R7)."""
        if not self._may_remove(job, rank):
            return Done()
        incarnation = self._ranks.incarnations.begin(rank)
        try:
            fenced: list[RankFenced] = yield self._orders.fence_rank(rank, incarnation)
            last = max(job.first_clock - 1, last_finished(fenced))
            job.remove(rank, last)  # stored before any server knows: of a rank that they say has left, nobody else can tell why
            self._ranks.keep_job()
            yield self._orders.resolve_rank(rank, incarnation, last_fact(fenced), last + 1, has_left=True)
        except ParameterServerError as error:
            self._notices.say(f"Rank {rank} is lost and cannot be removed from its job: {error}")
            yield Wait(REMOVE_AGAIN_S)
            return Done()
        if job is self._ranks.running and rank in job.still_in:
            self._ranks.end_part(rank)
            self._notices.say(
                f"Rank {rank} has not been heard of for {self._leases.length_s(rank):.1f} s and is removed from its job: "
                f"from step {last + 1} on the others go on without it, {len(job.still_in)} in all."
            )
        return Done()

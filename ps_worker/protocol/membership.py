"""A worker's place in the job: joining, meeting the other ranks, having it saved, leaving. The coordinator alone answers all of it."""

from contextlib import AbstractContextManager

from ps_proto.requests import (
    Barrier,
    CheckpointTaken,
    GetCluster,
    JoinJob,
    LeaseRenewed,
    LeaveJob,
    RenewLease,
    TakeCheckpoint,
)
from ps_proto.values import Mode
from ps_worker.asking import Operation
from ps_worker.protocol.barrier_count import BarrierCount, BarriersAsked
from ps_worker.protocol.peers import Peers
from ps_worker.protocol.view import View

RENEWALS = 3  # within one lease, so that one that is lost does not let it run out
RENEWAL_TIMEOUT_S_MIN = 1.0


class Membership:
    """Gives the view its first content."""

    def __init__(self, view: View, peers: Peers, exclusive: AbstractContextManager[object]) -> None:
        self._view = view
        self._peers = peers
        self._count = BarrierCount(exclusive)

    def observe(self) -> Operation[None]:
        """Learn the cluster, once its servers are there."""
        cluster = yield from self._peers.ask_coordinator(GetCluster(wait_s=self._peers.wait_s))
        self._view.take_cluster(cluster)

    def join(
        self, rank: int, world_size: int, mode: Mode | None, nonce: int, resume: bool, on_lost_worker: str, name: str, job: int
    ) -> Operation[None]:
        """Take a rank in the job; see `JoinJob`."""
        yield from self.observe()
        asked = JoinJob(rank, world_size, mode, nonce, self._peers.wait_s, resume, on_lost_worker, name, job)
        joined = yield from self._peers.ask_recovered_coordinator(asked)
        self._view.take_rank(joined)
        self._count.begin(joined.barrier)

    def renew(self) -> Operation[LeaseRenewed]:
        """Renew the lease, in one attempt: the next one comes soon, and this one must not be in its way where its answer was lost."""
        self._view.check_ranked("renew a lease")
        asked = RenewLease(self._view.rank, self._view.incarnation, self._view.clock)
        timeout_s = max(RENEWAL_TIMEOUT_S_MIN, self._view.lease_s / RENEWALS)
        renewed: LeaseRenewed = yield from self._peers.try_coordinator(asked, timeout_s)
        if renewed.timeline > self._view.timeline:
            yield from self._peers.find_rollback()
        return renewed

    def barriers_behind(self, turn: int) -> BarriersAsked:
        """Return which barriers this rank has asked for, to go on behind this turn of its loop; 0: not behind any."""
        return self._count.behind(turn)

    def resume_barriers(self, asked: BarriersAsked) -> Operation[None]:
        """Go on as the worker before this one would have, which had asked for these.

        The others may have gone back behind those that it passed, or stand at one that it skips: they must not wait for this rank there.
        """
        self._count.go_on(asked)
        if asked.passed or asked.skipped:
            between = Barrier(
                self._view.rank,
                self._view.incarnation,
                self._count.generation(asked.passed),
                0.0,
                is_between=True,
                skipped=self._count.skipped,
            )
            yield from self._peers.ask_coordinator(between)

    def barrier(self, value: int, number: int | None, turn: int) -> Operation[int]:
        """Wait until every rank that has not left is at its barrier; return the least value that one of them brought.

        Its number is taken when this is called, and given back where it fails. `number`: that of one that was asked for before.
        `turn`: the clock, in the turn of a loop whose step is made; else 0.
        """
        self._view.check_ranked("wait at a barrier")
        return self._stand_at(self._count.take() if number is None else number, value, turn)

    def _stand_at(self, number: int, value: int, turn: int) -> Operation[int]:
        generation = self._count.generation(number)
        asked = Barrier(
            self._view.rank, self._view.incarnation, generation, self._peers.wait_s, value, turn=turn, skipped=self._count.skipped
        )
        try:
            passed = yield from self._peers.ask_coordinator(asked)
        except BaseException:  # a Ctrl-C too
            self._count.give_back(number)
            raise
        self._count.was_passed(number, passed.generation)
        minimum: int = passed.minimum
        return minimum

    def checkpoint(self, path: str, full: bool) -> Operation[CheckpointTaken]:
        """Have a checkpoint taken that has all that this rank has finished; `path` and `full` as in TakeCheckpoint.

        One request: another would begin another checkpoint.
        """
        at_least = -1 if self._view.is_observer else self._view.clock
        asked = TakeCheckpoint(path, full, at_least, self._peers.wait_timeout_s)
        taken: CheckpointTaken = yield from self._peers.ask_coordinator(asked)
        return taken

    def leave(self) -> Operation[None]:
        """Tell the coordinator that this rank has left, once every server knows."""
        yield from self._peers.ask_coordinator(LeaveJob(self._view.rank, self._view.incarnation))

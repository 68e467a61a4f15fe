"""Barriers: every rank of the job that has not left waits for the others, and learns the least value that one brought."""

from ps_proto.errors import BarrierTimeout, InvalidRequest, ParameterServerError
from ps_proto.requests import Barrier, BarrierPassed
from ps_server.coordinator.job import MINIMA_KEPT
from ps_server.coordinator.ranks import Ranks
from ps_server.coordinator.waiting import WaitingRoom
from ps_server.events import Body


class Barriers:
    """The turn of Barrier; each job counts its own generations. One that has passed is stored before anybody is told."""

    def __init__(self, ranks: Ranks, waiting: WaitingRoom) -> None:
        self._ranks = ranks
        self._waiting = waiting

    def wait(self, request: int, body: Barrier, now_s: float) -> None:
        """Let the rank stand at its barrier until all are there."""
        job = self._ranks.job_of(body.rank, body.incarnation)
        if body.generation == job.barrier:
            job.at_barrier[body.rank] = body.value

        def attempt() -> Body | None:
            if body.generation >= job.barrier:
                self._ranks.job_of(body.rank, body.incarnation)
                if body.generation > job.barrier or not job.may_pass_barrier:
                    return None
                job.pass_barrier()
                self._ranks.keep_job()
            minimum = job.minimum(body.generation)
            if minimum is None:
                want = f"one of the last {MINIMA_KEPT} before {job.barrier}, which is the next one"
                raise InvalidRequest("generation", str(body.generation), want)
            return BarrierPassed(minimum)

        def give_up(after_s: float) -> ParameterServerError:
            missing = [rank for rank in job.still_in if rank not in job.at_barrier]
            return BarrierTimeout(body.generation, ", ".join(map(str, missing)), after_s)

        self._waiting.add(request, body.wait_s, now_s, attempt, give_up)

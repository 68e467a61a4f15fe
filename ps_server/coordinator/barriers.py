"""Barriers: every rank of the job that has not left waits for the others, and learns the least value that one brought."""

from ps_proto.errors import BarrierTimeout, InvalidRequest, ParameterServerError
from ps_proto.requests import Barrier, BarrierPassed
from ps_server.coordinator.ranks import Ranks
from ps_server.coordinator.waiting import WaitingRoom
from ps_server.events import Body


class Barriers:
    """The turn of Barrier; each job counts its own generations. One that has passed is stored before anybody is told."""

    def __init__(self, ranks: Ranks, waiting: WaitingRoom) -> None:
        self._ranks = ranks
        self._waiting = waiting

    def wait(self, request: int, body: Barrier, now_s: float) -> Body | None:
        """Let the rank stand at its barrier until all are there."""
        job = self._ranks.job_of(body.rank, body.incarnation)
        job.barriers.stand(body.rank, body.generation, None if body.has_passed else body.value)
        if body.has_passed:
            return BarrierPassed()

        def attempt() -> Body | None:
            minimum = job.barriers.opened(body.generation)
            if minimum is None:
                self._ranks.job_of(body.rank, body.incarnation)
                if job.barriers.is_forgotten(body.generation):
                    want = "one that the others have passed lately, or the next one"
                    raise InvalidRequest("generation", str(body.generation), want)
                minimum = job.barriers.try_open(body.generation, job.still_in)
                if minimum is None:
                    return None
                self._ranks.keep_job()
            return BarrierPassed(minimum)

        def give_up(after_s: float) -> ParameterServerError:
            missing = job.barriers.missing(body.generation, job.still_in)
            return BarrierTimeout(body.generation, ", ".join(map(str, missing)), after_s)

        self._waiting.add(request, body.wait_s, now_s, attempt, give_up)
        return None

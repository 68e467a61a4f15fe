"""Barriers: every rank of the job that has not left waits for the others, and learns the least value that one brought."""

from ps_proto.errors import BarrierTimeout, InvalidRequest, ParameterServerError
from ps_proto.requests import Barrier, BarrierPassed
from ps_server.coordinator.ranks import Ranks
from ps_server.coordinator.stand import Stand
from ps_server.coordinator.waiting import WaitingRoom
from ps_server.events import Body


class Barriers:
    """The turn of Barrier; each job counts its own generations. One that has passed is stored before anybody is told."""

    def __init__(self, ranks: Ranks, waiting: WaitingRoom) -> None:
        self._ranks = ranks
        self._waiting = waiting

    def wait(self, request: int, body: Barrier, now_s: float) -> Body | None:
        """Let the rank stand at its barrier until all are there, or take note that it is between two."""
        job = self._ranks.job_of(body.rank, body.incarnation)
        if body.is_between:
            job.barriers.stand(body.rank, Stand(body.generation, None, skipped=body.skipped))
            self._ranks.keep_job()
            return BarrierPassed()
        job.barriers.stand(body.rank, Stand(body.generation, body.value, body.turn, body.skipped))

        def attempt() -> Body | None:
            generation = job.barriers.number(body.rank, body.generation)
            minimum = job.barriers.opened(generation)
            if minimum is None:
                self._ranks.job_of(body.rank, body.incarnation)
                if job.barriers.is_forgotten(generation):
                    want = "one that the others have passed lately, or the next one"
                    raise InvalidRequest("generation", str(generation), want)
                minimum = job.barriers.try_open(generation, job.still_in)
                if minimum is None:
                    return None
                self._ranks.keep_job()
            return BarrierPassed(minimum, generation)

        def give_up(after_s: float) -> ParameterServerError:
            generation = job.barriers.number(body.rank, body.generation)
            missing = job.barriers.missing(generation, job.still_in)
            return BarrierTimeout(generation, ", ".join(map(str, missing)), after_s)

        def alike() -> tuple[int, int]:  # which the job's number is may become known while a rank that skipped some waits
            return job.number, job.barriers.number(body.rank, body.generation)

        self._waiting.add(request, body.wait_s, now_s, attempt, give_up, alike)
        return None

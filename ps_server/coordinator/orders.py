"""What the coordinator says to every server of ranks, jobs and tables: under its term, and for its cluster (R13)."""

from ps_proto.requests import FenceRank, Finished, InstallTable, ResolveRank, StartJob
from ps_proto.values import TableSpec
from ps_server.coordinator.job import Job
from ps_server.coordinator.numbering import Numbering


class Orders:
    """Makes them; their fields are told in ps_proto.requests."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering

    def install_table(self, spec: TableSpec, creation: int) -> InstallTable:
        """Open a table."""
        return InstallTable(self._numbering.term, spec, creation, self._numbering.cluster)

    def start_job(self, job: Job) -> StartJob:
        """Begin a job."""
        return StartJob(self._numbering.term, job.number, job.world_size, job.mode, job.first_clock, self._numbering.cluster)

    def fence_rank(self, rank: int, incarnation: int) -> FenceRank:
        """Refuse lower incarnations, and say how far they came."""
        return FenceRank(self._numbering.term, rank, incarnation, self._numbering.cluster)

    def resolve_rank(self, rank: int, incarnation: int, fact: Finished | None, start: int, has_left: bool = False) -> ResolveRank:
        """Settle how far a rank came."""
        return ResolveRank(self._numbering.term, rank, incarnation, fact, start, has_left, self._numbering.cluster)

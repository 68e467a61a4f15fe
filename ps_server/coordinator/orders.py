"""What the coordinator says to every server of ranks, jobs and tables: under its term, and for its cluster (R13).

What moves a rank's clock is of a timeline: servers that have gone back do not follow what was found out before.
"""

from ps_proto.orders import AdmitRank, FenceRank, InstallTable, ResolveRank, StartJob
from ps_proto.requests import Finished
from ps_proto.values import TableSpec
from ps_server.coordinator.job import Job
from ps_server.coordinator.numbering import Numbering


class Orders:
    """Makes them; their fields are told in ps_proto.orders."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering

    def install_table(self, spec: TableSpec, creation: int) -> InstallTable:
        """Open a table."""
        return InstallTable(self._numbering.term, spec, creation, self._numbering.cluster)

    def start_job(self, job: Job) -> StartJob:
        """Begin a job."""
        numbering = self._numbering
        return StartJob(numbering.term, job.number, job.world_size, job.mode, job.first_clock, numbering.cluster, numbering.timeline)

    def fence_rank(self, rank: int, incarnation: int) -> FenceRank:
        """Refuse lower incarnations, and say how far they came."""
        return FenceRank(self._numbering.term, rank, incarnation, self._numbering.cluster)

    def admit_rank(self, rank: int, incarnation: int, first: int) -> AdmitRank:
        """Take a rank into a job that folds no steps."""
        numbering = self._numbering
        return AdmitRank(numbering.term, numbering.cluster, rank, incarnation, first, numbering.timeline)

    def resolve_rank(self, rank: int, incarnation: int, fact: Finished | None, start: int, has_left: bool = False) -> ResolveRank:
        """Settle how far a rank came."""
        numbering = self._numbering
        return ResolveRank(numbering.term, rank, incarnation, fact, start, has_left, numbering.cluster, numbering.timeline)

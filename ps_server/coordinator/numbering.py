"""Who the cluster is, and the numbers that it gives: each once, in every life of the coordinator."""

from dataclasses import replace

from ps_proto.errors import InvalidRequest
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.journal import Journal
from ps_server.coordinator.stored import CLUSTER, StoredCluster


class Numbering:
    """A coordinator's term is one beyond the last one's; every number that is taken is stored in the same turn, before it is told (R13)."""

    def __init__(self, settings: CoreSettings, stored: StoredCluster | None, journal: Journal) -> None:
        if stored is None:
            stored = StoredCluster(settings.cluster, 0, settings.servers_expected)
        elif stored.servers_expected != settings.servers_expected:
            want = f"{stored.servers_expected}, as when this cluster was started; a new cluster needs another place for its state"
            raise InvalidRequest("servers", str(settings.servers_expected), want)
        self._journal = journal
        self._keep(replace(stored, term=stored.term + 1))

    def _keep(self, cluster: StoredCluster) -> None:
        self._last = cluster
        self._journal.put(CLUSTER, cluster)

    @property
    def cluster(self) -> int:
        """The id of the cluster; 0: it has none."""
        return self._last.cluster

    @property
    def term(self) -> int:
        """The coordinator's own, from 1."""
        return self._last.term

    @property
    def timeline(self) -> int:
        """How many rollbacks there were."""
        return self._last.timeline

    def begin_timeline(self, above: int) -> int:
        """Begin a timeline above the one at work and another, which a checkpoint is of; return it."""
        self._keep(replace(self._last, timeline=max(self._last.timeline, above) + 1))
        return self._last.timeline

    def next_job(self) -> int:
        """Take the number of a job, from 1."""
        self._keep(replace(self._last, last_job=self._last.last_job + 1))
        return self._last.last_job

    def pass_job(self, number: int) -> None:
        """Take no number of a job up to this one any more."""
        if number > self._last.last_job:
            self._keep(replace(self._last, last_job=number))

    def next_creation(self) -> int:
        """Take the number of a table's creation, from 1."""
        self._keep(replace(self._last, last_creation=self._last.last_creation + 1))
        return self._last.last_creation

    def next_order(self) -> int:
        """Take the number of an order that rides in a finished step, from 1."""
        self._keep(replace(self._last, last_order=self._last.last_order + 1))
        return self._last.last_order

    def next_checkpoint(self) -> int:
        """Take the number of an attempt to take a checkpoint, from 1."""
        self._keep(replace(self._last, last_checkpoint=self._last.last_checkpoint + 1))
        return self._last.last_checkpoint

    def pass_checkpoint(self, number: int) -> None:
        """Take no number of a checkpoint up to this one any more."""
        if number > self._last.last_checkpoint:
            self._keep(replace(self._last, last_checkpoint=number))

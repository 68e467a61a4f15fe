"""What a worker knows: who it is, the job, the newest map and the tables. It asks nobody; others tell it what they learned."""

from collections.abc import Iterable
from dataclasses import replace

from ps_proto.errors import ObserverCannot, RolledBack, StaleIncarnation
from ps_proto.requests import OBSERVER, Cluster, Fence, JobJoined
from ps_proto.values import Mode, Sync, TableSpec
from sharding.shard_map import ShardMap


class View:
    """One worker's knowledge, which its operations share."""

    def __init__(self) -> None:
        self.rank = OBSERVER
        self.incarnation = 0
        self.turn = 0  # goes up by one with each step that this worker ends; without backup workers it is the clock
        self.skipped = 0  # the steps that went by without it, because it was late (R9)
        self.timeline = 0
        self.world_size = 0
        self.mode: Mode | None = None
        self.shard_map: ShardMap | None = None
        self.tables: dict[str, TableSpec] = {}
        self.resume = b""  # what this worker's predecessor left for it (R15)
        self.is_resumed = False
        self.lease_s = 0.0
        self.over: RolledBack | StaleIncarnation | None = None  # what ended this worker's part in the job, for good

    @property
    def clock(self) -> int:
        """The number of the step at work."""
        return self.turn + self.skipped

    @property
    def is_observer(self) -> bool:
        return self.rank == OBSERVER

    @property
    def map(self) -> ShardMap:
        assert self.shard_map is not None, "connect waits for the map"
        return self.shard_map

    def fence(self, clock: int | None = None) -> Fence:
        """Return what every request carries (R1); `clock`: of the step that it is for, by default the one at work."""
        return Fence(self.map.version, self.rank, self.incarnation, self.clock if clock is None else clock, self.timeline)

    def check_ranked(self, action: str) -> None:
        """Raise ObserverCannot where this worker has no rank, and what `check_not_over` does."""
        if self.is_observer:
            raise ObserverCannot(action)
        self.check_not_over()

    def check_not_over(self) -> None:
        """Raise again what has ended this worker's part in the job: only its successor may go on, from where the servers are."""
        if self.over is not None:
            raise replace(self.over)

    # --- what is learned ---------------------------------------------------------------------------------------------------------

    def take_cluster(self, cluster: Cluster) -> None:
        """Begin with the cluster as the coordinator knows it."""
        self.take_map(cluster.shard_map)
        self.tables = {spec.name: spec for spec in cluster.tables}
        self.take_job(cluster)
        self.timeline = cluster.timeline

    def take_timeline(self, cluster: Cluster) -> None:
        """Follow the cluster where it went back to a checkpoint: an observer has nothing to lose."""
        if cluster.timeline > self.timeline:
            self.take_map(cluster.shard_map)
            self.take_job(cluster)
            self.timeline = cluster.timeline

    def take_job(self, cluster: Cluster) -> None:
        """Note the job that runs now: an observer outlives jobs."""
        self.mode, self.world_size = cluster.mode, cluster.world_size

    def take_rank(self, joined: JobJoined) -> None:
        """Become a rank of the job."""
        self.rank, self.incarnation, self.turn, self.skipped = joined.rank, joined.incarnation, joined.clock, 0
        self.mode, self.world_size, self.timeline = joined.mode, joined.world_size, joined.timeline
        self.resume, self.is_resumed, self.lease_s = joined.resume, joined.is_resumed, joined.lease_s
        self.take_map(joined.shard_map)
        self.tables = {spec.name: spec for spec in joined.tables}

    def take_map(self, shard_map: ShardMap | None) -> None:
        """Go by this map where it is newer: a map never goes back."""
        if shard_map is not None and (self.shard_map is None or shard_map.version > self.shard_map.version):
            self.shard_map = shard_map

    def take_table(self, spec: TableSpec) -> None:
        """Know a table as the coordinator says that it stands."""
        self.tables[spec.name] = spec

    def take_tables(self, specs: Iterable[TableSpec]) -> None:
        """Add the tables that were not known."""
        self.tables.update({spec.name: spec for spec in specs if spec.name not in self.tables})

    # --- modes -------------------------------------------------------------------------------------------------------------------

    def mode_of(self, table: str) -> Mode | None:
        """Return the mode of a known table, its own or the job's; None where there is no job."""
        return self.tables[table].mode or self.mode

    def is_synchronous(self, table: str) -> bool:
        """Return whether a known table is synchronous."""
        return isinstance(self.mode_of(table), Sync)

    @property
    def backup_workers(self) -> int:
        """How many ranks a step of the job does without (R9)."""
        return self.mode.backup_workers if isinstance(self.mode, Sync) else 0

    @property
    def has_synchronous_tables(self) -> bool:
        """Whether any known table is synchronous."""
        return any([self.is_synchronous(table) for table in self.tables])

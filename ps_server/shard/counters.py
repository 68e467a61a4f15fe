"""What a shard counts about itself, for `client.stats()` and for whoever watches."""

from dataclasses import dataclass, field, fields


@dataclass
class TableCounters:
    """Of one table on one server. Bytes are those of the ids and rows in pulls and pushes that were answered."""

    rows_pulled: int = 0
    rows_pushed: int = 0
    rows_listed: int = 0  # of those pushed, such as came under the number of a pull, without ids
    rows_repeated: int = 0  # pushed again under a name that was applied: dropped
    rows_updated: int = 0  # rows that an optimizer touched
    rows_unread: int = 0  # of them, those whose optimizer asked how they were read, and nobody knew
    bytes_in: int = 0
    bytes_out: int = 0

    def values(self) -> dict[str, float]:
        return {item.name: float(getattr(self, item.name)) for item in fields(self)}


@dataclass
class Counters:
    """Of one server. Waiting is the time between a pull's arrival and its answer; staleness is as measured when a pull is answered."""

    pulls: int = 0
    pushes: int = 0
    pushes_repeated: int = 0
    pushes_late: int = 0  # for a step that was over, in a job with backup workers: not taken
    contributions_dropped: int = 0  # pushes that were staged for a step whose fold took others
    key_lists_unknown: int = 0  # pushes that named a pull whose ids were not remembered
    steps_decided: int = 0  # by this server
    folds: int = 0
    refused: int = 0
    waits: int = 0
    wait_s: float = 0.0
    waits_timed_out: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    tables: dict[str, TableCounters] = field(default_factory=dict)

    def table(self, name: str) -> TableCounters:
        return self.tables.setdefault(name, TableCounters())

    def saw_staleness(self, staleness: int) -> None:
        """Count the staleness of a ranked pull that is being answered."""
        self.staleness_sum += max(staleness, 0)
        self.staleness_max = max(self.staleness_max, staleness)

    def values(self) -> dict[str, float]:
        return {item.name: float(getattr(self, item.name)) for item in fields(self) if item.name != "tables"}

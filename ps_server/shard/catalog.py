"""The tables of a server by name, each under its own mode or the job's."""

from ps_proto.errors import UnknownTable
from ps_proto.requests import Hyperparameters, Ids, Rows
from ps_proto.values import Async, Mode, Sync, TableSpec
from ps_server.shard.counters import Counters
from ps_server.shard.optimizers.optimizer import Origin
from ps_server.shard.table import Table


class Catalog:
    """See the module's text. `rows_max`: of each table."""

    def __init__(self, counters: Counters, rows_max: int | None = None) -> None:
        self.tables: dict[str, Table] = {}
        self.job_mode: Mode = Async()
        self._counters = counters
        self._rows_max = rows_max

    def get(self, name: str) -> Table:
        """Return the table; UnknownTable where there is none."""
        if name not in self.tables:
            raise UnknownTable(name)
        return self.tables[name]

    def open(self, spec: TableSpec) -> Table:
        """Return the table, opened where it is not yet."""
        if spec.name not in self.tables:
            self.tables[spec.name] = Table(spec, self._rows_max)
        return self.tables[spec.name]

    def mode(self, table: Table) -> Mode:
        """Return the mode that holds for a table."""
        return table.spec.mode or self.job_mode

    def is_synchronous(self, name: str) -> bool:
        """Return whether pushes to the table wait for the end of their step."""
        return isinstance(self.mode(self.tables[name]), Sync)

    @property
    def has_synchronous(self) -> bool:
        """Whether any table is synchronous."""
        return any([self.is_synchronous(name) for name in self.tables])

    def parameters(self, hyperparameters: tuple[Hyperparameters, ...]) -> dict[str, dict[str, float]]:
        """Return the checked numbers by table, of each all that its optimizer reads."""
        for item in hyperparameters:
            self.get(item.table).spec.optimizer.with_parameters(item.parameters)
        return {item.table: item.parameters for item in hyperparameters}

    def update(self, name: str, ids: Ids, gradients: Rows, parameters: dict[str, float] | None, origin: Origin) -> None:
        """Let the table's optimizer take gradients float32[n, dim] for ids that do not repeat; None: with its own numbers."""
        table = self.tables[name]
        table.update(ids, gradients, parameters or table.spec.optimizer.parameters(), origin)
        self._counters.table(name).rows_updated += ids.size

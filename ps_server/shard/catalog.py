"""The tables of a server by name, each under its own mode or the job's."""

import traceback
from collections.abc import Iterable
from dataclasses import replace

from ps_proto.errors import InvalidRequest, OptimizerFailed, UnknownTable
from ps_proto.requests import Hyperparameters, Ids, Rows
from ps_proto.values import Async, Mode, Sync, TableSpec
from ps_server.shard.counters import Counters
from ps_server.shard.optimizers.optimizer import Origin
from ps_server.shard.table import Places, Table


class Catalog:
    """See the module's text. `server`: whose, for errors; `rows_max`: of each table."""

    def __init__(self, server: str, counters: Counters, rows_max: int | None = None) -> None:
        self.tables: dict[str, Table] = {}
        self.failures: dict[str, OptimizerFailed] = {}  # table -> what its optimizer raised; for good
        self.job_mode: Mode = Async()
        self._server = server
        self._creations: dict[str, int] = {}  # table -> the greatest number under which it was ordered
        self._counters = counters
        self._rows_max = rows_max

    def get(self, name: str) -> Table:
        """Return the table; UnknownTable where there is none, OptimizerFailed where its rows are not to be trusted."""
        table = self._known(name)
        if name in self.failures:
            raise replace(self.failures[name])  # a new one each time: one that was raised keeps its frames, and their arrays
        return table

    def _known(self, name: str) -> Table:
        if name not in self.tables:
            raise UnknownTable(name)
        return self.tables[name]

    def open(self, spec: TableSpec) -> Table:
        """Return the table, opened where it is not yet; one of another spec is replaced, unless it is in use: that is InvalidRequest."""
        table = self.tables.get(spec.name)
        if table is None or table.spec != spec:
            if table is not None and self._is_used(table):
                raise InvalidRequest("spec", str(spec), f"{table.spec}: table {spec.name!r} is open so on {self._server}, and in use")
            table = self.tables[spec.name] = Table(spec, self._rows_max)
        return table

    def install(self, spec: TableSpec, creation: int) -> None:
        """Open a table as the coordinator orders; an order of a lower `creation` than known is of one that failed: it changes nothing."""
        if creation >= self._creations.get(spec.name, 0):
            self.open(spec)
            self._creations[spec.name] = creation

    def restart(self, specs: Iterable[TableSpec], job_mode: Mode) -> None:
        """Open these tables without rows in place of all others; InvalidRequest, changing nothing, where one cannot be opened."""
        self.tables = {spec.name: Table(spec, self._rows_max) for spec in specs}
        self.failures.clear()
        self.job_mode = job_mode

    def _is_used(self, table: Table) -> bool:
        """Return whether it has rows, or anybody has read it or has pushes staged."""
        counters = self._counters.table(table.spec.name)
        return len(table) > 0 or counters.rows_pulled > 0 or counters.rows_pushed > 0

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
            self._known(item.table).spec.optimizer.with_parameters(item.parameters)  # of a failed one too: its steps go on
        return {item.table: item.parameters for item in hyperparameters}

    def update(
        self, name: str, ids: Ids, gradients: Rows, parameters: dict[str, float] | None, origin: Origin, places: Places | None = None
    ) -> None:
        """Let the table's optimizer take gradients float32[n, dim] for ids that do not repeat; None: with its own numbers.

        `places`: where a pull of the same ids has found them.
        Raises OptimizerFailed where it raises or has raised before; from then on the table is neither read nor changed.
        """
        table = self.get(name)
        try:
            table.update(ids, gradients, parameters or table.spec.optimizer.parameters(), origin, places)
        except Exception as error:  # it may be a user's own and raise anything; its rows may be half updated, those of others are not
            self.failures[name] = OptimizerFailed(self._server, name, table.spec.optimizer.label, _described(error))
            raise replace(self.failures[name]) from error
        self._counters.table(name).rows_updated += ids.size


def _described(error: Exception) -> str:
    """Return where it was raised, the innermost frame, and what it says; the place first, since a long text is cut when it travels."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{frame.f_code.co_filename}, line {line}: {type(error).__name__}: {error}"

"""The tables that a worker uses: their specs, and the hyperparameters that it wants of them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ps_proto.errors import InvalidRequest, TableMismatch, UnknownTable
from ps_proto.requests import CreateTable, GetCluster, Hyperparameters
from ps_proto.values import Optimizer, TableSpec
from ps_worker.asking import Operation
from ps_worker.protocol.peers import Peers
from ps_worker.protocol.view import View


class Tables:
    """Creates and finds tables, which the view then knows; keeps this worker's hyperparameters of those that it created."""

    def __init__(self, view: View, peers: Peers) -> None:
        self._view = view
        self._peers = peers
        self._parameters: dict[str, dict[str, float]] = {}
        self._changed: dict[str, Hyperparameters] = {}  # those of them that differ from what the table was created with

    def create(self, spec: TableSpec) -> Operation[TableSpec]:
        """Create the table, or check that the one that exists is the same; return it as it stands, with the optimizer asked for."""
        self._view.check_ranked("create a table")
        created = yield from self._peers.ask_coordinator(CreateTable(spec, self._peers.wait_s))
        self._view.take_table(created.spec)
        self._want(spec.name, spec.optimizer)
        stands: TableSpec = replace(created.spec, optimizer=spec.optimizer)
        return stands

    def set_optimizer(self, table: str, optimizer: Optimizer) -> None:
        """Use these hyperparameters from this step on; the table must be known and the kind its own."""
        self._view.check_ranked("set an optimizer")
        have = self._view.tables[table].optimizer
        if optimizer.label != have.label:
            raise TableMismatch(table, "optimizer", have.label, optimizer.label)
        if optimizer.layout != have.layout:
            want = f"those of {have.layout}: what lies beside a row stays as the table was made"
            raise InvalidRequest(f"hyperparameters of table {table!r}", f"those of {optimizer.layout}", want)
        self._want(table, optimizer)

    def _want(self, table: str, optimizer: Optimizer) -> None:
        numbers = self._parameters[table] = optimizer.parameters()
        self._changed.pop(table, None)
        if numbers != self._view.tables[table].optimizer.parameters():
            self._changed[table] = Hyperparameters(table, numbers)

    def knows(self, tables: Sequence[str]) -> bool:
        """Return whether there is nothing to ask to know these tables.

        An observer asks each time: jobs come and go under it, and with them the mode, by which it tells what is synchronous.
        """
        return not self._view.is_observer and all([table in self._view.tables for table in tables])

    def know(self, tables: Sequence[str]) -> Operation[None]:
        """Make sure that the specs of these tables are known; UnknownTable where one does not exist."""
        if self.knows(tables):
            return
        cluster = yield from self._peers.ask_coordinator(GetCluster())
        if self._view.is_observer:
            self._view.take_job(cluster)
        self._view.take_tables(cluster.tables)
        for table in tables:
            if table not in self._view.tables:
                raise UnknownTable(table)

    def changed(self, tables: Iterable[str]) -> tuple[Hyperparameters, ...]:
        """Return what this worker wants of these tables where it differs from what they were created with."""
        return tuple([self._changed[table] for table in tables if table in self._changed])

    def of_synchronous(self) -> tuple[Hyperparameters, ...]:
        """Return what this worker wants of the synchronous tables that it created, by name."""
        wanted = sorted(self._parameters.items())
        return tuple([Hyperparameters(table, numbers) for table, numbers in wanted if self._view.is_synchronous(table)])
